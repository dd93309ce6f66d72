"""The few numerical rules that the other modules share."""

import torch


def safe_divide(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """numerator / denominator, and 0 where the denominator is exactly 0, with gradients to match.

    Example:
        >>> safe_divide(torch.tensor([3.0, 3.0]), torch.tensor([2.0, 0.0]))
        tensor([1.5000, 0.0000])
    """
    is_zero = denominator == 0
    quotient = numerator / denominator.masked_fill(is_zero, 1)
    return quotient.masked_fill(is_zero, 0)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """What states and sums are kept in: float64 for float64, float32 for everything shorter."""
    return torch.promote_types(dtype, torch.float32)
