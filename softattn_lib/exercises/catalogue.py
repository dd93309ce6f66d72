"""All exercises, by name, in the order of the course."""

from . import linear_attention, powers, series, softmax_attention, sum_of_rnns

TOPICS = (softmax_attention, series, powers, linear_attention, sum_of_rnns)
EXERCISES = {exercise.name: exercise for topic in TOPICS for exercise in topic.EXERCISES}
