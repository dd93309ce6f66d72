"""The recurrent state: what a kernel with features remembers of the past.

    S_t = exp(log_decay_t) S_{t-1} + phi(k_t)^T [v_t, 1]

The column of ones beside the value makes numerator and denominator one state: one update, one
readout, one decay. The rows of order n are the paper's H_t^n, and their last column its z_t^n.
"""

import math
from dataclasses import dataclass, replace

import torch

from .features import check_size
from .kernels import as_kernel
from .numerics import state_dtype


@dataclass(frozen=True, eq=False)
class AttentionState:
    """An immutable state; updates return a new one.

    Attributes:
        sums: (..., D, e+1), float32 or float64: sum of phi(k) [v, 1] over the visible past.
        visible: (...), int64: how many tokens of each row were visible.
        feature_set: which features the rows are; states of other features are refused.
        scale: the scale of the score that this state was made with.

    Example:
        >>> from softattn_lib import init_state, taylor
        >>> state = init_state(taylor(2), d=4, e=3, batch_shape=(2,))
        >>> state.numerator.shape, state.denominator.shape, state.nbytes
        (torch.Size([2, 15, 3]), torch.Size([2, 15]), 480)
    """

    sums: torch.Tensor
    visible: torch.Tensor
    feature_set: object
    scale: float

    @property
    def numerator(self) -> torch.Tensor:
        """(..., D, e): sum of phi(k) v."""
        return self.sums[..., :-1]

    @property
    def denominator(self) -> torch.Tensor:
        """(..., D): sum of phi(k)."""
        return self.sums[..., -1]

    @property
    def num_features(self) -> int:
        """D, the number of rows."""
        return self.sums.shape[-2]

    @property
    def nbytes(self) -> int:
        """Bytes that the sums take, whatever the number of tokens."""
        return self.sums.numel() * self.sums.element_size()

    def detach(self) -> "AttentionState":
        """The same numbers, cut from the autograd graph."""
        return replace(self, sums=self.sums.detach())


def init_state(
    kernel, d: int, e: int, *, batch_shape=(), scale=None, dtype=torch.float32, device=None
) -> AttentionState:
    """The state of an empty past: zeros.

    Args:
        kernel: a Polynomial, a kernel, or a kernel's name.
        d: width of queries and keys.
        e: width of values.
        batch_shape: the leading dimensions of k (its heads included).
        scale: as in the attention calls; None means d ** -0.5.
        dtype: of the inputs; the state has float32, or float64 for float64.
        device: as in torch.zeros.

    Raises:
        ValueError: if the kernel has no finite state, or one too large to build.

    Example:
        >>> init_state("relu", d=4, e=3).sums.shape
        torch.Size([4, 4])
    """
    kernel = require_features(as_kernel(kernel), "init_state")
    return AttentionState(
        sums=empty_sums(kernel, batch_shape, d, e, dtype=state_dtype(dtype), device=device),
        visible=torch.zeros(tuple(batch_shape), dtype=torch.int64, device=device),
        feature_set=kernel.feature_set,
        scale=resolve_scale(scale, d),
    )


def empty_sums(kernel, batch_shape, d: int, e: int, *, dtype, device) -> torch.Tensor:
    """The sums of an empty past, (..., D, e+1) zeros, unless D is too large to build."""
    num_features = kernel.num_features(d)
    check_size(num_features, "kernel {!r} with d={}", kernel, d)
    return torch.zeros((*batch_shape, num_features, e + 1), dtype=dtype, device=device)


def resolve_scale(scale, d: int) -> float:
    """The scale of the score: d ** -0.5 where None is given."""
    if scale is None:
        return d**-0.5
    is_number = isinstance(scale, (int, float)) and not isinstance(scale, bool)
    if not is_number or not math.isfinite(scale):
        raise ValueError(f"scale must be a finite number or None (d ** -0.5), got {scale!r}")
    return float(scale)


def require_features(kernel, asked_for: str):
    """The kernel, or an error that says which kernels have a finite state."""
    if not kernel.has_features:
        raise ValueError(
            f"{asked_for}: kernel {kernel!r} has no finite state and no recurrence; kernels that "
            "have one are polynomials such as taylor(4), 'identity', 'relu', 'elu_plus_one' and "
            "'cosine'. Use parallel_attention, or approximate exp by taylor(order)"
        )
    return kernel
