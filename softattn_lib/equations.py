r"""The equations of the derivation, each tied to code, to a notebook cell and to a check.

Numbers are the companion's: equation 5.2 is the second of notebook 05. Of the paper's own numbers
only (7) is known to us. Letters: Q_t, K_s (1 x d) and V_s (1 x e) are rows, t the query's step, s
the key's; x^{\otimes n} is the n-fold Kronecker power; the paper leaves the scale out, so do these.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch

from . import families, features, fitting, kernels, parallel, polynomials, recurrent, state
from .tasks import capacity

SIZES = {"B": 2, "H": 3, "T": 7, "d": 4, "e": 5}  # all different: a swapped axis cannot pass
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Equation:
    """One equation of the derivation.

    Attributes:
        number: the companion's number, "5.2".
        title: a few words.
        latex: the formula.
        function: dotted name of the library function that computes it.
        notebook: the notebook that derives it.
        measure: inputs -> the largest difference between its two sides, or how far the left one of
            an inequality is above the right one.
    """

    number: str
    title: str
    latex: str
    function: str
    notebook: str
    measure: Callable

    @property
    def tag(self) -> str:
        """The tag of the notebook cell that checks it."""
        return "eq-" + self.number.replace(".", "-")

    @property
    def test_id(self) -> str:
        """The pytest id of its numeric check."""
        return f"tests/test_equations.py::test_equation_holds[{self.number}]"

    def resolve(self):
        """The function itself."""
        module, name = self.function.rsplit(".", 1)
        return getattr(importlib.import_module(module), name)


def check(number: str) -> str:
    """Run an equation's check on random float64 tensors of unequal sizes and say what came out.

    Raises:
        KeyError: for a number that is not in `EQUATIONS`.
        AssertionError: if it fails by more than 1e-10.

    Example:
        >>> check("3.1")
        'Equation 3.1 holds for B=2, H=3, T=7, d=4, e=5, to within 1e-10.'
    """
    if number not in EQUATIONS:
        raise KeyError(f"number must be one of {', '.join(EQUATIONS)}; got {number!r}")
    difference = EQUATIONS[number].measure(random_inputs())
    if not difference < TOLERANCE:
        raise AssertionError(f"equation {number} fails by {difference:.2g}")
    sizes = ", ".join(f"{name}={size}" for name, size in SIZES.items())
    return f"Equation {number} holds for {sizes}, to within {TOLERANCE:.0e}."


def random_inputs(seed: int = 0) -> SimpleNamespace:
    """q, k (B, H, T, d) and v (B, H, T, e) in float64, entries of standard deviation 0.6."""
    generator = torch.Generator().manual_seed(seed)
    B, H, T, d, e = SIZES.values()
    q, k, v = (
        torch.randn(B, H, T, width, generator=generator, dtype=torch.float64) * 0.6
        for width in (d, d, e)
    )
    return SimpleNamespace(q=q, k=k, v=v)


def _causal_sum(weights, v):
    """sum_{s <= t} w_ts v_s, the plain way."""
    return weights.tril() @ v


def _scores(x):
    return torch.einsum("bhti,bhsi->bhts", x.q, x.k)


def _gap(left, right) -> float:
    return (left - right).abs().max().item()


def _softmax(x):
    weights = _scores(x).exp()
    ratio = _causal_sum(weights, x.v) / weights.tril().sum(-1, keepdim=True)
    return _gap(parallel.softmax_attention(x.q, x.k, x.v, scale=1.0), ratio)


def _gate(x):
    gate = 1 / _scores(x).exp().tril().sum(-1, keepdim=True)
    numerator, _ = parallel.parallel_attention(
        x.q, x.k, x.v, kernel="exp", normalizer="none", scale=1.0
    )
    return _gap(parallel.softmax_attention(x.q, x.k, x.v, scale=1.0), gate * numerator)


def _series(x):
    scores = _scores(x)
    return _gap(polynomials.taylor(30)(scores), scores.exp())


def _expanded(x):
    scores, gate = _scores(x), 1 / _scores(x).exp().tril().sum(-1, keepdim=True)
    orders = sum(_causal_sum(_term(scores, n), x.v) for n in range(31))
    return _gap(gate * orders, parallel.softmax_attention(x.q, x.k, x.v, scale=1.0))


def _term(x, n):
    return x**n / float(math.factorial(n))


def _remainder(x):
    """How far |exp - P_N| goes beyond its bound anywhere: 0 if nowhere."""
    scores, excess = _scores(x), 0.0
    for order in range(8):
        bound = _term(scores.abs(), order + 1) * scores.exp().clamp(min=1)
        gap = (scores.exp() - polynomials.taylor(order)(scores)).abs()
        worst = polynomials.remainder_bound(order, scores.abs().max().item())
        excess = max(excess, (gap - bound).max().item(), gap.max().item() - worst)
    return excess


def _poisson(x):
    score = _scores(x).abs() + 0.1
    n = torch.arange(40, dtype=torch.float64)
    law = torch.distributions.Poisson(score.unsqueeze(-1)).log_prob(n).exp()
    shares = torch.stack([_term(score, n) / score.exp() for n in range(40)], dim=-1)
    return _gap(shares, law)


def _kronecker(x):
    return _powers_against_scores(x, features.kronecker_power)


def _mixed_product(inputs):
    a, b, x, y = inputs.q, inputs.v, inputs.k, inputs.v.flip(-2)
    left = torch.einsum("...i,...j->...ij", a, b).flatten(-2)
    right = torch.einsum("...i,...j->...ij", x, y).flatten(-2)
    return _gap((left * right).sum(-1), (a * x).sum(-1) * (b * y).sum(-1))


def _multinomial(x):
    return _powers_against_scores(x, features.symmetric_power)


def _powers_against_scores(x, power):
    return max(_gap(power(x.q, n) @ power(x.k, n).mT, _scores(x) ** n) for n in range(5))


def _factorised(x):
    elu = kernels.EluPlusOneKernel()
    query, key = elu.feature_map(x.q), elu.feature_map(x.k)
    pairwise = _causal_sum(query @ key.mT, x.v)
    states = torch.einsum("bhtf,bhte->bhtfe", key, x.v).cumsum(2)
    return _gap(pairwise, torch.einsum("bhtf,bhtfe->bhte", query, states))


def _state_step(x):
    key = kernels.EluPlusOneKernel().feature_map(x.k)
    _, final = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel="elu_plus_one", normalizer="none", scale=1.0
    )
    hidden = 0
    for t in range(SIZES["T"]):
        hidden = hidden + key[..., t, :, None] * x.v[..., t, None, :]
    return _gap(final.numerator, hidden)


def _linear(x):
    out, _ = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel="identity", normalizer="none", scale=1.0
    )
    return _gap(out, _causal_sum(_scores(x), x.v))


def _hidden_states(x, order):
    """H_t^n for every t, (B, H, T, d^n, e)."""
    powers = features.kronecker_power(x.k, order)
    return torch.einsum("bhtf,bhte->bhtfe", powers, x.v).cumsum(2)


def _read(x, order):
    powers = features.kronecker_power(x.q, order)
    hidden = _hidden_states(x, order)
    return torch.einsum("bhtf,bhtfe->bhte", powers, hidden) / math.factorial(order)


def _order_state(x):
    kernel = kernels.PolynomialKernel(polynomials.taylor(3), packed=False)
    begin = state.init_state(kernel, 4, 5, batch_shape=(2, 3), scale=1.0, dtype=torch.float64)
    out = begin
    for t in range(SIZES["T"]):
        _, out = recurrent.attention_step(
            *(tensor[..., t, :] for tensor in (x.q, x.k, x.v)),
            out,
            kernel=kernel,
            normalizer="none",
            scale=1.0,
        )
    slices = features.order_slices(4, kernel.polynomial, packed=False)
    return max(
        _gap(out.numerator[..., rows, :], _hidden_states(x, n)[:, :, -1])
        for n, rows in slices.items()
    )


def _sum_of_rnns(x):
    order = 4
    out, _ = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel=polynomials.taylor(order), scale=1.0
    )
    gate = 1 / polynomials.taylor(order)(_scores(x)).tril().sum(-1, keepdim=True)
    return _gap(out, gate * sum(_read(x, n) for n in range(order + 1)))


def _order_readout(x):
    pure = polynomials.Polynomial((0, 0, 0, 1 / 6))
    out, _ = recurrent.recurrent_attention(x.q, x.k, x.v, kernel=pure, normalizer="none", scale=1.0)
    return _gap(out, _read(x, 3))


def _order_zero(x):
    constant = polynomials.taylor(0)
    out, _ = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel=constant, normalizer="none", scale=1.0
    )
    return _gap(out, x.v.cumsum(-2))


def _denominator(x):
    ones = SimpleNamespace(q=x.q, k=x.k, v=torch.ones_like(x.v[..., :1]))
    order = 4
    _, final = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel=polynomials.taylor(order), scale=1.0
    )
    query = features.polynomial_features(x.q[..., -1, :], polynomials.taylor(order), "query")
    from_state = (query * final.denominator).sum(-1)
    by_order = sum(_read(ones, n)[..., -1, 0] for n in range(order + 1))
    by_sum = polynomials.taylor(order)(_scores(x)[..., -1, :]).sum(-1)
    return max(_gap(from_state, by_sum), _gap(by_order, by_sum))


def _limit(x):
    out, _ = parallel.parallel_attention(
        x.q, x.k, x.v, kernel=polynomials.taylor(30), scale=1.0, return_state=False
    )
    return _gap(out, parallel.softmax_attention(x.q, x.k, x.v, scale=1.0))


def _homogeneous(x):
    pure = polynomials.Polynomial((0, 0, 1))
    short, _ = parallel.parallel_attention(x.q, x.k, x.v, kernel=pure)
    long, _ = parallel.parallel_attention(3 * x.q, x.k, x.v, kernel=pure)
    return _gap(short, long)


def _rank(x):
    """The largest singular value beyond the D-th, in units of the first: 0 if the rank is D."""
    q, k = x.q.flatten(0, 2), x.k.flatten(0, 2)  # 42 of each
    powers = [kernels.PolynomialKernel(polynomials.power(n)) for n in (1, 2, 3)]
    sums = [kernels.PolynomialKernel(polynomials.taylor(order)) for order in (1, 2, 3)]
    maps = [kernels.ReluKernel(), kernels.EluPlusOneKernel(), kernels.CosineKernel()]
    beyond = 0.0
    for kernel in (*powers, *sums, *maps):
        singular = torch.linalg.svdvals(kernel.weight(kernel.scores(q, k, 1.0)))
        beyond = max(beyond, (singular[kernel.num_features(4)] / singular[0]).item())
    return beyond


def _overlap(x):
    d, gaps = x.q.shape[-1], []
    for n in range(7):
        product = math.prod((2 * j + 1) / (d + 2 * j) for j in range(n))
        gaps.append(abs(capacity.interference(polynomials.power(n), d) - product))
    return max(gaps)


def _numerator(x):
    return _causal_sum(_scores(x).exp(), x.v)


def _steps(x):
    """t = 1..T, the number of keys that each query sees, (T, 1)."""
    return torch.arange(1, SIZES["T"] + 1, dtype=x.q.dtype).unsqueeze(-1)


def _mean_weight(x):
    """t * G_t by its definition against the library's 1/t, and how far it leaves its bounds."""
    mean, _ = parallel.parallel_attention(
        x.q, x.k, x.v, kernel="exp", normalizer="visible_keys", scale=1.0
    )
    scores, future = _scores(x), torch.ones(SIZES["T"], SIZES["T"]).triu(1).bool()
    t_times_gate = _steps(x) / scores.exp().tril().sum(-1, keepdim=True)
    highest = scores.masked_fill(future, -torch.inf).amax(-1, keepdim=True)
    lowest = scores.masked_fill(future, torch.inf).amin(-1, keepdim=True)
    excess = torch.maximum((-highest).exp() - t_times_gate, t_times_gate - (-lowest).exp())
    softmax = parallel.softmax_attention(x.q, x.k, x.v, scale=1.0)
    return max(_gap(t_times_gate * mean, softmax), excess.max().item())


