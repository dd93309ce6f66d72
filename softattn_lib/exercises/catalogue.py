"""All exercises, by name, in the order of the course."""

from . import softmax_attention

TOPICS = (softmax_attention,)
EXERCISES = {exercise.name: exercise for topic in TOPICS for exercise in topic.EXERCISES}
