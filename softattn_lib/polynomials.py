"""What replaces exp: polynomials in the score, how far they are from exp, and the order to choose.

The paper expands the exponential of the score s = q . k in its Taylor series,

    exp(s) = sum_{n >= 0} s^n / n!,

and keeps the orders 0..N. Everything here is about functions of one score; nothing knows about
queries, keys or time.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from numbers import Integral


@dataclass(frozen=True)
class Polynomial:
    """A polynomial of the score, p(s) = c_0 + c_1 s + ... + c_N s^N.

    Args:
        coefficients: c_0, c_1, ..., c_N, finite numbers, lowest power first. Zeros at the end are
            dropped, so that equal polynomials compare equal.

    Raises:
        ValueError: if there is no coefficient, or one is not finite.

    Example:
        >>> import torch
        >>> p = Polynomial((1, 1, 0.5))
        >>> p(torch.tensor([0.0, 1.0, -1.0]))
        tensor([1.0000, 2.5000, 0.5000])
        >>> p.order, p.is_positive, p.minimum_on(4.0)
        (2, True, 0.5)
    """

    coefficients: tuple[float, ...]

    def __post_init__(self):
        coefficients = [float(c) for c in self.coefficients]
        if not coefficients:
            raise ValueError("coefficients is empty; give at least the constant term, as in (1.0,)")
        if not all(math.isfinite(c) for c in coefficients):
            raise ValueError(f"coefficients must be finite numbers, got {self.coefficients}")
        while len(coefficients) > 1 and coefficients[-1] == 0:
            coefficients.pop()
        object.__setattr__(self, "coefficients", tuple(coefficients))

    def __call__(self, score):
        """p(score) by Horner's rule, for a tensor of any shape and floating dtype, or a number."""
        value = score * 0 + self.coefficients[-1]
        for coefficient in reversed(self.coefficients[:-1]):
            value = value * score + coefficient
        return value

    @property
    def order(self) -> int:
        """The highest power kept."""
        return len(self.coefficients) - 1

    @property
    def powers(self) -> tuple[int, ...]:
        """The powers with a nonzero coefficient, in rising order."""
        return tuple(n for n, c in enumerate(self.coefficients) if c != 0)

    def derivative(self) -> "Polynomial":
        """p'(s), one order lower (the zero polynomial for a constant)."""
        return Polynomial(tuple(n * c for n, c in enumerate(self.coefficients))[1:] or (0.0,))

    def minimum_on(self, radius: float) -> float:
        """The smallest value of p(s) for |s| <= radius, in exact arithmetic and rounded once.

        Raises:
            ValueError: if radius is negative or not finite.
        """
        end, slope = Fraction(_checked_radius(radius)), self.derivative()
        turns = [_bisect(slope, *ends) for ends, _ in _real_roots(slope, inf=-end, sup=end)]
        return float(min(_evaluate_exactly(self, s) for s in [-end, end, *turns]))

    @property
    def is_positive(self) -> bool:
        """Whether p(s) > 0 on the whole line, decided exactly for the stored coefficients."""
        return self.coefficients[-1] > 0 and not _real_roots(self)

    @property
    def is_nonnegative(self) -> bool:
        """Whether p(s) >= 0 on the whole line: no weight can be negative, and no sum can cancel."""
        if self.order == 0:
            return self.coefficients[0] >= 0
        return self.coefficients[-1] > 0 and all(m % 2 == 0 for _, m in _real_roots(self))


def taylor(order: int, center: float = 0.0) -> Polynomial:
    """The Taylor polynomial of exp about `center`, written in powers of s.

    e^c * sum_{n <= order} (s - c)^n / n!, with e^c included: it approximates exp(s) itself. Its
    coefficients are computed in exact arithmetic and rounded to float64 once.

    Source: the paper's derivation, exp(q . k) = sum_n (q . k)^n / n!, about 0.

    Raises:
        ValueError: if order is not an integer >= 0, or center is not between -700 and 700.

    Example:
        >>> taylor(3).coefficients
        (1.0, 1.0, 0.5, 0.16666666666666666)
        >>> abs(taylor(8, center=3.0)(3.0) - math.exp(3.0)) < 1e-12
        True
    """
    order = check_order(order)
    if not abs(center) <= 700:
        raise ValueError(f"center must be between -700 and 700, where exp is a float, got {center}")
    c, scale = Fraction(center), math.exp(center)
    tails = [Fraction(1)]  # tails[m] = sum_{j <= m} (-c)^j / j!
    for m in range(1, order + 1):
        tails.append(tails[-1] + (-c) ** m / math.factorial(m))
    exact = (tails[order - n] / math.factorial(n) for n in range(order + 1))
    return Polynomial(tuple(scale * float(value) for value in exact))


def power(order: int) -> Polynomial:
    """The pure power s^order.

    Raises:
        ValueError: if order is not an integer >= 0.

    Example:
        >>> power(2).coefficients
        (0.0, 0.0, 1.0)
    """
    return Polynomial((0,) * check_order(order) + (1,))


