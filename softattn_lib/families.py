"""Other polynomials in place of exp: families for an interval, and what each promises there.

Any polynomial of the score has the same recurrent state as the Taylor polynomial of its order, so
the coefficients are free to choose. What is known of the scores decides: an interval that holds
them (Taylor about its middle, Chebyshev, minimax), or the scores themselves
(`softattn_lib.fitting`). All are written in Chebyshev polynomials of the interval, which keeps
their digits where powers of the score lose them.
"""

import math
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.polynomial import chebyshev as cheb

from .polynomials import Polynomial, check_order, taylor

GRID = 4001  # points of an interval at which errors are measured


@dataclass(frozen=True)
class ChebyshevPolynomial(Polynomial):
    """A polynomial of the score given by Chebyshev coefficients on an interval.

    p(s) = q_1(t) + q_2(t) + ..., or the sum of their squares, with q_i(t) = sum_k c_ik T_k(t) and
    t = (2 s - low - high) / (high - low), which runs from -1 to 1, or the same for the ends of a
    `basis`. Squares are positive for every score, whatever the rounding. `coefficients`, in powers
    of s, is derived in exact arithmetic; the features of a recurrent state use it, a score is
    evaluated by Clenshaw's rule without it.

    Args:
        low, high: the ends of the interval that p is for, in units of the score.
        terms: the coefficients c_i of each q_i, lowest first.
        is_squared: whether p is the sum of q_i ** 2.
        basis: another interval to write p on, where p is huge on its own: there small values drown
            in the rounding of large ones. None for (low, high).

    Raises:
        ValueError: if low < high does not hold, or there is no coefficient, or one is not finite,
            also of those in powers of s.

    Example:
        >>> p = ChebyshevPolynomial(-1.0, 3.0, ((1.0, 0.5),), is_squared=True)  # (1 + t/2)^2
        >>> p.order, p(1.0), p.coefficients  # t = (s - 1) / 2
        (2, 1.0, (0.5625, 0.375, 0.0625))
    """

    coefficients: tuple[float, ...] = field(init=False, compare=False, repr=False)
    low: float
    high: float
    terms: tuple[tuple[float, ...], ...]
    is_squared: bool = False
    basis: tuple[float, float] | None = None

    def __post_init__(self):
        for name, end in zip(("low", "high"), _check_interval(self.low, self.high), strict=True):
            object.__setattr__(self, name, end)
        basis = (self.low, self.high) if self.basis is None else _check_interval(*self.basis)
        object.__setattr__(self, "basis", basis)
        terms = tuple(tuple(float(c) for c in term) for term in self.terms)
        if not terms or not all(terms):
            raise ValueError(f"terms must hold at least one coefficient each, got {self.terms}")
        if not all(math.isfinite(c) for term in terms for c in term):
            raise ValueError(f"terms must be finite numbers, got {self.terms}")
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "coefficients", self._in_powers())
        super().__post_init__()

    def __call__(self, score):
        """p(score) by Clenshaw's rule, for a floating point tensor of any shape, or a number."""
        low, high = self.basis
        t = (score - (low + high) / 2) * (2 / (high - low))
        values = [clenshaw(t, term) for term in self.terms]
        return sum(value * value for value in values) if self.is_squared else sum(values)

    @property
    def is_nonnegative(self) -> bool:
        """Whether p(s) >= 0 on the whole line; a sum of squares is, exactly."""
        return self.is_squared or super().is_nonnegative

    def _in_powers(self) -> tuple[float, ...]:
        """The coefficients in powers of s, exact until they are rounded once."""
        low, high = map(Fraction, self.basis)
        t = [-(high + low) / (high - low), 2 / (high - low)]
        total = [Fraction(0)]
        for term in self.terms:
            q = _chebyshev_in(t, [Fraction(c) for c in term])
            total = _add(total, _multiply(q, q) if self.is_squared else q)
        try:
            return tuple(float(c) for c in total)
        except OverflowError:
            raise ValueError(
                f"low and high are {self.low} and {self.high}: so far from 0 the coefficients in "
                "powers of s are too large for float64; subtract a constant from the scores"
            ) from None


