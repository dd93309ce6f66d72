"""Polynomials fitted to observed scores, and what "close to exp" is to mean.

What matters in attention is the error of a weight against the sum of its row: a score of 3 is
decisive in one row and nothing in another, whose largest score is 12. So each row counts in units
of its own softmax sum, exp(L) with L = logsumexp of its scores.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev as cheb
from torch import Tensor

from .families import ChebyshevPolynomial, check_exp, on_interval
from .polynomials import check_order, taylor

CRITERIA = ("weight", "score")


@dataclass(frozen=True, eq=False)
class ObservedScores:
    """The scores that the queries of one head gave, and the logarithm of each one's row sum.

    Attributes:
        score: (n,) float64, all visible pairs, row after row.
        log_sum: (n,) float64, logsumexp of the row of each.
        low, high: the lowest and the highest score.

    Example:
        >>> import torch
        >>> observed = observe(torch.tensor([[2.0, -torch.inf], [1.0, -3.0]]))
        >>> observed.score.tolist(), observed.low, observed.high
        ([2.0, 1.0, -3.0], -3.0, 2.0)
    """

    score: np.ndarray
    log_sum: np.ndarray

    @property
    def low(self) -> float:
        return float(self.score.min())

    @property
    def high(self) -> float:
        return float(self.score.max())

    def share_outside(self, low: float, high: float) -> float:
        """The share of the scores that lie outside of an interval."""
        return float(((self.score < low) | (self.score > high)).mean())


def observe(scores: Tensor) -> ObservedScores:
    """The visible scores of one head, from (..., T_q, T_k) with minus infinity at hidden keys.

    Raises:
        ValueError: if no key is visible, all visible scores are equal, one is not finite, or the
            highest is not between -700 and 700.
    """
    scores = scores.detach().double().cpu()
    visible = scores != -math.inf
    if not scores[visible].isfinite().all():
        raise ValueError("scores must be finite, or minus infinity at hidden keys; got NaN or inf")
    log_sum = scores.logsumexp(-1, keepdim=True).expand_as(scores)
    observed = ObservedScores(scores[visible].numpy(), log_sum[visible].numpy())
    if observed.score.size == 0 or observed.low == observed.high:
        raise ValueError(
            f"scores must hold at least two different visible ones, got {observed.score.size} "
            f"with {np.unique(observed.score).size} values"
        )
    check_exp("scores.max()", observed.high)
    return observed


def least_squares(
    order: int, observed: ObservedScores, criterion: str = "weight"
) -> ChebyshevPolynomial:
    """The polynomial with the smallest mean square error on observed scores.

    Where scores spread over about 50 and more, numpy's cutoff of small singular values keeps the
    fit from the optimum under "weight": for normal scores from -31 to 30 the error of order 12 is
    1.25 times the smallest, from -47 to 44 1.03 times, both measured against exact solutions.

    Args:
        order: the highest power kept.
        observed: the scores.
        criterion: "weight" for |p(s) - exp(s)| against the row's sum; "score" for all scores
            alike, against exp(high).

    Raises:
        ValueError: for another criterion, or an order that is not an integer >= 0.

    Example:
        >>> import torch
        >>> observed = observe(torch.linspace(-3, 1, 50).expand(2, 50))
        >>> best = least_squares(3, observed)
        >>> fit_error(best, observed) < fit_error(on_interval(taylor(3), -3.0, 1.0), observed)
        True
    """
    unit = _units(observed, criterion)
    basis = cheb.chebvander(_scaled(observed), check_order(order))
    terms = _solve(basis, observed.score - unit, observed.high - unit) * np.exp(observed.high)
    return ChebyshevPolynomial(observed.low, observed.high, (tuple(terms),))


def square(order: int, observed: ObservedScores, criterion: str = "weight") -> ChebyshevPolynomial:
    """A square q(s)^2 with q of half the order fitted to exp(s / 2) by least squares.

    With criterion "weight" the sum over a row is the squared distance of the square roots of the
    weights (Hellinger's, up to normalisation), which small errors in small weights do not spoil.

    Args:
        order: even.
        observed, criterion: as in `least_squares`.

    Raises:
        ValueError: for an odd order or another criterion.

    Example:
        >>> import torch
        >>> observed = observe(torch.linspace(-3, 1, 50).expand(2, 50))
        >>> square(4, observed).is_nonnegative
        True
    """
    if check_order(order) % 2:
        raise ValueError(f"order of a square must be even, got {order}")
    unit = _units(observed, criterion)
    basis = cheb.chebvander(_scaled(observed), order // 2)
    terms = _solve(basis, (observed.score - unit) / 2, (observed.high - unit) / 2)
    terms = terms * np.exp(observed.high / 2)
    return ChebyshevPolynomial(observed.low, observed.high, (tuple(terms),), is_squared=True)


def taylor_about_best_center(
    order: int, observed: ObservedScores, criterion: str = "weight"
) -> ChebyshevPolynomial:
    """The Taylor polynomial about the centre, of 41 in the interval, with the least `fit_error`.

    The error is taken at every eighth score.

    Example:
        >>> import torch
        >>> observed = observe(torch.linspace(-9, 3, 80).expand(2, 80))
        >>> best, about_0 = taylor_about_best_center(4, observed), on_interval(taylor(4), -9.0, 3.0)
        >>> fit_error(best, observed) < fit_error(about_0, observed)
        True
    """
    series = taylor(order)

    def error(center):
        return fit_error(lambda score: math.exp(center) * series(score - center), some, criterion)

    some = ObservedScores(observed.score[::8], observed.log_sum[::8])
    best = min(np.linspace(observed.low, observed.high, 41).tolist(), key=error)
    return on_interval(series, observed.low, observed.high, best)


def fit_error(polynomial, observed: ObservedScores, criterion: str = "weight") -> float:
    """The root of the mean square error that `least_squares` makes as small as it can.

    Example:
        >>> import torch
        >>> observed = observe(torch.tensor([[1.0, 1.0, 0.0]]))
        >>> round(fit_error(taylor(1), observed, "weight"), 3)
        0.091
    """
    unit = _units(observed, criterion)
    values = np.asarray(polynomial(observed.score)) * np.exp(-unit)
    return float(np.sqrt(np.mean((values - np.exp(observed.score - unit)) ** 2)))


def _units(observed: ObservedScores, criterion: str):
    """The logarithm of what an error is measured in, score by score."""
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}; got {criterion!r}")
    return (
        observed.log_sum if criterion == "weight" else np.full_like(observed.score, observed.high)
    )


def _scaled(observed: ObservedScores) -> np.ndarray:
    return (2 * observed.score - observed.low - observed.high) / (observed.high - observed.low)


def _solve(basis, log_target, log_weight) -> np.ndarray:
    """The c that makes |basis c - target / weight|, each row times its weight, smallest."""
    largest = log_weight.max()
    weight = np.exp(log_weight - largest)[:, None]
    terms, *_ = np.linalg.lstsq(basis * weight, np.exp(log_target - largest), rcond=None)
    return terms