def _learned_gate(x):
    """Some sigmoid of the token, (B, H, T), for the one that a layer learns."""
    return x.q[..., 0].sigmoid()


def _gate_form(x):
    gate = _learned_gate(x)
    out, _ = parallel.parallel_attention(
        x.q, x.k, x.v, kernel="exp", normalizer="visible_keys", output_gate=gate, scale=1.0
    )
    return _gap(out, gate.unsqueeze(-1) / _steps(x) * _numerator(x))


def _gate_recurrent(x):
    gate, order = _learned_gate(x), 4
    out, _ = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel=polynomials.taylor(order), normalizer="visible_keys",
        output_gate=gate, scale=1.0,
    )  # fmt: skip
    reads = sum(_read(x, n) for n in range(order + 1))
    return _gap(out, gate.unsqueeze(-1) / _steps(x) * reads)


def _unit(y):
    return y / y.norm(dim=-1, keepdim=True)


def _norm_form(x):
    order, options = 4, {"normalizer": "l2", "scale": 1.0}
    whole, _ = parallel.parallel_attention(x.q, x.k, x.v, kernel="exp", **options)
    cut, _ = recurrent.recurrent_attention(
        x.q, x.k, x.v, kernel=polynomials.taylor(order), **options
    )
    reads = sum(_read(x, n) for n in range(order + 1))
    return max(_gap(whole, _unit(_numerator(x))), _gap(cut, _unit(reads)))


