"""What stands where the softmax denominator stood.

A normalizer turns the weighted sum of the values into the output. All get the same four things:

    numerator    (..., T, e)  sum of w v, in units of exp(log_unit)
    denominator  (..., T, 1)  sum of w, in units of exp(log_unit)
    visible      (..., T, 1)  how many keys the query sees
    log_unit     (..., T, 1)  0 unless the weights of exp were shifted by their row's maximum

An exact zero in a denominator gives 0. eps is 0 unless given, so nothing hides a zero.
"""

from dataclasses import dataclass

import torch

from .numerics import safe_divide


class Normalizer:
    """The interface of a normalizer.

    Attributes:
        cancels_unit: whether a positive factor common to all weights of a row drops out (up to
            floor and eps, which are converted). Only then may the weights of exp be shifted.
        needs_nonnegative_weights: whether weights of both signs can make the divisor vanish.
    """

    cancels_unit = False
    needs_nonnegative_weights = False

    def __call__(self, numerator, denominator, visible, log_unit):
        raise NotImplementedError


def _check_eps(eps):
    if not (0 <= eps < float("inf")):
        raise ValueError(f"eps must be finite and >= 0, got {eps}")


@dataclass(frozen=True)
class SumNormalizer(Normalizer):
    """sum w v / (max(floor, sum w) + eps): the softmax denominator G_t^-1 and its relatives.

    Args:
        floor: smallest denominator let through, or None (the paper's code clamps at 1).
        detach: let no gradient pass through the denominator.
        eps: added to the denominator.
    """

    floor: float | None = None
    detach: bool = False
    eps: float = 0.0
    cancels_unit = True

    def __post_init__(self):
        _check_eps(self.eps)
        if self.floor is not None and not self.floor > 0:
            raise ValueError(f"floor must be > 0 or None, got {self.floor}")

    @property
    def needs_nonnegative_weights(self):
        return self.floor is None

    def __call__(self, numerator, denominator, visible, log_unit):
        if self.detach:
            denominator = denominator.detach()
        if self.floor is not None:
            denominator = torch.maximum(denominator, self.floor * (-log_unit).exp())
        if self.eps:
            denominator = denominator + self.eps * (-log_unit).exp()
        return safe_divide(numerator, denominator)


@dataclass(frozen=True)
class VisibleKeysNormalizer(Normalizer):
    """sum w v / t, with t the number of keys the query sees: the paper's 1/t."""

    def __call__(self, numerator, denominator, visible, log_unit):
        return safe_divide(numerator, visible.to(numerator.dtype))


@dataclass(frozen=True)
class NoNormalizer(Normalizer):
    """sum w v as it is."""

    def __call__(self, numerator, denominator, visible, log_unit):
        return numerator


@dataclass(frozen=True)
class L2Normalizer(Normalizer):
    """y / max(|y|, eps) with y = sum w v: the paper's (Norm) equation."""

    eps: float = 0.0
    cancels_unit = True

    def __post_init__(self):
        _check_eps(self.eps)

    def __call__(self, numerator, denominator, visible, log_unit):
        y, log_unit = _rescale(numerator, log_unit, self.eps)
        norm = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        if self.eps:
            norm = torch.maximum(norm, self.eps * (-log_unit).exp())
        return safe_divide(y, norm)


@dataclass(frozen=True, eq=False)
class RMSNormalizer(Normalizer):
    """y / sqrt(mean(y^2) + eps) * weight with y = sum w v.

    Args:
        weight: learnable scale that broadcasts against (..., e), or None.
        eps: added to the mean square.
    """

    weight: torch.Tensor | None = None
    eps: float = 0.0
    cancels_unit = True

    def __post_init__(self):
        _check_eps(self.eps)

    def __call__(self, numerator, denominator, visible, log_unit):
        y, log_unit = _rescale(numerator, log_unit, self.eps**0.5)
        return _apply(_unit_mean_square(y, self.eps, log_unit), self.weight)


