"""Polynomials of the score: values, signs, and error bounds that hold and cannot be improved."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch

from softattn_lib import (
    Polynomial,
    order_for_tolerance,
    output_error_bound,
    parallel_attention,
    remainder_bound,
    softmax_attention,
    taylor,
    weight_error_bound,
)

RADII = (0.5, 1, 2, 3, 4, 5, 8, 10)


def exact_taylor(order, score):
    """sum_{n <= order} score^n / n! as a fraction."""
    return sum(Fraction(score) ** n / math.factorial(n) for n in range(order + 1))


@cache
def exact_exp(score):
    """exp as a fraction, with an error of about 1e-40."""
    if score < 0:
        return 1 / exact_exp(-score)
    return Fraction(round(exact_taylor(60 + 5 * math.ceil(score), score) * 10**40), 10**40)


def relative_error(order, score):
    return abs(exact_taylor(order, score) / exact_exp(score) - 1)


def grid(radius, steps=24):
    return [Fraction(radius) * i / steps for i in range(-steps, steps + 1)]


# Polynomial


def test_horner_on_tensors_and_numbers():
    p = Polynomial((3, -1, 0, 2))
    assert p(2) == 3 - 2 + 16
    assert p(Fraction(1, 2)) == 2.75
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        score = torch.tensor([[0.0, 1.0], [-1.0, 2.0]], dtype=dtype)
        assert p(score).dtype == dtype
        assert torch.equal(p(score), torch.tensor([[3, 4], [2, 17]], dtype=dtype))


def test_polynomials_are_values():
    p = Polynomial([1, 2, 0, 0])
    assert p == Polynomial((1.0, 2.0)) and hash(p) == hash(Polynomial((1.0, 2.0)))
    assert (p.order, p.coefficients, p.powers) == (1, (1.0, 2.0), (0, 1))
    assert Polynomial((0, 0)).coefficients == (0.0,) and Polynomial((0,)).powers == ()
    assert Polynomial((0, 0, 5)).powers == (2,)
    with pytest.raises(AttributeError):
        p.coefficients = (1.0,)


def test_derivative():
    assert Polynomial((5, 4, 3, 2)).derivative() == Polynomial((4, 6, 6))
    assert Polynomial((5,)).derivative() == Polynomial((0,))
    for order in range(1, 9):
        assert taylor(order).derivative() == taylor(order - 1)


@pytest.mark.parametrize(
    ("order", "minimum", "at"),
    [
        (2, 0.5, -1),
        (4, 0.2704, -1.596),
        (6, 0.1493, -2.181),
        (8, 0.0833, -2.759),
        (10, 0.0467, None),
    ],
)
def test_minima_of_even_orders(order, minimum, at):
    for radius in (5.0, 30.0, 300.0):
        assert taylor(order).minimum_on(radius) == pytest.approx(minimum, abs=5e-5)
    if at is not None:
        assert taylor(order)(at) == pytest.approx(minimum, abs=5e-5)
    assert taylor(order).minimum_on(0.25) == pytest.approx(float(exact_taylor(order, -0.25)))


@pytest.mark.parametrize("order", range(0, 14))
@pytest.mark.parametrize("radius", [0, 0.3, 2.5, 12.0])
def test_no_value_lies_under_the_minimum(order, radius):
    minimum = taylor(order).minimum_on(radius)
    lowest = min(float(exact_taylor(order, s)) for s in grid(radius, 200))
    assert minimum <= lowest * (1 + 1e-12 * (1 if lowest > 0 else -1))
    assert minimum == pytest.approx(lowest, rel=2e-2, abs=1e-3)


@pytest.mark.parametrize(
    ("coefficients", "radius", "minimum"),
    [
        ((0, -1, 0.5), 0.5, -0.375),  # the turning point at 1 lies outside, at the end, inside
        ((0, -1, 0.5), 1.0, -0.5),
        ((0, -1, 0.5), 3.0, -0.5),
        ((0, 3, -3, 1), 2.0, -26.0),  # a slope that touches zero without a turn
        ((4,), 7.0, 4.0),
        ((4, -2), 7.0, -10.0),
        ((-1, 0, -1), 2.0, -5.0),
        ((0, 0, 2, 0, -1), 1.5, -0.5625),  # two maxima, lowest at the ends
        ((1, 0, -2, 0, 1), 1.5, 0.0),  # (s^2 - 1)^2, lowest at two points inside
    ],
)
def test_minimum_by_hand(coefficients, radius, minimum):
    assert Polynomial(coefficients).minimum_on(radius) == pytest.approx(minimum, abs=1e-15)


def test_even_orders_are_positive_and_odd_ones_are_not():
    for order in range(0, 21):
        assert taylor(order).is_positive == taylor(order).is_nonnegative == (order % 2 == 0)


@pytest.mark.parametrize("spread", [1, 2, 4])
def test_the_minimum_keeps_denominators_away_from_zero(spread):
    """Even orders: they are at least t times the minimum, so need neither eps nor clamp."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 8, 64, 16, generator=generator, dtype=torch.float64)
    ones, count = torch.ones(8, 64, 1).double(), torch.arange(1, 65).double().unsqueeze(-1)
    options = {"normalizer": "none", "return_state": False}
    for order in (2, 4, 6, 8):
        total, _ = parallel_attention(spread * q, k, ones, kernel=taylor(order), **options)
        assert (total / count >= taylor(order).minimum_on(1e3)).all()
    total, _ = parallel_attention(spread * q, k, ones, kernel=taylor(3), **options)
    assert spread == 1 or (total <= 0).any()


