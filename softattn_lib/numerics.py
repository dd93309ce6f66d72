"""The few numerical rules that the other modules share."""

import torch


def safe_divide(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """numerator / denominator, and 0 where the denominator is exactly 0, with gradients to match.

    Example:
        >>> safe_divide(torch.tensor([3.0, 3.0]), torch.tensor([2.0, 0.0]))
        tensor([1.5000, 0.0000])
    """
    if torch.compiler.is_compiling():  # it knows no custom jvp
        return _divide(numerator, denominator)
    return _SafeDivide.apply(numerator, denominator)


def _divide(numerator, denominator):
    is_zero = denominator == 0
    return (numerator / denominator.masked_fill(is_zero, 1)).masked_fill(is_zero, 0)


class _SafeDivide(torch.autograd.Function):
    """Keeps quotient and denominator for the backward pass, and so frees the numerator."""

    generate_vmap_rule = True

    @staticmethod
    def forward(numerator, denominator):
        return _divide(numerator, denominator)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.numerator_shape = inputs[0].shape
        ctx.save_for_backward(inputs[1], output)
        ctx.save_for_forward(inputs[1], output)

    @staticmethod
    def backward(ctx, grad):
        denominator, quotient = ctx.saved_tensors
        grad, grad_denominator = _divide(grad, denominator), None
        if ctx.needs_input_grad[1]:
            grad_denominator = -(grad * quotient).sum_to_size(denominator.shape)
        return grad.sum_to_size(ctx.numerator_shape), grad_denominator

    @staticmethod
    def jvp(ctx, tangent, denominator_tangent):
        denominator, quotient = ctx.saved_tensors
        change = 0 if tangent is None else tangent
        if denominator_tangent is not None:
            change = change - quotient * denominator_tangent
        return _divide(change, denominator)


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """What states and sums are kept in: float64 for float64, float32 for everything shorter."""
    return torch.promote_types(dtype, torch.float32)