def digits_lost(polynomial: Polynomial, low: float, high: float) -> float:
    """Decimal digits that powers of the score lose on an interval, at the worst score there.

    log10 of sum_n |c_n s^n| / |p(s)|: the sum of features holds terms that large and they cancel.
    float32 has 7 digits, float64 16. Where more are lost, take the parallel form of a
    `ChebyshevPolynomial`, which does not add powers; a state cannot.

    Raises:
        ValueError: if low < high does not hold.

    Example:
        >>> round(digits_lost(taylor(20), -8.0, 8.0)), digits_lost(taylor(20), 0.0, 8.0) < 1e-9
        (5, True)
    """
    scores = _grid(*_check_interval(low, high))
    powers = np.abs(scores)[:, None] ** np.arange(polynomial.order + 1)
    terms = powers @ np.abs(polynomial.coefficients)
    values = np.abs(_values(polynomial, scores))
    with np.errstate(divide="ignore"):  # where all terms are 0, none cancel
        lost = np.divide(terms, values, out=np.ones_like(terms), where=terms > 0)
    return float(np.log10(lost).max())


def interval_error(
    polynomial: Polynomial, low: float, high: float, relative: bool = False
) -> float:
    """The largest |p(s) - exp(s)| for low <= s <= high, measured at 4,001 scores.

    Args:
        polynomial: the polynomial of the score.
        low, high: the ends of the interval.
        relative: divide by exp(s), the error of a weight; else by exp(high), the error in units of
            the largest weight.

    Raises:
        ValueError: if low < high does not hold, or an end whose exp is divided by is not between
            -700 and 700.

    Example:
        >>> round(interval_error(taylor(2), -1.0, 1.0), 3)  # (e - 2.5) / e
        0.08
    """
    low, high = _check_interval(low, high)
    check_exp("high", high)
    if relative:
        check_exp("low", low)
    scores = _grid(low, high)
    unit = scores if relative else high
    return float(np.abs((_values(polynomial, scores) - np.exp(scores)) * np.exp(-unit)).max())


def chebyshev(order: int, low: float, high: float) -> ChebyshevPolynomial:
    """The Chebyshev series of exp on an interval, cut after `order`.

    Its largest error there is at most `chebyshev_error_bound`, and close to that of `minimax`.
    Source: exp(m + w t) = e^m (I_0(w) + 2 sum_k I_k(w) T_k(t)), I_k the modified Bessel functions.

    Raises:
        ValueError: if order is not an integer >= 0, low < high does not hold, or high is not
            between -700 and 700.

    Example:
        >>> p = chebyshev(4, -3.0, 1.0)
        >>> interval_error(p, -3.0, 1.0) * math.exp(1.0) <= chebyshev_error_bound(4, -3.0, 1.0)
        True
    """
    low, high = _check_interval(low, high)
    check_exp("high", high)
    coefficients = _bessel_terms(check_order(order), low, high)
    return ChebyshevPolynomial(low, high, (tuple(coefficients),))


def chebyshev_error_bound(order: int, low: float, high: float) -> float:
    """The sum of the coefficients that `chebyshev` leaves out: its error is at most that.

    Absolute, as |p(s) - exp(s)|. The series is summed until it no longer changes.

    Raises:
        ValueError: as `chebyshev`.

    Example:
        >>> chebyshev_error_bound(20, -1.0, 1.0) < 1e-20
        True
    """
    low, high = _check_interval(low, high)
    check_exp("high", high)
    total, k = 0.0, check_order(order) + 1
    while True:
        term = _bessel_term(k, low, high)
        if total + term == total:
            return total
        total, k = total + term, k + 1