@pytest.mark.parametrize(
    ("coefficients", "positive", "nonnegative"),
    [
        ((0, 0, 1), False, True),  # (q . k)^2
        ((0, 0, 0, 0, 1), False, True),
        ((0, 0, 0, 1), False, False),
        ((0, 1), False, False),
        ((1, 2, 1), False, True),  # (1 + s)^2
        ((1, 2, 1.0000000000000002), True, True),  # one rounding above it
        ((1, 2.0000000000000004, 1), False, False),  # one rounding below
        ((1, 0, -2, 0, 1), False, True),  # (1 - s^2)^2
        ((0, 0, 1, -2, 1), False, True),  # s^2 (1 - s)^2
        ((0, 0, 0, 0, 1, -2, 1), False, True),
        ((0, 0, 0, 1, -2, 1), False, False),  # s^3 (1 - s)^2
        ((-1, 0, -1), False, False),
        ((-1,), False, False),
        ((0,), False, True),
        ((2,), True, True),
    ],
)
def test_signs_are_decided_exactly(coefficients, positive, nonnegative):
    p = Polynomial(coefficients)
    assert (p.is_positive, p.is_nonnegative) == (positive, nonnegative)


# Taylor


def test_taylor_coefficients_are_rounded_once():
    for order in (0, 1, 5, 30):
        expected = tuple(float(Fraction(1, math.factorial(n))) for n in range(order + 1))
        assert taylor(order).coefficients == expected


@pytest.mark.parametrize("center", [-6.0, -1.0, 0.5, 3.0])
@pytest.mark.parametrize("order", [0, 1, 2, 5, 9])
def test_taylor_about_a_centre(order, center):
    """e^c sum (s - c)^n / n!, and every derivative at the centre is e^c."""
    p = taylor(order, center)
    for s in (-2.0, 0.0, 1.5, center):
        expected = float(exact_taylor(order, Fraction(s) - Fraction(center)) * exact_exp(center))
        size = sum(abs(c * s**n) for n, c in enumerate(p.coefficients))  # before terms cancel
        assert p(s) == pytest.approx(expected, abs=1e-14 * size)
    for _ in range(order + 1):
        size = sum(abs(c * center**n) for n, c in enumerate(p.coefficients))
        assert p(center) == pytest.approx(math.exp(center), abs=1e-14 * size)
        p = p.derivative()


def test_a_centre_moves_the_accuracy():
    at_three, at_zero = taylor(4, center=3.0), taylor(4)
    assert abs(at_three(3.5) - math.exp(3.5)) < 1e-3 * abs(at_zero(3.5) - math.exp(3.5))
    assert abs(at_three(0.0) - 1) > 0.1 and at_zero(0.0) == 1
    assert taylor(4, center=3.0).is_positive and not taylor(3, center=3.0).is_positive


# Bounds


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("order", [0, 1, 2, 3, 4, 7, 10, 26])
def test_weight_error_bound_is_attained_and_never_exceeded(order, radius):
    """Against fractions: nothing on the grid is above it, and s = -radius reaches it."""
    bound = weight_error_bound(order, radius)
    attained = relative_error(order, -Fraction(radius))
    assert bound == pytest.approx(float(attained), rel=1e-12)
    assert max(relative_error(order, s) for s in grid(radius)) == attained


@pytest.mark.parametrize("radius", RADII)
@pytest.mark.parametrize("order", [0, 1, 2, 5, 10, 26])
def test_remainder_bound_holds(order, radius):
    bound = remainder_bound(order, radius) * (1 + 1e-13)
    worst = max(abs(exact_exp(s) - exact_taylor(order, s)) for s in grid(radius))
    assert worst <= bound
    assert bound <= float(worst) * math.exp(radius) * (order + 2)  # and is no empty promise


def test_bounds_without_a_radius_or_out_of_range():
    assert weight_error_bound(3, 0) == remainder_bound(3, 0) == output_error_bound(3, 0, 5.0) == 0
    assert remainder_bound(2, 1e4) == weight_error_bound(2, 1e4) == math.inf
    assert output_error_bound(2, 4.0, 1.0) == math.inf


