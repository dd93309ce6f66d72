"""All exercises, by name, in the order of the course."""

from . import (
    expressiveness,
    gate_and_norm,
    linear_attention,
    names,
    powers,
    real_model,
    series,
    softmax_attention,
    sum_of_rnns,
)

TOPICS = (
    softmax_attention,
    series,
    powers,
    linear_attention,
    sum_of_rnns,
    real_model,
    gate_and_norm,
    names,
    expressiveness,
)
EXERCISES = {exercise.name: exercise for topic in TOPICS for exercise in topic.EXERCISES}
