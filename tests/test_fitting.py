"""Fits to observed scores: nothing of their order does better by their own measure."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.polynomial import chebyshev as cheb

from softattn_lib import taylor
from softattn_lib.families import ChebyshevPolynomial, chebyshev, minimax, on_interval
from softattn_lib.fitting import (
    CRITERIA,
    fit_error,
    least_squares,
    observe,
    square,
    taylor_about_best_center,
)


def causal_scores(seed=0, size=12, spread=2.0, heads=2):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(heads, size, size, generator=generator, dtype=torch.float64) * spread
    return scores.masked_fill(torch.ones(size, size, dtype=torch.bool).triu(1), -torch.inf)


def changed(polynomial, size, seed):
    terms = np.array(polynomial.terms[0])
    change = np.random.default_rng(seed).standard_normal(len(terms)) * size * np.abs(terms).max()
    return ChebyshevPolynomial(
        polynomial.low, polynomial.high, (tuple(terms + change),), polynomial.is_squared
    )


def by_hand(polynomial, scores, criterion):
    """fit_error as its docstring says it, row by row."""
    squares, high = [], scores.max().item()
    for row in scores.flatten(0, -2):
        row = row[row > -torch.inf]
        unit = row.exp().sum() if criterion == "weight" else math.exp(high)
        squares += ((polynomial(row) - row.exp()) / unit).square().tolist()
    return math.sqrt(sum(squares) / len(squares))


# observe


def test_observe_keeps_visible_scores_and_their_row_sums():
    scores = causal_scores()
    observed = observe(scores)
    assert observed.score.shape == observed.log_sum.shape == (2 * 12 * 13 // 2,)
    assert observed.score.tolist() == scores[scores > -torch.inf].tolist()
    assert (observed.low, observed.high) == (observed.score.min(), observed.score.max())
    rows = [row[row > -torch.inf] for row in scores.flatten(0, 1)]
    sums = torch.cat([row.exp().sum().log().expand(len(row)) for row in rows])
    torch.testing.assert_close(torch.from_numpy(observed.log_sum), sums)


def test_observe_takes_any_floating_dtype_and_gradients():
    scores = torch.tensor([[0.5, 1.0], [2.0, -torch.inf]], requires_grad=True)
    for given_scores in (scores, scores.bfloat16(), scores.double()):
        observed = observe(given_scores)
        assert observed.score.dtype == observed.log_sum.dtype == np.float64
        assert observed.score.tolist() == [0.5, 1.0, 2.0]


def test_a_row_without_visible_keys_does_not_count():
    hidden = torch.full((1, 3), -torch.inf)
    observed = observe(torch.cat([torch.tensor([[1.0, 2.0, 3.0]]), hidden]))
    assert observed.score.tolist() == [1.0, 2.0, 3.0] and np.isfinite(observed.log_sum).all()


def test_share_outside():
    observed = observe(torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    assert observed.share_outside(0.0, 3.0) == 0
    assert observed.share_outside(0.5, 2.0) == 0.5
    assert observed.share_outside(5.0, 6.0) == 1


@pytest.mark.parametrize(
    "scores",
    [
        torch.full((2, 3), -torch.inf),
        torch.full((2, 3), 1.5),
        torch.zeros(0, 4),
        torch.tensor([[1.0, 2.0, math.nan]]),
        torch.tensor([[1.0, 2.0, math.inf]]),
    ],
    ids=["hidden", "equal", "empty", "nan", "inf"],
)
def test_scores_that_cannot_be_fitted(scores):
    with pytest.raises(ValueError, match=r"^scores "):
        observe(scores)


@pytest.mark.parametrize("highest", [-800.0, 800.0])
def test_scores_where_exp_is_no_float(highest):
    with pytest.raises(ValueError, match=rf"^scores\.max\(\) must be .* got {highest}"):
        observe(torch.tensor([[highest - 10, highest]]))


# fit_error


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_error_by_hand(criterion):
    scores = causal_scores()
    for polynomial in (taylor(2), minimax(3, -5.0, 5.0)):
        expected = by_hand(polynomial, scores, criterion)
        assert fit_error(polynomial, observe(scores), criterion) == pytest.approx(expected)


def test_the_criterion_is_weight_unless_said():
    observed = observe(causal_scores())
    assert fit_error(taylor(2), observed) == fit_error(taylor(2), observed, "weight")
    assert least_squares(2, observed) == least_squares(2, observed, "weight")
    assert square(2, observed) == square(2, observed, "weight")
    assert least_squares(2, observed) != least_squares(2, observed, "score")


@pytest.mark.parametrize("fit", [least_squares, square, taylor_about_best_center])
def test_an_unknown_criterion(fit):
    observed = observe(causal_scores())
    for criterion in ("weights", "output", ""):
        with pytest.raises(ValueError, match="criterion must be one of weight, score"):
            fit(2, observed, criterion)
    with pytest.raises(ValueError, match="criterion must be one of weight, score"):
        fit_error(taylor(2), observed, "weights")


@pytest.mark.parametrize("fit", [least_squares, square, taylor_about_best_center])
def test_orders_that_are_none(fit):
    for order in (-1, 2.0, True, "2"):
        with pytest.raises(ValueError, match=r"^order "):
            fit(order, observe(causal_scores()))


def test_a_square_has_an_even_order():
    for order in (1, 3):
        with pytest.raises(ValueError, match=f"^order .* even, got {order}"):
            square(order, observe(causal_scores()))


# The fits


@settings(max_examples=15)
@given(st.integers(0, 10), st.integers(0, 99), st.floats(0.2, 6), st.sampled_from(CRITERIA))
def test_no_polynomial_of_its_order_beats_least_squares(order, seed, spread, criterion):
    observed = observe(causal_scores(seed, spread=spread))
    ends = observed.low, observed.high
    best = least_squares(order, observed, criterion)
    assert (best.low, best.high) == ends and len(best.terms[0]) == order + 1
    rivals = [chebyshev(order, *ends), minimax(order, *ends), on_interval(taylor(order), *ends)]
    rivals += [taylor_about_best_center(order, observed, criterion)]
    rivals += [changed(best, size, seed) for size in (1e-6, 1e-3, 0.1)]
    if order % 2 == 0:
        rivals.append(square(order, observed, criterion))  # positive, and that costs
    error = fit_error(best, observed, criterion)
    assert all(error <= fit_error(p, observed, criterion) * (1 + 1e-7) + 1e-13 for p in rivals)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("order", [1, 4, 9])
def test_least_squares_in_exact_arithmetic(order, criterion):
    observed = observe(causal_scores(spread=3.0, heads=1))
    t = (2 * observed.score - observed.low - observed.high) / (observed.high - observed.low)
    unit = observed.log_sum if criterion == "weight" else observed.score * 0 + observed.high
    with mpmath.workdps(50):
        a = mpmath.matrix(cheb.chebvander(t, order).tolist())
        for row, u in enumerate(unit):
            a[row, :] *= mpmath.exp(observed.high - u)
        y = mpmath.matrix([mpmath.exp(s - u) for s, u in zip(observed.score, unit, strict=True)])
        rest = a * mpmath.lu_solve(a.T * a, a.T * y) - y
        smallest = float(mpmath.norm(rest)) / math.sqrt(len(y))
    got = fit_error(least_squares(order, observed, criterion), observed, criterion)
    assert got == pytest.approx(smallest, rel=1e-7)


@settings(max_examples=15)
@given(st.sampled_from([0, 2, 4, 8]), st.integers(0, 99), st.floats(0.2, 6))
def test_no_square_is_closer_in_square_roots(order, seed, spread):
    """`square` makes |q(s) - exp(s / 2)|^2 / exp(L) small: nothing near it is better."""
    observed = observe(causal_scores(seed, spread=spread))
    best = square(order, observed)
    assert best.is_squared and best.is_nonnegative and len(best.terms[0]) == order // 2 + 1

    def distance(p):
        root = ChebyshevPolynomial(p.low, p.high, p.terms)
        gap = root(observed.score) - np.exp(observed.score / 2)
        return np.mean(gap**2 * np.exp(-observed.log_sum))

    for size in (1e-6, 1e-3, 0.1):
        assert distance(best) <= distance(changed(best, size, seed)) * (1 + 1e-7) + 1e-26


def test_a_polynomial_is_found_again_when_exp_is_one():
    """On scores of a tiny interval order 6 leaves nothing: the fit is exp to float64."""
    observed = observe(causal_scores(spread=0.02))
    for polynomial in (least_squares(6, observed), square(12, observed)):
        assert fit_error(polynomial, observed) < 1e-13


def test_more_orders_are_never_worse():
    observed = observe(causal_scores(spread=3.0))
    for criterion in CRITERIA:
        errors = [fit_error(least_squares(n, observed, criterion), observed, criterion)
                  for n in range(12)]  # fmt: skip
        assert all(b <= a * (1 + 1e-9) for a, b in pairwise(errors))


def test_fits_of_wide_scores_are_finite():
    """Scores from about -70 to 20, as pretrained heads have them."""
    scores = causal_scores(size=16, spread=8.0) - 25
    scores[0, -1, 0], scores[1, -1, 1] = -70.0, 20.0
    observed = observe(scores)
    assert (observed.low, observed.high) == (-70, 20)
    for criterion in CRITERIA:
        for order in (0, 8, 24):
            for fit in (least_squares, square, taylor_about_best_center):
                polynomial = fit(order, observed, criterion)
                assert math.isfinite(fit_error(polynomial, observed, criterion))


def test_fewer_scores_than_coefficients():
    observed = observe(torch.tensor([[0.0, 1.0], [0.5, -torch.inf]]))
    assert fit_error(least_squares(6, observed), observed) < 1e-14
    assert fit_error(square(8, observed), observed) < 1e-14
    assert taylor_about_best_center(3, observed).order == 3


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_best_center_beats_other_centers(criterion):
    scores = torch.randn(1, 400, generator=torch.Generator().manual_seed(2)).sort().values * 3
    observed = observe(scores.expand(8, 400))  # 3,200 scores: every eighth are 50 of each row
    best = taylor_about_best_center(4, observed, criterion)
    error = fit_error(best, observed, criterion)
    for center in np.linspace(observed.low, observed.high, 9):
        rival = on_interval(taylor(4), observed.low, observed.high, center)
        assert error <= fit_error(rival, observed, criterion) * 1.02  # every eighth, not all


def test_the_best_center_is_a_taylor_polynomial():
    observed = observe(causal_scores())
    polynomial = taylor_about_best_center(3, observed)
    centers = np.linspace(observed.low, observed.high, 41)
    expected = [on_interval(taylor(3), observed.low, observed.high, c) for c in centers.tolist()]
    assert polynomial in expected