def _direction(x):
    norm, _ = parallel.parallel_attention(x.q, x.k, x.v, kernel="exp", normalizer="l2", scale=1.0)
    return _gap(norm, _unit(parallel.softmax_attention(x.q, x.k, x.v, scale=1.0)))


def _three_parts(x):
    """Kernels and normalizers against the plain sums, with decay and both gates."""
    scores, gaps = _scores(x), []
    input_gate, output_gate = x.v[..., 0].sigmoid(), _learned_gate(x)
    log_decay = -torch.nn.functional.softplus(x.k[..., 0])
    running = log_decay.cumsum(-1)
    decay = (running.unsqueeze(-1) - running.unsqueeze(-2)).exp()
    relu = torch.einsum("bhti,bhsi->bhts", x.q.relu(), x.k.relu())
    taylor = polynomials.taylor(2)
    for kernel, weights in (("exp", scores.exp()), (taylor, taylor(scores)), ("relu", relu)):
        y = _causal_sum(weights * decay * input_gate.unsqueeze(-2), x.v)
        norms = {"none": y, "visible_keys": y / _steps(x), "l2": _unit(y)}
        for normalizer, normalized in norms.items():
            out, _ = parallel.parallel_attention(
                x.q, x.k, x.v,
                kernel=kernel, normalizer=normalizer, scale=1.0,
                input_gate=input_gate, output_gate=output_gate, log_decay=log_decay,
            )  # fmt: skip
            gaps.append(_gap(out, output_gate.unsqueeze(-1) * normalized))
    return max(gaps)


