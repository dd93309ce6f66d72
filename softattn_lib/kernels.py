"""What stands where exp stood: the weight of a key for a query.

A kernel gives the weight of a score, and, where it can, the features of queries and keys whose dot
product that weight is. With features there is a state of constant size, and attention is a
recurrent network; without them (exp) there is only the parallel form.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from .families import ChebyshevPolynomial, clenshaw
from .features import features_of_degree, made_once, order_slices, polynomial_features
from .numerics import safe_divide
from .polynomials import Polynomial


class Kernel:
    """The interface of a kernel; subclass `FeatureMapKernel` for a new one of a few lines.

    The weight of key s for query t is weight(score_ts), with score_ts from `scores`.

    Attributes:
        has_features: whether the weights are dot products of finitely many features.
        is_nonnegative: whether no weight can be negative, so that their sum cannot cancel.
        feature_set: names what the state holds; states of equal feature sets are exchangeable.
    """

    has_features = True
    is_nonnegative = False

    @property
    def feature_set(self):
        return self

    def num_features(self, d: int) -> int:
        """How many features D a key of width d has."""
        raise NotImplementedError

    def query_features(self, q: torch.Tensor, scale: float) -> torch.Tensor:
        """(..., d) -> (..., D), with the scale of the score in it."""
        raise NotImplementedError

    def key_features(self, k: torch.Tensor) -> torch.Tensor:
        """(..., d) -> (..., D), free of scale and coefficients."""
        raise NotImplementedError

    def scores(self, q: torch.Tensor, k: torch.Tensor, scale: float) -> torch.Tensor:
        """q (..., T_q, d), k (..., T_k, d) -> (..., T_q, T_k), scale * <q_t, k_s>."""
        return (q * scale) @ k.transpose(-1, -2)

    def weight(self, score: torch.Tensor) -> torch.Tensor:
        """The weight of each score, same shape."""
        raise NotImplementedError


@dataclass(frozen=True)
class ExpKernel(Kernel):
    """exp(min(s, clamp)) of the score s: softmax attention. No finite state; parallel form only.

    Args:
        clamp: largest score let through; None for none. The paper's code uses 5 in most runs. A
            clamped exponential is no polynomial series any more, so no sum of recurrences either.

    Example:
        >>> ExpKernel(clamp=5.0).weight(torch.tensor([1.0, 9.0]))
        tensor([  2.7183, 148.4132])
    """

    clamp: float | None = None
    has_features = False
    is_nonnegative = True

    def __post_init__(self):
        if self.clamp is not None and not -700 < self.clamp < 700:
            raise ValueError(f"clamp must be a number between -700 and 700, got {self.clamp}")

    def log_weight(self, score):
        """The logarithm of the weight: the clamped score."""
        return score if self.clamp is None else score.clamp(max=self.clamp)

    def weight(self, score):
        return self.log_weight(score).exp()


@dataclass(frozen=True)
class PolynomialKernel(Kernel):
    """A polynomial of the score; its features are all monomials of the orders it holds.

    Args:
        polynomial: for instance `taylor(4)`.
        packed: keep one of each monomial in the state, C(d+n-1, n) for order n; False keeps all
            d^n entries of the Kronecker power, as the paper writes it.

    Example:
        >>> from softattn_lib import taylor
        >>> kernel = PolynomialKernel(taylor(2))
        >>> kernel.num_features(16), kernel.is_nonnegative
        (153, True)
        >>> kernel.weight(torch.tensor([1.0, -2.0]))
        tensor([2.5000, 1.0000])
    """

    polynomial: Polynomial
    packed: bool = True

    @property
    def is_nonnegative(self) -> bool:
        return self.polynomial.is_nonnegative

    @property
    def feature_set(self):
        return ("powers", self.polynomial.powers, "packed" if self.packed else "full")

    def num_features(self, d):
        return sum(features_of_degree(d, n, self.packed) for n in self.polynomial.powers)

    def query_features(self, q, scale):
        return polynomial_features(q * scale, self.polynomial, "query", self.packed)

    def key_features(self, k):
        return polynomial_features(k, self.polynomial, "key", self.packed)

    def weight(self, score):
        return self.polynomial(score)


@dataclass(frozen=True)
class HeadPolynomialsKernel(Kernel):
    """A polynomial of its own for each query head; the heads of a group read one state.

    Args:
        polynomials: one a query head, in the order of the axis before time.

    Raises:
        ValueError: no polynomials; queries with another number of heads, when called.

    Example:
        >>> from softattn_lib import taylor
        >>> kernel = HeadPolynomialsKernel((taylor(0), taylor(2)))
        >>> kernel.weight(torch.full((2, 1, 1, 1), 2.0)).flatten()  # two key heads, one query each
        tensor([1., 5.])
    """

    polynomials: tuple[Polynomial, ...]

    def __post_init__(self):
        if not self.polynomials:
            raise ValueError("polynomials is empty; give one for each query head")

    def _check_heads(self, shape) -> None:
        """shape (..., H_k, G, rows, columns), as the forms group the heads."""
        heads = shape[-4] * shape[-3] if len(shape) > 3 else 1
        if heads != len(self.polynomials):
            raise ValueError(
                f"kernel has polynomials for {len(self.polynomials)} heads; q has {heads} heads "
                "in its axis before time"
            )

    @property
    def is_nonnegative(self) -> bool:
        return all(polynomial.is_nonnegative for polynomial in self.polynomials)

    @property
    def _powers(self) -> Polynomial:
        """A polynomial with all powers that one of the heads has."""
        order = max(polynomial.order for polynomial in self.polynomials)
        used = {n for polynomial in self.polynomials for n in polynomial.powers}
        return Polynomial(tuple(float(n in used) for n in range(order + 1)))

    @property
    def feature_set(self):
        return PolynomialKernel(self._powers).feature_set

    def num_features(self, d):
        return PolynomialKernel(self._powers).num_features(d)

    def query_features(self, q, scale):
        """q (..., H_k, G, T, d), as the forms group the heads."""
        self._check_heads(q.shape)
        features = PolynomialKernel(self._powers).query_features(q * scale, 1.0)
        slices = order_slices(q.shape[-1], self._powers)
        factors = torch.zeros(len(self.polynomials), features.shape[-1], dtype=torch.float64)
        for head, polynomial in enumerate(self.polynomials):
            for n in polynomial.powers:
                factors[head, slices[n]] = polynomial.coefficients[n]
        return features * factors.reshape(*q.shape[-4:-2], 1, -1).to(features)

    def key_features(self, k):
        return PolynomialKernel(self._powers).key_features(k)

    def weight(self, score):
        """score (..., H_k, G, T_q, T_k), as the forms group the heads."""
        self._check_heads(score.shape)
        by_head = score.flatten(-4, -3) if score.dim() > 3 else score.unsqueeze(-3)
        if (constants := _common_form(self.polynomials)) is not None:
            values = _values_by_head(by_head, *(x.to(by_head) for x in constants))
        else:
            pairs = zip(self.polynomials, by_head.unbind(-3), strict=True)
            values = torch.stack([p(s) for p, s in pairs], dim=-3)
        return values.reshape(score.shape)


@made_once
def _common_form(polynomials: tuple[Polynomial, ...]):
    """(middle, stretch, terms) for all heads at once if all are squares in Chebyshev form, or None.

    middle and stretch (H, 1, 1) take a score to t, terms (S, K, H, 1, 1) hold the coefficients.
    """
    if not all(isinstance(p, ChebyshevPolynomial) and p.is_squared for p in polynomials):
        return None
    ends = torch.tensor([p.basis for p in polynomials], dtype=torch.float64)
    low, high = ends.reshape(-1, 1, 1, 2).unbind(-1)
    shape = [
        max(len(p.terms) for p in polynomials),
        max(len(q) for p in polynomials for q in p.terms),
    ]
    terms = torch.zeros(*shape, len(polynomials), 1, 1, dtype=torch.float64)
    for head, polynomial in enumerate(polynomials):
        for row, term in enumerate(polynomial.terms):
            terms[row, : len(term), head, 0, 0] = torch.tensor(term, dtype=torch.float64)
    return (low + high) / 2, 2 / (high - low), terms


def _values_by_head(score, middle, stretch, terms):
    """The sum of squares of each head's scores, (..., H, T_q, T_k)."""
    t = (score - middle) * stretch
    return sum(clenshaw(t, term.unbind(0)).square() for term in terms)