ORDERS = {  # for 10%, 1% and 0.1%
    0.5: (2, 4, 4),
    1: (4, 6, 6),
    2: (8, 8, 10),
    3: (10, 12, 14),
    4: (14, 16, 18),
    5: (18, 20, 22),
    8: (28, 30, 32),
    10: (36, 38, 38),
}


@pytest.mark.parametrize(("radius", "orders"), list(ORDERS.items()))
def test_order_for_tolerance(radius, orders):
    """The smallest even order, so that two less is too few."""
    for tolerance, order in zip((0.1, 0.01, 0.001), orders, strict=True):
        assert order_for_tolerance(tolerance, radius) == order
        assert relative_error(order, -Fraction(radius)) <= tolerance
        assert order == 0 or relative_error(order - 2, -Fraction(radius)) > tolerance
    assert order_for_tolerance(1.0, 0) == 0


def test_a_tolerance_that_is_met_exactly_is_met():
    tolerance = weight_error_bound(6, 2.0)
    assert order_for_tolerance(tolerance, 2.0) == 6
    assert order_for_tolerance(math.nextafter(tolerance, 0), 2.0) == 8


def test_errors_too_small_for_float64_are_zero():
    """All terms underflow; the series must end nevertheless."""
    assert weight_error_bound(200, 0.5) == 0.0
    assert order_for_tolerance(1e-300, 1.0) % 2 == 0


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
def test_output_error_bound_bounds_measured_errors(radius):
    """Random attention whose largest score is the radius, and the worst case built by hand."""
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        shapes = ((3, 11, 4), (3, 11, 4), (3, 11, 5))
        q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
        q = q * radius / (q @ k.mT).abs().max()
        softmax = softmax_attention(q, k, v, scale=1.0)
        for order in (2, 4, 6, 8):
            out, _ = parallel_attention(q, k, v, kernel=taylor(order), scale=1.0)
            error = (out - softmax).norm(dim=-1).max().item()
            assert error <= output_error_bound(order, radius, v.norm(dim=-1).max().item())
    # One key at -radius, one at 0, values that point apart: far closer to the bound than chance.
    scores = torch.tensor([[-radius], [0.0]], dtype=torch.float64)
    apart = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    one = torch.ones(1, 1, dtype=torch.float64)
    for order in (2, 4, 6, 8):
        options = {"scale": 1.0, "is_causal": False}
        out, _ = parallel_attention(one, scores, apart, kernel=taylor(order), **options)
        error = (out - softmax_attention(one, scores, apart, **options)).abs().item()
        bound = output_error_bound(order, radius, 1.0)
        assert bound / 20 < error <= bound or math.isinf(bound)


# Refusals


@pytest.mark.parametrize("order", [np.int64(4), np.uint8(4)])
def test_integers_of_numpy_are_orders(order):
    assert taylor(order) == taylor(4)
    assert remainder_bound(order, 1.0) == remainder_bound(4, 1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Polynomial(()), "coefficients is empty"),
        (lambda: Polynomial((1, math.nan)), "coefficients must be finite.*nan"),
        (lambda: Polynomial((1, math.inf)), "coefficients must be finite.*inf"),
        (lambda: taylor(-1), "order must be an integer >= 0, got -1"),
        (lambda: taylor(2.0), "order must be an integer >= 0, got 2.0"),
        (lambda: taylor(True), "order must be an integer >= 0, got True"),
        (lambda: taylor(2, center=math.inf), "center must be .*got inf"),
        (lambda: taylor(2, center=1000.0), "center must be .*got 1000"),
        (lambda: taylor(2, center=-1000.0), "center must be .*got -1000"),
        (lambda: taylor(2).minimum_on(-1), "radius must be finite and >= 0, got -1"),
        (lambda: taylor(2).minimum_on(math.inf), "radius must be finite and >= 0, got inf"),
        (lambda: remainder_bound(-2, 1.0), "order must be an integer >= 0, got -2"),
        (lambda: remainder_bound(2, -1.0), "radius must be finite and >= 0, got -1"),
        (lambda: weight_error_bound(2, math.nan), "radius must be finite and >= 0, got nan"),
        (lambda: output_error_bound(2, 1.0, -1.0), "max_value_norm must be finite.*got -1"),
        (lambda: order_for_tolerance(0.0, 1.0), "tolerance must be finite and > 0, got 0"),
        (lambda: order_for_tolerance(math.nan, 1.0), "tolerance must be finite and > 0, got nan"),
        (lambda: order_for_tolerance(0.1, -1.0), "radius must be finite and >= 0, got -1"),
    ],
)
def test_errors_name_the_argument_and_its_value(call, words):
    with pytest.raises(ValueError, match=words):
        call()