def minimax(order: int, low: float, high: float) -> ChebyshevPolynomial:
    """The polynomial with the smallest largest error |p(s) - exp(s)| on an interval.

    Found by Remez' exchange: the error takes its largest value with alternating signs at order + 2
    scores. In the units of exp(high) float64 resolves errors down to about 1e-12; where the
    Chebyshev series is already there, it is returned.

    Raises:
        ValueError: as `chebyshev`.

    Example:
        >>> best, taylors = minimax(3, -2.0, 2.0), taylor(3)
        >>> interval_error(best, -2.0, 2.0) < interval_error(taylors, -2.0, 2.0) / 5
        True
    """
    series = chebyshev(order, low, high)
    low, high = series.low, series.high
    if chebyshev_error_bound(order, low, high) <= 1e-12 * math.exp(high):
        return series
    t = _grid(-1.0, 1.0)
    target = np.exp((t - 1) * (high - low) / 2)  # in units of exp(high)
    peaks = np.cos(np.pi * np.arange(order + 1, -1, -1) / (order + 1))
    peaks = np.abs(t[:, None] - peaks).argmin(0)
    for _ in range(30):
        signs = (-1.0) ** np.arange(order + 2)
        system = np.column_stack([cheb.chebvander(t[peaks], order), signs])
        *terms, level = np.linalg.solve(system, target[peaks])
        error = cheb.chebval(t, terms) - target
        if np.abs(error).max() <= abs(level) * (1 + 1e-9):
            break
        peaks = _alternation(error, order + 2)
    return ChebyshevPolynomial(low, high, (tuple(np.array(terms) * math.exp(high)),))


def taylor_about_middle(order: int, low: float, high: float) -> ChebyshevPolynomial:
    """The Taylor polynomial about the middle of an interval, in Chebyshev form.

    Example:
        >>> p = taylor_about_middle(2, -1.0, 1.0)
        >>> [round(c, 12) for c in p.coefficients]
        [1.0, 1.0, 0.5]
    """
    return on_interval(taylor(order), low, high, center=(low + high) / 2)


def on_interval(
    polynomial: Polynomial, low: float, high: float, center: float = 0.0
) -> ChebyshevPolynomial:
    """exp(center) * polynomial(s - center) for an interval, exact until rounded once.

    It is written on center - 1 to center + 1, since a series is small there and may be huge at the
    ends of the interval.

    Raises:
        ValueError: if low < high does not hold, or center is not between -700 and 700.

    Example:
        >>> on_interval(taylor(2), -1.0, 3.0)(2.0)
        5.0
    """
    low, high = _check_interval(low, high)
    check_exp("center", center)
    powers = [Fraction(c) for c in polynomial.coefficients]
    terms = [float(c) * math.exp(center) for c in _powers_to_chebyshev(powers)]
    return ChebyshevPolynomial(low, high, (tuple(terms),), basis=(center - 1, center + 1))


def square_of(half: ChebyshevPolynomial) -> ChebyshevPolynomial:
    """The square of an approximation of exp(s / 2): it approximates exp(s) and is never negative.

    With |q - exp(s/2)| <= a, |q^2 - exp(s)| <= a (2 exp(high/2) + a).

    Args:
        half: q(s), of half the order, given as one term that is not squared.

    Raises:
        ValueError: if half is squared, or has more than one term.

    Example:
        >>> p = square_of(ChebyshevPolynomial(-2.0, 2.0, ((1.0, 1.0),)))  # (1 + s/2)^2
        >>> p.coefficients, p.is_nonnegative
        ((1.0, 1.0, 0.25), True)
    """
    if half.is_squared or len(half.terms) > 1:
        raise ValueError(f"half must have one term that is not squared, got {half}")
    return ChebyshevPolynomial(half.low, half.high, half.terms, is_squared=True)


def _check_interval(low: float, high: float) -> tuple[float, float]:
    """The ends as floats, if they are those of an interval."""
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low and high must be finite, low < high; got {low}, {high}")
    return float(low), float(high)


