"""Polynomials for an interval: how they are evaluated, how good they are, what they promise."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softattn_lib import Polynomial, taylor
from softattn_lib.families import (
    ChebyshevPolynomial,
    chebyshev,
    chebyshev_basis,
    chebyshev_error_bound,
    digits_lost,
    interval_error,
    minimax,
    on_interval,
    square_of,
    taylor_about_middle,
)
from softattn_lib.polynomials import power

INTERVALS = [(-70.0, 20.0), (-0.1, 0.1), (-8.0, 8.0), (-3.0, 1.0), (2.0, 5.0)]
FAMILIES = [chebyshev, minimax, taylor_about_middle]
numbers = st.floats(-3, 3, allow_subnormal=False)


@st.composite
def chebyshev_polynomials(draw, highest=8, is_squared=None):
    low = draw(st.floats(-20, 5))
    high = low + draw(st.floats(0.5, 30))
    terms = draw(st.lists(st.lists(numbers, min_size=1, max_size=highest + 1), max_size=3))
    squared = draw(st.booleans()) if is_squared is None else is_squared
    return ChebyshevPolynomial(low, high, tuple(map(tuple, terms)) or ((1.0,),), squared)


def exactly(polynomial, score):
    """The value by the definition T_k+1 = 2 t T_k - T_k-1, in fractions."""
    low, high = Fraction(polynomial.low), Fraction(polynomial.high)
    t = (2 * Fraction(score) - low - high) / (high - low)
    values = []
    for term in polynomial.terms:
        now, ahead, value = Fraction(1), t, Fraction(0)
        for c in term:
            value, now, ahead = value + Fraction(c) * now, ahead, 2 * t * ahead - now
        values.append(value)
    return sum(v * v for v in values) if polynomial.is_squared else sum(values)


def alternations(polynomial, low, high):
    """How often the error takes 0.1 % of its largest value, with alternating signs."""
    scores = (low + high) / 2 - (high - low) / 2 * np.cos(np.linspace(0, np.pi, 4001))
    error = polynomial(scores) - np.exp(scores)
    signs = np.sign(error[np.abs(error) >= 0.999 * np.abs(error).max()])
    return 1 + np.count_nonzero(np.diff(signs))


# ChebyshevPolynomial


@given(chebyshev_polynomials(), st.floats(0, 1))
def test_a_score_is_evaluated_as_defined(polynomial, place):
    score = polynomial.low + place * (polynomial.high - polynomial.low)
    size = sum(sum(map(abs, term)) for term in polynomial.terms) + 1
    assert abs(polynomial(score) - float(exactly(polynomial, score))) <= 1e-13 * size**2


@given(chebyshev_polynomials(highest=5), st.floats(0, 1))
def test_the_coefficients_in_powers_are_the_same_polynomial(polynomial, place):
    score = polynomial.low + place * (polynomial.high - polynomial.low)
    powers = [Fraction(c) * Fraction(score) ** n for n, c in enumerate(polynomial.coefficients)]
    slack = 1e-14 * float(sum(map(abs, powers))) + 1e-300
    assert abs(float(sum(powers) - exactly(polynomial, score))) <= slack
    assert polynomial.order == len(polynomial.coefficients) - 1


@given(chebyshev_polynomials(is_squared=True))
def test_a_square_is_never_negative(polynomial):
    assert polynomial.is_nonnegative
    width = polynomial.high - polynomial.low
    for dtype in (torch.float32, torch.float64):
        scores = torch.linspace(polynomial.low - 9 * width, polynomial.high + 9 * width, 97)
        assert (polynomial(scores.to(dtype)) >= 0).all()


def test_what_is_no_square_can_be_negative():
    assert not ChebyshevPolynomial(-1.0, 1.0, ((1.0, 2.0),)).is_nonnegative
    assert not ChebyshevPolynomial(-1.0, 1.0, ((1.0, 0.0, 2.0),)).is_nonnegative  # 4 t^2 - 1
    assert ChebyshevPolynomial(-1.0, 1.0, ((3.0, 0.0, 2.0),)).is_nonnegative  # 4 t^2 + 1


def test_several_terms_add_up():
    one, two = (1.0, 2.0), (0.0, 0.5, -1.0)
    both = ChebyshevPolynomial(-2.0, 3.0, (one, two), is_squared=True)
    alone = [ChebyshevPolynomial(-2.0, 3.0, (term,), is_squared=True) for term in (one, two)]
    assert both(1.3) == pytest.approx(alone[0](1.3) + alone[1](1.3), rel=1e-14)
    assert both.order == 4


def test_tensors_arrays_and_numbers():
    polynomial = ChebyshevPolynomial(-2.0, 2.0, ((1.0, 1.0, 0.5),))  # 1/2 + s/2 + s^2/4
    values = [0.5, 1.25, 0.25]
    assert [polynomial(s) for s in (0.0, 1, -1.0)] == values
    array = polynomial(np.array([[0.0], [1.0], [-1.0]]))
    assert array.dtype == np.float64 and array.tolist() == [[0.5], [1.25], [0.25]]
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tensor = polynomial(torch.tensor([0.0, 1.0, -1.0], dtype=dtype))
        assert tensor.dtype == dtype and tensor.tolist() == values
    constant = ChebyshevPolynomial(0.0, 1.0, ((2.0,),))
    assert constant(torch.zeros(2, 3)).tolist() == [[2.0] * 3] * 2


def test_gradients_go_through():
    score = torch.linspace(-3, 5, 6, dtype=torch.float64, requires_grad=True)
    polynomial = ChebyshevPolynomial(-2.0, 4.0, ((1.0, -1.0, 0.5), (0.3, 2.0)), is_squared=True)
    assert torch.autograd.gradcheck(polynomial, score)
    (slope,) = torch.autograd.grad(polynomial(score).sum(), score)
    torch.testing.assert_close(slope, polynomial.derivative()(score.detach()))


def test_equal_polynomials_are_equal():
    polynomial = ChebyshevPolynomial(-1, 3, [[1, 0.5]])
    same = ChebyshevPolynomial(-1.0, np.float32(3), ((1.0, 0.5),))
    assert polynomial == same and hash(polynomial) == hash(same)
    assert polynomial.terms == ((1.0, 0.5),) and type(same.high) is float
    others = [
        ChebyshevPolynomial(-1.0, 3.0, ((1.0, 0.5),), is_squared=True),
        ChebyshevPolynomial(-1.0, 3.5, ((1.0, 0.5),)),
        ChebyshevPolynomial(-1.0, 3.0, ((1.0, 0.25),)),
        Polynomial(polynomial.coefficients),
    ]
    assert all(polynomial != other for other in others)
    with pytest.raises(AttributeError):
        polynomial.low = 0.0


@pytest.mark.parametrize(
    ("low", "high", "terms", "name"),
    [
        (1.0, 1.0, ((1.0,),), "low"),
        (2.0, 1.0, ((1.0,),), "low"),
        (math.nan, 1.0, ((1.0,),), "low"),
        (0.0, math.inf, ((1.0,),), "low"),
        (0.0, 1.0, (), "terms"),
        (0.0, 1.0, ((1.0,), ()), "terms"),
        (0.0, 1.0, ((1.0, math.nan),), "terms"),
        (0.0, 1.0, ((math.inf,),), "terms"),
    ],
)
def test_what_is_no_polynomial(low, high, terms, name):
    with pytest.raises(ValueError, match=f"^{name} "):
        ChebyshevPolynomial(low, high, terms)


# The families


@pytest.mark.parametrize("order", [0, 1, 3, 8, 16, 32])
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_minimax_has_the_smallest_largest_error(low, high, order):
    best = minimax(order, low, high)
    error = interval_error(best, low, high)
    assert best.order <= order and len(best.terms[0]) == order + 1
    rivals = [chebyshev(order, low, high)]
    rivals += [on_interval(taylor(order), low, high, c) for c in np.linspace(low, high, 5)]
    rng = np.random.default_rng(order)
    for size in (1e-4, 0.01, 0.3):
        change = size * error * math.exp(high) * rng.standard_normal(order + 1)
        rivals.append(ChebyshevPolynomial(low, high, (tuple(best.terms[0] + change),)))
    assert all(error <= interval_error(p, low, high) + 3e-13 for p in rivals)


@pytest.mark.parametrize("order", [0, 1, 2, 5, 16, 32])
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_the_error_of_minimax_alternates(low, high, order):
    best = minimax(order, low, high)
    if interval_error(best, low, high) > 1e-11:  # below it, float64 shows only rounding
        assert alternations(best, low, high) == order + 2


@settings(max_examples=20)
@given(st.integers(0, 20), st.floats(-60, 20), st.floats(0.2, 60))
def test_minimax_alternates_on_any_interval(order, low, width):
    best = minimax(order, low, low + width)
    if interval_error(best, low, low + width) > 1e-11:
        assert alternations(best, low, low + width) == order + 2


def test_minimax_of_a_constant_and_a_line():
    """By hand: a constant half way; the line parallel to the chord, half way to the tangent."""
    assert minimax(0, 0.0, 1.0)(0.3) == pytest.approx((1 + math.e) / 2, rel=1e-12)
    line, slope = minimax(1, 0.0, 1.0), math.e - 1
    touch = math.log(slope)
    gap = (1 + slope * touch - slope) / 2
    assert line(0.0) == pytest.approx(1 - gap, rel=1e-6)
    assert line(1.0) - line(0.0) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("order", [0, 2, 7, 20])
@pytest.mark.parametrize(("low", "high"), INTERVALS)
def test_the_bound_of_a_chebyshev_series_holds(low, high, order):
    error = interval_error(chebyshev(order, low, high), low, high)
    bound = chebyshev_error_bound(order, low, high) * math.exp(-high)
    assert error <= bound + 1e-14
    assert bound <= 40 * error + 1e-13  # and it says something


def test_the_series_of_exp_by_quadrature():
    terms = chebyshev(6, -3.0, 1.0).terms[0]
    angles = (np.arange(64) + 0.5) * np.pi / 64
    values = np.exp(-1 + 2 * np.cos(angles))
    for k, c in enumerate(terms):
        assert c == pytest.approx((1 + (k > 0)) * np.mean(values * np.cos(k * angles)), rel=1e-13)


def test_a_narrow_interval_gives_the_digits_of_float64():
    for family in FAMILIES:
        assert interval_error(family(12, -0.1, 0.1), -0.1, 0.1) < 1e-15


@pytest.mark.parametrize("order", [0, 1, 4, 9, 16])
def test_a_polynomial_in_chebyshev_form_is_the_same(order):
    for low, high in ((-3.0, 1.0), (-1.0, 1.0), (0.25, 7.0)):
        got = on_interval(taylor(order), low, high)
        assert len(got.terms[0]) == order + 1
        assert got.coefficients == pytest.approx(taylor(order).coefficients, rel=1e-6, abs=1e-14)
        scores = torch.linspace(low, high, 9, dtype=torch.float64)
        torch.testing.assert_close(got(scores), taylor(order)(scores), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("order", [8, 20, 32])
def test_a_series_keeps_its_digits_about_its_centre_however_wide_the_interval(order):
    series = on_interval(taylor(order), -62.0, 10.0, center=-3.0)
    for score in (-62.0, -20.0, -3.0, -0.3, 10.0):
        exact = sum((Fraction(score) + 3) ** n / math.factorial(n) for n in range(order + 1))
        assert series(score) == pytest.approx(float(exact) * math.exp(-3), rel=1e-4)
    assert (series.low, series.high) == (-62.0, 10.0)


def test_low_orders_come_back_exactly():
    assert on_interval(taylor(2), -1.0, 3.0).coefficients == taylor(2).coefficients
    assert on_interval(power(3), -2.0, 2.0).coefficients == power(3).coefficients
    assert on_interval(Polynomial((0.0,)), 0.0, 1.0).coefficients == (0.0,)


@given(st.integers(0, 10), st.floats(-10, 5), st.floats(0.5, 9))
def test_taylor_about_the_middle(order, low, width):
    polynomial = taylor_about_middle(order, low, low + width)
    middle = (low + low + width) / 2
    assert polynomial(middle) == pytest.approx(math.exp(middle), rel=1e-11)
    for score in (low, low + width, low + 0.3 * width):
        direct = math.exp(middle) * taylor(order)(score - middle)
        assert abs(polynomial(score) - direct) <= 1e-12 * math.exp(low + width)


@settings(max_examples=30)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=6), st.floats(-6, 2), st.floats(0.5, 6))
def test_the_bound_of_a_square_holds(terms, low, width):
    half = ChebyshevPolynomial(low, low + width, (tuple(terms),))
    scores = np.linspace(low, low + width, 501)
    a = np.abs(half(scores) - np.exp(scores / 2)).max()
    error = np.abs(square_of(half)(scores) - np.exp(scores)).max()
    assert error <= a * (2 * math.exp((low + width) / 2) + a) * (1 + 1e-12)


def test_a_square_needs_one_term_that_is_not_squared():
    half = ChebyshevPolynomial(-1.0, 1.0, ((1.0, 0.5),))
    assert square_of(half)(0.7) == half(0.7) ** 2
    with pytest.raises(ValueError, match=r"^half "):
        square_of(square_of(half))
    with pytest.raises(ValueError, match=r"^half "):
        square_of(ChebyshevPolynomial(-1.0, 1.0, ((1.0,), (0.5,))))


@pytest.mark.parametrize("family", [*FAMILIES, chebyshev_error_bound])
def test_orders_and_intervals_that_are_none(family):
    for order in (-1, 2.0, True, "2", None):
        with pytest.raises(ValueError, match=r"^order "):
            family(order, -1.0, 1.0)
    for low, high in ((1.0, 1.0), (2.0, 1.0), (math.nan, 1.0), (-math.inf, 1.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match=r"^low and high "):
            family(2, low, high)


def test_the_ends_may_be_tensors():
    low, high = torch.tensor(-1.0), torch.tensor(2.0)
    assert minimax(3, low, high) == minimax(3, -1.0, 2.0)


@pytest.mark.parametrize("family", [chebyshev, minimax])
def test_powers_of_the_score_that_no_float_holds(family):
    with pytest.raises(ValueError, match=r"^low and high are 600\.0 and 700\.0: "):
        family(8, 600, 700)


@pytest.mark.parametrize("center", [701, -701, math.nan, math.inf])
def test_centers_where_exp_is_no_float(center):
    with pytest.raises(ValueError, match=r"^center "):
        on_interval(taylor(2), -1.0, 1.0, center)


def test_intervals_where_exp_is_no_float():
    for low, high in ((700.0, 800.0), (-1.0, 710.0), (-800.0, -750.0)):
        for family in (chebyshev, minimax, chebyshev_error_bound):
            with pytest.raises(ValueError, match=rf"^high must be between .* got {high}"):
                family(2, low, high)
        with pytest.raises(ValueError, match=rf"^high must be between .* got {high}"):
            interval_error(taylor(2), low, high)
    with pytest.raises(ValueError, match=r"^low must be between -700 and 700, .* got -800\.0"):
        interval_error(taylor(2), -800.0, 1.0, relative=True)
    assert math.isfinite(interval_error(taylor(2), -800.0, 1.0))
    with pytest.raises(ValueError, match=r"^low and high "):
        interval_error(taylor(2), 1.0, -1.0)


# Errors


def test_errors_by_hand():
    assert interval_error(taylor(0), 0.0, 2.0) == pytest.approx(1 - math.exp(-2))
    assert interval_error(taylor(0), 0.0, 2.0, relative=True) == pytest.approx(1 - math.exp(-2))
    assert interval_error(taylor(1), -2.0, 0.0) == pytest.approx(1 + math.exp(-2))
    assert interval_error(taylor(1), -2.0, 0.0, relative=True) == pytest.approx(1 + math.exp(2))
    assert interval_error(taylor(0), -2.0, 1.0) == pytest.approx((math.e - 1) / math.e)
    assert interval_error(taylor(0), -2.0, 1.0, relative=True) == pytest.approx(math.exp(2) - 1)


def test_digits_are_lost_on_an_interval():
    for low, high in ((math.nan, 1.0), (1.0, 1.0), (0.0, math.inf)):
        with pytest.raises(ValueError, match=r"^low and high "):
            digits_lost(taylor(2), low, high)


def test_digits_are_lost_where_terms_cancel():
    assert digits_lost(Polynomial((1.0, 1.0)), 0.0, 4.0) == 0
    assert digits_lost(Polynomial((1.001, 1.0)), -1.0, 0.0) == pytest.approx(math.log10(2001))
    assert digits_lost(Polynomial((1.0, 1.0)), -1.0, 0.0) == math.inf  # 1 + s is 0 at -1
    assert digits_lost(power(1), 0.0, 1.0) == 0  # 0 / 0 at a score of 0 loses nothing


@pytest.mark.parametrize(("order", "radius"), [(8, 2.0), (16, 6.0), (20, 8.0), (24, 11.0)])
def test_float32_loses_those_digits(order, radius):
    scores = torch.linspace(-radius, radius, 2001, dtype=torch.float64)
    powers = (scores.float().unsqueeze(-1) ** torch.arange(order + 1)) @ torch.tensor(
        taylor(order).coefficients, dtype=torch.float32
    )
    exact = taylor(order)(scores.float().double())
    seen = ((powers.double() - exact) / exact).abs().max().log10().item()
    expected = digits_lost(taylor(order), -radius, radius) + math.log10(2.0**-24)
    print(f"order {order}: relative error 1e{seen:.1f}, from the digits lost 1e{expected:.1f}")
    assert expected - 1 < seen < expected + 1


def test_clenshaw_does_not_lose_them():
    polynomial = minimax(20, -16.0, 4.0)
    assert digits_lost(polynomial, -16.0, 4.0) > 8
    scores = torch.linspace(-16, 4, 999, dtype=torch.float64)
    error = (polynomial(scores.float()).double() - polynomial(scores)).abs().max()
    assert error < 1e-5 * math.exp(4)


def test_the_basis_is_that_of_numpy():
    t = np.linspace(-1.5, 1.5, 7)
    for count in (1, 2, 6):
        expected = np.polynomial.chebyshev.chebvander(t, count - 1)
        np.testing.assert_allclose(np.stack(chebyshev_basis(t, count), -1), expected, rtol=1e-12)