class FeatureMapKernel(Kernel):
    """A kernel given by one map of queries and keys alike: weight = scale * <map(q), map(k)>.

    Score and weight are the same here: the scale multiplies after the map.

    A subclass defines `feature_map(x)`, (..., d) -> (..., D), and `num_features(d)` where D is
    not d; if the map is never negative it says `is_nonnegative = True`. `check_kernel` tries it.

    Example:
        >>> @dataclass(frozen=True)
        ... class SquaredRelu(FeatureMapKernel):
        ...     is_nonnegative = True
        ...     def feature_map(self, x):
        ...         return torch.relu(x) ** 2
        >>> SquaredRelu().scores(torch.tensor([[2.0, -1.0]]), torch.tensor([[1.0, 3.0]]), 0.5)
        tensor([[2.]])
    """

    def feature_map(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def num_features(self, d):
        return d

    def query_features(self, q, scale):
        return self.feature_map(q) * scale

    def key_features(self, k):
        return self.feature_map(k)

    def scores(self, q, k, scale):
        return self.query_features(q, scale) @ self.key_features(k).transpose(-1, -2)

    def weight(self, score):
        return score


@dataclass(frozen=True)
class IdentityKernel(FeatureMapKernel):
    """The score itself, weight = s: linear attention, the paper's n = 1 term."""

    def feature_map(self, x):
        return x


@dataclass(frozen=True)
class ReluKernel(FeatureMapKernel):
    """<relu(q), relu(k)>."""

    is_nonnegative = True

    def feature_map(self, x):
        return torch.relu(x)


@dataclass(frozen=True)
class EluPlusOneKernel(FeatureMapKernel):
    """<elu(q) + 1, elu(k) + 1> (Katharopoulos et al., 2020)."""

    is_nonnegative = True

    def feature_map(self, x):
        return F.elu(x) + 1


@dataclass(frozen=True)
class CosineKernel(FeatureMapKernel):
    """<q / |q|, k / |k|>, the cosine of the angle; 0 where a vector is zero."""

    def feature_map(self, x):
        largest = x.detach().abs().amax(-1, keepdim=True)
        x = safe_divide(x, largest)  # so that squares neither overflow nor vanish
        return safe_divide(x, torch.linalg.vector_norm(x, dim=-1, keepdim=True))


@dataclass(frozen=True)
class ClampedKernel(Kernel):
    """min(weight, clamp) of another kernel. No finite state; parallel form only.

    Example:
        >>> ClampedKernel(ReluKernel(), 5.0).weight(torch.tensor([2.0, 9.0]))
        tensor([2., 5.])
    """

    kernel: Kernel
    clamp: float
    has_features = False

    def __post_init__(self):
        if isinstance(self.kernel, ExpKernel):  # exp may overflow before the clamp sees it
            raise ValueError(f"kernel is exp; use ExpKernel(clamp=log({self.clamp}))")

    @property
    def is_nonnegative(self) -> bool:
        return self.kernel.is_nonnegative and self.clamp >= 0

    def scores(self, q, k, scale):
        return self.kernel.scores(q, k, scale)

    def weight(self, score):
        return self.kernel.weight(score).clamp(max=self.clamp)


KERNELS = {
    "exp": ExpKernel(),
    "identity": IdentityKernel(),
    "relu": ReluKernel(),
    "elu_plus_one": EluPlusOneKernel(),
    "cosine": CosineKernel(),
}


def as_kernel(kernel) -> Kernel:
    """A kernel from a kernel, a polynomial, or one of the names in `KERNELS`.

    Raises:
        ValueError: for another name.
        TypeError: for anything else.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, Polynomial):
        return PolynomialKernel(kernel)
    if isinstance(kernel, str) and kernel in KERNELS:
        return KERNELS[kernel]
    error = ValueError if isinstance(kernel, str) else TypeError
    raise error(
        f"kernel must be a Polynomial such as taylor(4), a Kernel, or one of "
        f"{', '.join(map(repr, KERNELS))}; got {kernel!r}"
    )