def _gate_places(x):
    """A gate before each normalizer, against the gate behind it or no gate at all."""
    gate, gaps = _learned_gate(x), []
    for normalizer in ("sum", "visible_keys", "none", "l2", "rms", "layer"):
        options = {"kernel": "exp", "normalizer": normalizer, "scale": 1.0}
        plain, _ = parallel.parallel_attention(x.q, x.k, x.v, **options)
        before, _ = parallel.parallel_attention(
            x.q, x.k, x.v, **options, output_gate=gate, gate_position="before"
        )
        is_norm = normalizer in ("l2", "rms", "layer")
        gaps.append(_gap(before, plain if is_norm else gate.unsqueeze(-1) * plain))
    return max(gaps)


def _other_coefficients(x):
    best = families.minimax(3, -3.0, 2.0)
    out, _ = recurrent.recurrent_attention(x.q, x.k, x.v, kernel=best, normalizer="none", scale=1.0)
    orders = (
        c * math.factorial(n) * _read(x, n) for n, c in enumerate(best.coefficients)
    )  # _read divides by n!
    return max(_gap(out, sum(orders)), _gap(out, _causal_sum(best(_scores(x)), x.v)))


def _weight_criterion(x):
    """How much a small step away from the fit can still win, in its largest slope."""
    scores = _scores(x)[0, 0]
    hidden = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    best = fitting.least_squares(3, fitting.observe(hidden))
    row_sum = hidden.exp().sum(-1, keepdim=True)
    error = ((best(scores) - scores.exp()) / row_sum).tril()
    return max((error * scores**n / row_sum).sum().abs().item() for n in range(4))