def remainder_bound(order: int, radius: float) -> float:
    """Lagrange's bound on |exp(s) - taylor(order)(s)| for |s| <= radius, an absolute error.

    radius^(N+1) / (N+1)! * e^radius; infinite where that leaves the range of float64.

    Example:
        >>> remainder_bound(2, 1.0) >= math.e - 2.5
        True
    """
    order, radius = check_order(order), _checked_radius(radius)
    if radius == 0:
        return 0.0
    return _exp((order + 1) * math.log(radius) - math.lgamma(order + 2) + radius)


def weight_error_bound(order: int, radius: float) -> float:
    """The worst relative error |p(s) / exp(s) - 1| of an unnormalised weight for |s| <= radius.

    p is taylor(order). The error is worst at s = -radius, where it is the integral of
    t^N e^t / N! from 0 to radius, summed here as a series of positive terms: this is the exact
    supremum, not only a bound. Infinite where it leaves the range of float64.

    Example:
        >>> round(weight_error_bound(4, 1.0), 6), round(abs(taylor(4)(-1.0) * math.e - 1), 6)
        (0.019356, 0.019356)
    """
    order, radius = check_order(order), _checked_radius(radius)
    if radius == 0:
        return 0.0
    log_radius, log_factorial = math.log(radius), math.lgamma(order + 1)
    total, k = 0.0, 0
    while True:
        n = order + 1 + k
        term = _exp(n * log_radius - log_factorial - math.lgamma(k + 1)) / n
        total += term
        if math.isinf(total) or (k > radius and term <= 1e-17 * total):
            return total
        k += 1


def output_error_bound(order: int, radius: float, max_value_norm: float) -> float:
    """The largest distance between the outputs of normalised taylor(order) and softmax attention.

    If every weight has relative error at most delta, the two weighted means of the values differ
    by at most 2 delta / (1 - delta) times the largest norm of a value. Infinite where delta >= 1.

    Args:
        order: the highest power kept.
        radius: the largest |score| of the row.
        max_value_norm: the largest Euclidean norm of a value.

    Raises:
        ValueError: if an argument is negative or not finite.

    Example:
        >>> output_error_bound(8, 1.0, 1.0) < 1e-4, output_error_bound(2, 4.0, 1.0)
        (True, inf)
    """
    if not (math.isfinite(max_value_norm) and max_value_norm >= 0):
        raise ValueError(f"max_value_norm must be finite and >= 0, got {max_value_norm}")
    delta = weight_error_bound(order, radius)
    return math.inf if delta >= 1 else 2 * delta / (1 - delta) * max_value_norm


def order_for_tolerance(tolerance: float, radius: float) -> int:
    """The smallest even order whose worst relative weight error for |s| <= radius is <= tolerance.

    Even, because even truncations of exp are positive everywhere and odd ones are not.

    Raises:
        ValueError: if tolerance is not a positive finite number, or radius is negative.

    Example:
        >>> order_for_tolerance(0.01, 1.0), order_for_tolerance(0.01, 5.0)
        (6, 20)
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise ValueError(f"tolerance must be finite and > 0, got {tolerance}")
    order = 0
    while weight_error_bound(order, radius) > tolerance:
        order += 2
    return order


def check_order(order, name: str = "order") -> int:
    """The order as an int, if it is an integer >= 0; numpy's integers are."""
    if not isinstance(order, Integral) or isinstance(order, bool) or order < 0:
        raise ValueError(f"{name} must be an integer >= 0, got {order!r}")
    return int(order)


def _checked_radius(radius) -> float:
    if not (math.isfinite(radius) and radius >= 0):
        raise ValueError(f"radius must be finite and >= 0, got {radius}")
    return float(radius)


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 709.0 else math.inf


@lru_cache(maxsize=256)
def _real_roots(polynomial: Polynomial, **bounds) -> list:
    """Exact ((low, high), multiplicity) around each distinct real root; no floating point."""
    if polynomial.order == 0:
        return []
    import sympy  # here, because it takes longer to import than everything else in this package

    terms = {(n,): sympy.Rational(c) for n, c in enumerate(polynomial.coefficients)}
    return sympy.Poly(terms, sympy.Symbol("s"), domain="QQ").intervals(**bounds)


def _bisect(polynomial: Polynomial, low, high) -> Fraction:
    """The only root between low and high, to about 1e-16 of the interval."""
    low, high = Fraction(str(low)), Fraction(str(high))
    rising = _evaluate_exactly(polynomial, high) >= 0
    for _ in range(54):
        middle = (low + high) / 2
        if (_evaluate_exactly(polynomial, middle) >= 0) == rising:
            high = middle
        else:
            low = middle
    return high


def _evaluate_exactly(polynomial: Polynomial, score: Fraction) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(polynomial.coefficients):
        value = value * score + Fraction(coefficient)
    return value