@dataclass(frozen=True, eq=False)
class LayerNormalizer(Normalizer):
    """(y - mean) / sqrt(var + eps) * weight + bias with y = sum w v; 0 where no key is visible.

    Args:
        weight, bias: learnable, broadcast against (..., e), or None.
        eps: added to the variance (over e, not e - 1).
    """

    weight: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    eps: float = 0.0
    cancels_unit = True

    def __post_init__(self):
        _check_eps(self.eps)

    def __call__(self, numerator, denominator, visible, log_unit):
        y, log_unit = _rescale(numerator, log_unit)
        y, log_unit = _rescale(y - y.mean(-1, keepdim=True), log_unit, self.eps**0.5)
        y = _apply(_unit_mean_square(y, self.eps, log_unit), self.weight, self.bias)
        return y.masked_fill(visible == 0, 0)


@dataclass(frozen=True)
class TimesWidthNormalizer(Normalizer):
    """y times its width e; a step for `ChainNormalizer`."""

    def __call__(self, numerator, denominator, visible, log_unit):
        return numerator * numerator.shape[-1]


@dataclass(frozen=True, eq=False)
class ChainNormalizer(Normalizer):
    """Several normalizers, each on the result of the one before: RMS of the mean, for instance.

    Example:
        >>> mean_then_norm = ChainNormalizer((VisibleKeysNormalizer(), L2Normalizer()))
    """

    steps: tuple[Normalizer, ...]

    def __post_init__(self):
        if not self.steps:
            raise ValueError("steps is empty; give at least one normalizer, or its name")
        object.__setattr__(self, "steps", tuple(as_normalizer(step) for step in self.steps))

    @property
    def cancels_unit(self):
        return any(step.cancels_unit for step in self.steps)

    @property
    def needs_nonnegative_weights(self):
        return any(step.needs_nonnegative_weights for step in self.steps)

    def __call__(self, numerator, denominator, visible, log_unit):
        for step in self.steps:
            numerator = step(numerator, denominator, visible, log_unit)
            if step.cancels_unit:
                denominator, log_unit = denominator * log_unit.exp(), torch.zeros_like(log_unit)
        return numerator


NORMALIZERS = {
    "sum": SumNormalizer(),
    "visible_keys": VisibleKeysNormalizer(),
    "none": NoNormalizer(),
    "l2": L2Normalizer(),
    "rms": RMSNormalizer(),
    "layer": LayerNormalizer(),
}


def as_normalizer(normalizer) -> Normalizer:
    """A normalizer from a normalizer or one of the names in `NORMALIZERS`.

    Raises:
        ValueError: for another name.
        TypeError: for anything else.
    """
    if isinstance(normalizer, Normalizer):
        return normalizer
    if isinstance(normalizer, str) and normalizer in NORMALIZERS:
        return NORMALIZERS[normalizer]
    error = ValueError if isinstance(normalizer, str) else TypeError
    raise error(
        f"normalizer must be a Normalizer or one of {', '.join(map(repr, NORMALIZERS))}; "
        f"got {normalizer!r}"
    )


def _rescale(y, log_unit, at_least=0.0):
    """y in units of its largest entry, so that its squares neither overflow nor vanish.

    The unit is not smaller than `at_least`, the size under which eps decides.
    """
    largest = y.detach().abs().amax(-1, keepdim=True)
    if at_least:
        largest = torch.maximum(largest, at_least * (-log_unit).exp())
    largest = largest.masked_fill(largest == 0, 1)
    return y / largest, log_unit + largest.log()


def _unit_mean_square(y, eps, log_unit):
    mean_square = y.square().mean(-1, keepdim=True)
    if eps:
        mean_square = mean_square + eps * (-2 * log_unit).exp()
    return y / mean_square.masked_fill(mean_square == 0, 1).sqrt()


def _apply(y, weight, bias=None):
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