def _sum_of_squares(x):
    """The roots of a positive polynomial come in pairs; one of each pair makes q_1 + i q_2."""
    positive = polynomials.taylor(4)
    roots = np.roots(positive.coefficients[::-1])
    half = np.poly(roots[roots.imag > 0])[::-1] * positive.coefficients[-1] ** 0.5
    terms = tuple(tuple(np.polynomial.chebyshev.poly2cheb(q)) for q in (half.real, half.imag))
    squares = families.ChebyshevPolynomial(-1.0, 1.0, terms, is_squared=True)
    scores = _scores(x)
    return max(_gap(squares(scores), positive(scores)), -squares(100 * scores).min().item())


_LIBRARY = "softattn_lib."
_ROWS = [
    (
        "1.1",
        "softmax attention",
        r"O_t = \mathrm{softmax}(Q_t K_{1:t}^\top)\, V_{1:t}"
        r" = \frac{\sum_{s \le t} e^{Q_t K_s^\top} V_s}{\sum_{s \le t} e^{Q_t K_s^\top}}",
        "parallel.softmax_attention",
        "01_softmax_attention",
        _softmax,
    ),
    (
        "1.2",
        "the denominator by a name of its own",
        r"G_t = \Big(\sum_{s \le t} e^{Q_t K_s^\top}\Big)^{-1}, \qquad"
        r" O_t = G_t \sum_{s \le t} e^{Q_t K_s^\top} V_s",
        "parallel.parallel_attention",
        "01_softmax_attention",
        _gate,
    ),
    (
        "2.1",
        "exp as a series",
        r"e^{x} = \sum_{n \ge 0} \frac{x^n}{n!}",
        "polynomials.taylor",
        "02_exp_as_a_series",
        _series,
    ),
    (
        "2.2",
        "what is cut off",
        r"\Big| e^{x} - \sum_{n \le N} \frac{x^n}{n!} \Big| \le"
        r" \frac{|x|^{N+1}}{(N+1)!} \max(1, e^{x})",
        "polynomials.remainder_bound",
        "02_exp_as_a_series",
        _remainder,
    ),
    (
        "2.3",
        "the share of each order is a Poisson law",
        r"\frac{x^n / n!}{e^{x}} = \mathrm{Poisson}(x)\{n\}, \qquad x > 0",
        "polynomials.taylor",
        "02_exp_as_a_series",
        _poisson,
    ),
    (
        "2.4",
        "the numerator, expanded",
        r"O_t = G_t \sum_{s \le t} \sum_{n \ge 0} \frac{1}{n!} (Q_t K_s^\top)^n\, V_s",
        "parallel.parallel_attention",
        "02_exp_as_a_series",
        _expanded,
    ),
    (
        "3.1",
        "a power of an inner product is an inner product of powers (the paper's equation 7)",
        r"(q k^\top)^n = \sum_{i=1}^{d^n} \big(q^{\otimes n}\big)_i \big(k^{\otimes n}\big)_i"
        r" = \langle q^{\otimes n}, k^{\otimes n} \rangle",
        "features.kronecker_power",
        "03_powers_of_an_inner_product",
        _kronecker,
    ),
    (
        "3.2",
        "the mixed-product rule, the step of its induction",
        r"\langle a \otimes b,\; x \otimes y \rangle = \langle a, x \rangle \langle b, y \rangle",
        "features.kronecker_power",
        "03_powers_of_an_inner_product",
        _mixed_product,
    ),
    (
        "3.3",
        "the packed form: each monomial once",
        r"(q k^\top)^n = \sum_{|\alpha| = n} \binom{n}{\alpha} q^{\alpha} k^{\alpha}",
        "features.symmetric_power",
        "03_powers_of_an_inner_product",
        _multinomial,
    ),
    (
        "4.1",
        "a similarity that factorises",
        r"O_t = \sum_{s \le t} \phi(Q_t) \phi(K_s)^\top V_s = \phi(Q_t) H_t, \qquad"
        r" H_t = \sum_{s \le t} \phi(K_s)^\top V_s",
        "kernels.EluPlusOneKernel",
        "04_linear_attention_is_an_rnn",
        _factorised,
    ),
    (
        "4.2",
        "its state is recurrent",
        r"H_t = H_{t-1} + \phi(K_t)^\top V_t",
        "recurrent.recurrent_attention",
        "04_linear_attention_is_an_rnn",
        _state_step,
    ),
    (
        "4.3",
        "linear attention: the order n = 1",
        r"O_t^{(\mathrm{linear})} = Q_t \sum_{s \le t} K_s^\top V_s = Q_t H_t",
        "recurrent.recurrent_attention",
        "04_linear_attention_is_an_rnn",
        _linear,
    ),
    (
        "5.1",
        "the state of order n",
        r"H_t^{n} = \sum_{s \le t} (K_s^{\otimes n})^\top V_s"
        r" = H_{t-1}^{n} + (K_t^{\otimes n})^\top V_t",
        "recurrent.attention_step",
        "05_softmax_attention_is_a_sum_of_rnns",
        _order_state,
    ),
    (
        "5.2",
        "softmax attention is a sum of recurrent networks",
        r"O_t = G_t \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} H_t^{n}",
        "recurrent.recurrent_attention",
        "05_softmax_attention_is_a_sum_of_rnns",
        _sum_of_rnns,
    ),
    (
        "5.3",
        "what order n adds to the output",
        r"O_t^{(n)} = \frac{G_t}{n!}\, Q_t^{\otimes n} H_t^{n}",
        "recurrent.recurrent_attention",
        "05_softmax_attention_is_a_sum_of_rnns",
        _order_readout,
    ),
    (
        "5.4",
        "order 0: a running sum of values that no query touches",
        r"H_t^{0} = \sum_{s \le t} V_s",
        "recurrent.recurrent_attention",
        "05_softmax_attention_is_a_sum_of_rnns",
        _order_zero,
    ),
    (
        "5.5",
        "the denominator is recurrent too: one more column, of ones",
        r"G_t^{-1} = \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} z_t^{n}, \qquad"
        r" z_t^{n} = \sum_{s \le t} (K_s^{\otimes n})^\top",
        "recurrent.recurrent_attention",
        "05_softmax_attention_is_a_sum_of_rnns",
        _denominator,
    ),
    (
        "5.6",
        "softmax is the limit of the orders",
        r"\lim_{N \to \infty}"
        r" \frac{\sum_{n \le N} Q_t^{\otimes n} H_t^{n} / n!}"
        r"{\sum_{n \le N} Q_t^{\otimes n} z_t^{n} / n!}"
        r" = \mathrm{softmax}(Q_t K_{1:t}^\top) V_{1:t}",
        "parallel.parallel_attention",
        "05_softmax_attention_is_a_sum_of_rnns",
        _limit,
    ),
    (
        "5.7",
        "a pure power forgets how long the query is; exp does not",
        r"\frac{\sum_s (c\, Q_t K_s^\top)^n V_s}{\sum_s (c\, Q_t K_s^\top)^n}"
        r" = \frac{\sum_s (Q_t K_s^\top)^n V_s}{\sum_s (Q_t K_s^\top)^n}",
        "parallel.parallel_attention",
        "05_softmax_attention_is_a_sum_of_rnns",
        _homogeneous,
    ),
    (
        "7.1",
        "t times G_t is one over the mean weight, so the scores bound it",
        r"t\, G_t = \Big( \frac{1}{t} \sum_{s \le t} e^{Q_t K_s^\top} \Big)^{-1}, \qquad"
        r" e^{-\max_{s \le t} Q_t K_s^\top} \le t\, G_t \le e^{-\min_{s \le t} Q_t K_s^\top}",
        "parallel.parallel_attention",
        "07_denominator_gate_norm",
        _mean_weight,
    ),
    (
        "7.2",
        "the paper's Gate form: a learned gate and 1/t for the denominator",
        r"O_t = \frac{\sigma_t}{t} \sum_{s \le t} e^{Q_t K_s^\top} V_s, \qquad"
        r" \sigma_t = \mathrm{sigmoid}(x_t w + b)",
        "parallel.parallel_attention",
        "07_denominator_gate_norm",
        _gate_form,
    ),
    (
        "7.3",
        "the Gate form is recurrent",
        r"O_t = \frac{\sigma_t}{t} \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} H_t^{n}",
        "recurrent.recurrent_attention",
        "07_denominator_gate_norm",
        _gate_recurrent,
    ),
    (
        "7.4",
        "the paper's Norm form: a vector of length 1 for every token",
        r"O_t = \mathcal{N}\Big( \sum_{s \le t} e^{Q_t K_s^\top} V_s \Big)"
        r" = \mathcal{N}\Big( \sum_{n \ge 0} \frac{1}{n!}\, Q_t^{\otimes n} H_t^{n} \Big), \qquad"
        r" \mathcal{N}(y) = \frac{y}{\|y\|_2}",
        "normalizers.L2Normalizer",
        "07_denominator_gate_norm",
        _norm_form,
    ),
    (
        "7.5",
        "the Norm form is softmax attention without its length",
        r"\mathcal{N}\Big( \sum_{s \le t} e^{Q_t K_s^\top} V_s \Big)"
        r" = \mathcal{N}\big( \mathrm{softmax}(Q_t K_{1:t}^\top)\, V_{1:t} \big)",
        "normalizers.L2Normalizer",
        "07_denominator_gate_norm",
        _direction,
    ),
    (
        "8.1",
        "one formula with three parts: kernel, normalizer, gates",
        r"O_t = \sigma_t\; \mathcal{N}\Big( \sum_{s \le t}"
        r" \kappa(Q_t, K_s)\, a_{s..t}\, \iota_s\, V_s \Big)",
        "parallel.parallel_attention",
        "08_what_the_names_hide",
        _three_parts,
    ),
    (
        "8.2",
        "a gate before a norm does nothing",
        r"\mathcal{N}(\sigma_t\, y) = \begin{cases} \sigma_t\, \mathcal{N}(y) &"
        r" \mathcal{N} \text{ a sum, } 1/t \text{ or nothing} \\"
        r" \mathcal{N}(y) & \mathcal{N} \text{ a norm, } \sigma_t > 0 \end{cases}",
        "parallel.parallel_attention",
        "08_what_the_names_hide",
        _gate_places,
    ),
    (
        "9.1",
        "weights read from a state of D rows have a matrix of rank D at most",
        r"w(Q_t, K_s) = \phi(Q_t)\, \phi(K_s)^\top \;\text{ with } D \text{ features}"
        r" \quad\Rightarrow\quad \mathrm{rank}\, [\,w(Q_t, K_s)\,]_{t, s} \le D",
        "features.features_of_degree",
        "09_expressiveness",
        _rank,
    ),
    (
        "9.2",
        "the mean squared weight that a pure power gives a random other key",
        r"\mathbb{E}\, \cos^{2n} ="
        r" \frac{1 \cdot 3 \cdots (2n - 1)}{d\, (d + 2) \cdots (d + 2n - 2)}",
        "tasks.capacity.interference",
        "09_expressiveness",
        _overlap,
    ),
    (
        "12.1",
        "any polynomial of the score reads the same states, with other coefficients",
        r"p(x) = \sum_{n=0}^{N} c_n\, x^n \quad\Rightarrow\quad"
        r" \sum_{s \le t} p(Q_t K_s^\top)\, V_s = \sum_{n=0}^{N} c_n\, Q_t^{\otimes n} H_t^{n}",
        "recurrent.recurrent_attention",
        "12_beyond_taylor",
        _other_coefficients,
    ),
    (
        "12.2",
        "an error counts against the sum of its own row",
        r"\min_{c_0, \dots, c_N}\; \sum_{t} \sum_{s \le t} \left("
        r" \frac{p(l_{ts}) - e^{l_{ts}}}{\sum_{u \le t} e^{l_{tu}}} \right)^{2},"
        r" \qquad l_{ts} = Q_t K_s^\top",
        "fitting.least_squares",
        "12_beyond_taylor",
        _weight_criterion,
    ),
    (
        "12.3",
        "a polynomial that is nowhere negative is a sum of two squares",
        r"p(x) \ge 0 \text{ for all } x \quad\Leftrightarrow\quad p = q_1^2 + q_2^2",
        "families.ChebyshevPolynomial",
        "12_beyond_taylor",
        _sum_of_squares,
    ),
]

EQUATIONS = {
    number: Equation(number, title, latex, _LIBRARY + function, notebook, measure)
    for number, title, latex, function, notebook, measure in _ROWS
}
