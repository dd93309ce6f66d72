"""Powers of an inner product as inner products of powers: the features of queries and keys.

    (x . y)^n = <x (x) ... (x) x, y (x) ... (x) y>          n-fold Kronecker powers, d^n entries
              = sum over monomials of degree n, with multinomial multiplicities

The Kronecker power repeats every monomial once per ordering of its factors; the packed symmetric
power keeps one of each, C(d+n-1, n) in all, and C(d+N, N) for the orders 0..N together.
"""

import math
from functools import lru_cache, wraps

import torch

from .polynomials import Polynomial, check_order

MAX_FEATURES = 20_000_000  # beyond this, one key alone takes 80 MB in float32


def kronecker_power(x: torch.Tensor, n: int) -> torch.Tensor:
    """The n-fold Kronecker power of the last axis.

    Args:
        x: (..., d), floating point.
        n: the power, an integer >= 0.

    Returns:
        (..., d ** n), same dtype; ones of shape (..., 1) for n = 0.

    Raises:
        ValueError: if n is negative or the result has too many entries.
        TypeError: if x is not floating point.

    Source: the paper's equation (7), (q . k)^n = <kronecker_power(q, n), kronecker_power(k, n)>.

    Example:
        >>> kronecker_power(torch.tensor([2.0, 3.0]), 2)
        tensor([4., 6., 6., 9.])
    """
    _check(x, check_order(n, "n"), packed=False)
    power = torch.ones_like(x[..., :1])
    for _ in range(n):
        power = (power.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)
    return power


def symmetric_power(x: torch.Tensor, n: int) -> torch.Tensor:
    """The packed n-fold power: every monomial of degree n once, scaled by sqrt(multiplicity).

    Args:
        x: (..., d), floating point.
        n: the power, an integer >= 0.

    Returns:
        (..., C(d+n-1, n)), same dtype, monomials in lexicographic order of their indices. The dot
        product of two packed powers is exactly (x . y) ** n.

    Raises:
        ValueError: if n is negative or the result has too many entries.
        TypeError: if x is not floating point.

    Example:
        >>> symmetric_power(torch.tensor([2.0, 3.0]), 2)  # 2*2, sqrt(2)*2*3, 3*3
        tensor([4.0000, 8.4853, 9.0000])
    """
    _check(x, check_order(n, "n"), packed=True)
    multiplicity = _multiplicities(x.shape[-1], (n,)).sqrt()
    return _monomials(x, (n,)) * multiplicity.to(x)


def polynomial_features(
    x: torch.Tensor, polynomial: Polynomial, side: str, packed: bool = True
) -> torch.Tensor:
    """Features of all orders with a nonzero coefficient, side by side, lowest order first.

    <features(q, side="query"), features(k, side="key")> = polynomial(q . k). The key side is the
    bare monomials; coefficients, signs and multiplicities are all on the query side, so that the
    keys' features, and a state built from them, do not depend on the coefficients.

    Args:
        x: (..., d), queries or keys, floating point. The scale belongs to the query.
        polynomial: the polynomial of the score.
        side: "query" or "key".
        packed: one of each monomial (C(d+n-1, n) for order n), or the Kronecker power (d^n).

    Returns:
        (..., D), same dtype; D = C(d+N, N) for the packed orders 0..N.

    Raises:
        ValueError: if side is another word, or D is too large to build.
        TypeError: if x is not floating point.

    Example:
        >>> q, k, p = torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0]), Polynomial((1, 1, 0.5))
        >>> query = polynomial_features(q, p, side="query")
        >>> key = polynomial_features(k, p, side="key")
        >>> key
        tensor([ 1.0000,  0.5000, -1.0000,  0.2500, -0.5000,  1.0000])
        >>> (query @ key).item(), p(q @ k).item()
        (0.625, 0.625)
    """
    if side not in ("query", "key"):
        raise ValueError(f'side must be "query" or "key", got {side!r}')
    powers = polynomial.powers
    for n in powers:
        _check(x, n, packed)
    if packed:
        features = _monomials(x, powers)
    else:
        features = torch.cat([kronecker_power(x, n) for n in powers] or [x[..., :0]], dim=-1)
    if side == "key":
        return features
    return features * query_factors(x.shape[-1], polynomial, packed).to(x)


def order_slices(d: int, polynomial: Polynomial, packed: bool = True) -> dict[int, slice]:
    """Where each order lies along the feature axis of `polynomial_features`.

    Example:
        >>> order_slices(2, Polynomial((1, 1, 0.5)))
        {0: slice(0, 1, None), 1: slice(1, 3, None), 2: slice(3, 6, None)}
    """
    slices, start = {}, 0
    for n in polynomial.powers:
        stop = start + features_of_degree(d, n, packed)
        slices[n], start = slice(start, stop), stop
    return slices