def check_exp(name: str, score: float) -> None:
    """exp(score) and its inverse are floats, with room for factors."""
    if not abs(score) <= 700:
        raise ValueError(f"{name} must be between -700 and 700, where exp is a float, got {score}")


def _grid(low: float, high: float) -> np.ndarray:
    """Points of an interval, dense at its ends as the alternations of minimax are."""
    return (low + high) / 2 - (high - low) / 2 * np.cos(np.linspace(0, np.pi, GRID))


def _values(polynomial: Polynomial, scores: np.ndarray) -> np.ndarray:
    return np.asarray(polynomial(scores))


def clenshaw(t, coefficients):
    """sum_k c_k T_k(t) by Clenshaw's rule; t and the c_k are numbers, arrays or tensors.

    Example:
        >>> clenshaw(0.5, (1.0, 0.0, 2.0))  # 1 + 2 T_2(t) = 4 t^2 - 1
        0.0
    """
    ahead, value = 0.0, t * 0 + coefficients[-1]
    if len(coefficients) == 1:
        return value
    for coefficient in coefficients[-2:0:-1]:
        value, ahead = 2 * t * value - ahead + coefficient, value
    return t * value - ahead + coefficients[0]


def chebyshev_basis(t, count: int) -> list:
    """T_0(t), ..., T_{count-1}(t), for t an array or a tensor.

    Example:
        >>> chebyshev_basis(np.array(0.5), 3)[2]  # 2 t^2 - 1
        np.float64(-0.5)
    """
    basis = [t**0, t]
    while len(basis) < count:
        basis.append(2 * t * basis[-1] - basis[-2])
    return basis[:count]


def _bessel_terms(order: int, low: float, high: float) -> list[float]:
    return [_bessel_term(k, low, high) for k in range(order + 1)]


def _bessel_term(k: int, low: float, high: float) -> float:
    """The coefficient of T_k in the Chebyshev series of exp on an interval."""
    import mpmath  # here, as sympy elsewhere: few need it

    middle, half = (low + high) / 2, (high - low) / 2
    return float((1 if k == 0 else 2) * mpmath.exp(middle) * mpmath.besseli(k, half))


def _alternation(error: np.ndarray, count: int) -> np.ndarray:
    """Indices of `count` extremes of alternating sign, the largest of each run of one sign."""
    borders = np.flatnonzero(np.diff(np.sign(error))) + 1
    runs = np.split(np.arange(len(error)), borders)
    peaks = np.array([run[np.abs(error[run]).argmax()] for run in runs])
    while len(peaks) > count:  # drop the end whose error is smaller
        peaks = peaks[1:] if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else peaks[:-1]
    return peaks


def _chebyshev_in(t: list[Fraction], coefficients: list[Fraction]) -> list[Fraction]:
    """sum_k c_k T_k(t) for t a polynomial in s, by Clenshaw's rule on polynomials."""
    ahead, value = [Fraction(0)], [Fraction(0)]
    twice = [2 * c for c in t]
    for coefficient in reversed(coefficients[1:]):
        step = _add(_multiply(twice, value), [-c for c in ahead])
        value, ahead = _add(step, [coefficient]), value
    return _add(_add(_multiply(t, value), [-c for c in ahead]), [coefficients[0]])


def _powers_to_chebyshev(powers: list[Fraction]) -> list[Fraction]:
    """Chebyshev coefficients of sum_n a_n t^n: Horner's rule, t T_k = (T_k+1 + T_k-1) / 2."""
    total = [Fraction(0)]
    for coefficient in reversed(powers):
        shifted = [Fraction(0)] * (len(total) + 1)
        for k, c in enumerate(total):
            shifted[k + 1] += c if k == 0 else c / 2
            if k > 0:
                shifted[k - 1] += c / 2
        shifted[0] += coefficient
        total = shifted
    return total[: len(powers)]


def _add(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    return [c + (shorter[i] if i < len(shorter) else 0) for i, c in enumerate(longer)]


def _multiply(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    product = [Fraction(0)] * (len(a) + len(b) - 1)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    return product
