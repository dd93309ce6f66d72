"""The few numerical rules that the other modules share."""

import torch


def safe_divide(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """numerator / denominator, and 0 where the denominator is exactly 0, with gradients to match.

    Example:
        >>> safe_divide(torch.tensor([3.0, 3.0]), torch.tensor([2.0, 0.0]))
        tensor([1.5000, 0.0000])
    """
    return _SafeDivide.apply(numerator, denominator)


class _SafeDivide(torch.autograd.Function):
    """Keeps quotient and denominator for the backward pass, and so frees the numerator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(numerator, denominator):
        is_zero = denominator == 0
        return (numerator / denominator.masked_fill(is_zero, 1)).masked_fill_(is_zero, 0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.numerator_shape = inputs[0].shape
        ctx.save_for_backward(inputs[1], output)

    @staticmethod
    def backward(ctx, grad):
        denominator, quotient = ctx.saved_tensors
        is_zero = denominator == 0
        grad = (grad / denominator.masked_fill(is_zero, 1)).masked_fill(is_zero, 0)
        grad_denominator = None
        if ctx.needs_input_grad[1]:
            grad_denominator = -(grad * quotient).sum_to_size(denominator.shape)
        return grad.sum_to_size(ctx.numerator_shape), grad_denominator


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """What states and sums are kept in: float64 for float64, float32 for everything shorter."""
    return torch.promote_types(dtype, torch.float32)