def features_of_degree(d: int, n: int, packed: bool = True) -> int:
    """How many features the power n alone has: C(d+n-1, n), or d^n unpacked.

    Example:
        >>> features_of_degree(64, 2), features_of_degree(64, 2, packed=False)
        (2080, 4096)
    """
    if n == 0:
        return 1
    return math.comb(d + n - 1, n) if packed else d**n


def num_features(d: int, order: int, packed: bool = True) -> int:
    """How many features the orders 0..order have together: C(d+order, order), or sum of d^n.

    Args:
        d: width of a query or key, >= 1.
        order: highest power kept, >= 0.
        packed: one of each monomial, or all d^n.

    Raises:
        ValueError: if d < 1 or order < 0.

    Example:
        >>> num_features(16, 2), num_features(16, 2, packed=False)
        (153, 273)
    """
    if d < 1:
        raise ValueError(f"d must be >= 1, got {d}")
    return sum(features_of_degree(d, n, packed) for n in range(check_order(order) + 1))


def _monomials(x: torch.Tensor, powers: tuple[int, ...]) -> torch.Tensor:
    """The packed monomials of the given degrees, side by side.

    Degree n is x_i times the degree n-1 monomials whose indices are all >= i. In lexicographic
    order these are the last C(d-i+n-2, n-1) of them: a contiguous suffix, so each monomial costs
    one multiplication and no index is looked up.
    """
    d, level, kept = x.shape[-1], torch.ones_like(x[..., :1]), []
    for n in range(max(powers, default=0) + 1):
        if n == 1:
            level = x
        elif n > 1:
            suffixes = [level[..., -features_of_degree(d - i, n - 1) :] for i in range(d)]
            level = torch.cat([x[..., i : i + 1] * s for i, s in enumerate(suffixes)], dim=-1)
        if n in powers:
            kept.append(level)
    return torch.cat(kept or [x[..., :0]], dim=-1)


def made_once(build):
    """Cache what `build` makes, as plain CPU tensors whatever mode the first caller is in."""

    @lru_cache(maxsize=32)
    def cached(*arguments):
        with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
            return build(*arguments)

    return wraps(build)(cached)


@made_once
def _multiplicities(d: int, powers: tuple[int, ...]) -> torch.Tensor:
    """n! / (a_1! ... a_d!) for each packed monomial x^a: how often the Kronecker power repeats it.

    Built as the monomials are: one more x_i in front of a degree n-1 monomial that holds x_i r
    times turns its multiplicity m into m * n / (r + 1). Such a monomial begins with its run of r.
    """
    multiplicity, run = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    kept = []
    for n in range(max(powers, default=0) + 1):
        if n > 0:
            runs, multiplicities = [], []
            for i in range(d):
                suffix = features_of_degree(d - i, n - 1)  # all indices >= i
                without_i = features_of_degree(d - i - 1, n - 1)  # all indices > i
                r = run[-suffix:] * (torch.arange(suffix) < suffix - without_i)
                runs.append(r + 1)
                multiplicities.append(multiplicity[-suffix:] * n / (r + 1))
            run, multiplicity = torch.cat(runs), torch.cat(multiplicities)
        if n in powers:
            kept.append(multiplicity)
    return torch.cat(kept or [multiplicity[:0]])


@made_once
def query_factors(d: int, polynomial: Polynomial, packed: bool) -> torch.Tensor:
    """Coefficient times multiplicity of every feature, in float64."""
    factors = [torch.ones(0, dtype=torch.float64)]  # of the zero polynomial
    for n in polynomial.powers:
        ones = torch.ones(features_of_degree(d, n, packed), dtype=torch.float64)
        repeats = _multiplicities(d, (n,)) if packed else ones
        factors.append(polynomial.coefficients[n] * repeats)
    return torch.cat(factors)


def _check(x: torch.Tensor, n: int, packed: bool) -> None:
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}")
    d = x.shape[-1]
    check_size(features_of_degree(d, n, packed), "order {} of a vector with d={} entries", n, d)


def check_size(size: int, what: str, *named) -> None:
    """Refuse to build more features than fit in memory; `what` is formatted only to say so."""
    if size > MAX_FEATURES:
        raise ValueError(
            f"{what.format(*named)} has {size:.3g} features, more than the {MAX_FEATURES:.3g} this "
            "library builds; use a lower order, or the parallel form with return_state=False, "
            "which needs no features"
        )
