"""Widgets for the notebooks: `NAME.mount()` shows one, `NAME.draw(NAME.compute(...))` a still."""

from . import (
    ablation_explorer,
    approximation_error,
    crossover,
    fitted_polynomial,
    live_training,
    loss_curves,
    order_explorer,
    recall_capacity,
    recurrence_stepper,
    state_growth,
)
from .base import Explorer

__all__ = [
    "Explorer",
    "ablation_explorer",
    "approximation_error",
    "crossover",
    "fitted_polynomial",
    "live_training",
    "loss_curves",
    "order_explorer",
    "recall_capacity",
    "recurrence_stepper",
    "state_growth",
]
