"""The formula of the library for whole tensors in float64, sharing no code with it.

Beside the output it returns how far that may move when weights and sums are rounded: the slack of
a tolerance of 1. For the normalizer "sum" it is the condition of the row, sum |w| / |sum w|, times
the size of values and output. A weight that is itself a sum of cancelling feature products, such as
(q . k)^4 with q almost at right angles to k, counts there with the sum of their absolute values.
`tests/oracle.py` is the same formula once more, as plain loops.
"""

import itertools
import math
from dataclasses import dataclass

import torch

from softattn_lib import (
    FeatureMapKernel,
    L2Normalizer,
    LayerNormalizer,
    Polynomial,
    PolynomialKernel,
    RMSNormalizer,
    SumNormalizer,
    chunked_attention,
    parallel_attention,
    recurrent_attention,
    taylor,
)

SIZES = {"B": 2, "H": 3, "T": 7, "d": 4, "e": 5}  # all different: a swapped axis cannot pass
FORMS = {
    "parallel": parallel_attention,
    "recurrent": recurrent_attention,
    "chunked": lambda *qkv, **options: chunked_attention(*qkv, chunk_size=3, **options),
}
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


class Sums:
    """Numerators and denominators of all rows of a call, before its normalizer.

    weight is a `Weight`; the other arguments are those of `parallel_attention`.
    """

    def __init__(
        self,
        q,
        k,
        v,
        *,
        weight,
        scale,
        input_gate=None,
        output_gate=None,
        gate_position="after",
        log_decay=None,
        is_causal=True,
        enable_gqa=False,
        key_mask=None,
    ):
        q, k, v = q.double(), k.double(), v.double()
        num_queries, num_keys = q.shape[-2], k.shape[-2]
        seen = torch.ones(k.shape[:-1], dtype=torch.bool, device=k.device)
        if key_mask is not None:
            seen = seen & key_mask
        values = v if input_gate is None else v * input_gate.double().unsqueeze(-1)
        values = torch.where(seen.unsqueeze(-1), values, 0.0)
        k = torch.where(seen.unsqueeze(-1), k, 0.0)
        steps = torch.zeros(k.shape[:-1], dtype=torch.float64, device=k.device)
        if log_decay is not None:
            steps = torch.where(seen, log_decay.double().expand(seen.shape), 0.0)
        if enable_gqa:
            groups = q.shape[-3] // k.shape[-3]
            k, values = (x.repeat_interleave(groups, dim=-3) for x in (k, values))
            seen, steps = (x.repeat_interleave(groups, dim=-2) for x in (seen, steps))

        visible = torch.zeros(*q.shape[:-1], num_keys, dtype=torch.bool, device=q.device)
        decay = torch.zeros(*q.shape[:-1], num_keys, dtype=torch.float64, device=q.device)
        for t in range(num_queries):
            now = num_keys - num_queries + t if is_causal else num_keys - 1
            for s in range(now + 1):
                visible[..., t, s] = seen[..., s]
                decay[..., t, s] = steps[..., s + 1 : now + 1].sum(-1).exp()
        w = torch.where(visible, weight(q, k, scale) * decay, 0.0)
        w_size = torch.where(visible, weight.size(q, k, scale) * decay, 0.0)
        self.numerator, self.denominator = w @ values, w.sum(-1, keepdim=True)
        self.size, self.weight_size = w_size @ values.abs(), w_size.sum(-1, keepdim=True)
        self.count = visible.sum(-1, keepdim=True)
        self.gate = 1.0 if output_gate is None else output_gate.double().unsqueeze(-1)
        if gate_position == "before":
            self.numerator, self.size = self.numerator * self.gate, self.size * abs(self.gate)
            self.gate = 1.0

    def over(self, divide):
        """(out, slack), both (..., T_q, e) and float64; divide is a value of `NORMALIZERS`."""
        out = divide.formula(self.numerator, self.denominator, self.count)
        slack = divide.slack(
            self.numerator, self.denominator, self.count, self.size, self.weight_size, out
        )
        hidden = self.count == 0
        return out.masked_fill(hidden, 0) * self.gate, slack.masked_fill(hidden, 0) * abs(self.gate)


class Weight:
    """The weights of all pairs, (..., T_q, T_k), and their size before terms cancel."""

    def __init__(self, features, of_score=lambda score: score, of_size=None):
        self.features, self.of_score, self.of_size = features, of_score, of_size

    def score(self, q, k, scale):
        return scale * torch.einsum("...td,...sd->...ts", q, k)

    def __call__(self, q, k, scale):
        return self.of_score(self.score(self.features(q), self.features(k), scale))

    def size(self, q, k, scale):
        if self.of_size is None:  # positive weights without cancellation to speak of
            return self(q, k, scale)
        return self.of_size(self.score(self.features(q).abs(), self.features(k).abs(), scale))


def polynomial_weight(coefficients, cancels=True):
    def evaluate(coefficients):
        return lambda score: sum(c * score**n for n, c in enumerate(coefficients))

    size = evaluate([abs(c) for c in coefficients]) if cancels else None
    return Weight(lambda x: x, evaluate(coefficients), size)


def mapped_weight(feature_map, cancels=True):
    return Weight(feature_map, of_size=(lambda size: size) if cancels else None)


@dataclass(frozen=True)
class ValuesAndSquares(FeatureMapKernel):
    """Somebody's own kernel, with more features than d."""

    def feature_map(self, x):
        return torch.cat([x, x**2], dim=-1)

    def num_features(self, d):
        return 2 * d


def _polynomial(coefficients, packed=True):
    return PolynomialKernel(Polynomial(coefficients), packed), polynomial_weight(coefficients)


def _taylor(order, packed=True):
    weight = polynomial_weight([1 / math.factorial(n) for n in range(order + 1)], order % 2 == 1)
    return PolynomialKernel(taylor(order), packed), weight


KERNELS = {
    **{f"order{n}": _taylor(n) for n in range(5)},
    **{f"order{n}_full": _taylor(n, packed=False) for n in range(5)},
    **{f"power{n}": _polynomial((0,) * n + (1,)) for n in range(1, 5)},
    "power3_full": _polynomial((0, 0, 0, 1), packed=False),
    "gaps": _polynomial((0.5, 0, -0.3, 0.2)),
    "identity": ("identity", mapped_weight(lambda x: x)),
    "relu": ("relu", mapped_weight(lambda x: x * (x > 0), cancels=False)),
    "elu_plus_one": (
        "elu_plus_one",
        mapped_weight(lambda x: torch.where(x > 0, x + 1, x.exp()), cancels=False),
    ),
    "cosine": ("cosine", mapped_weight(lambda x: x / (x * x).sum(-1, keepdim=True).sqrt())),
    "own": (ValuesAndSquares(), mapped_weight(lambda x: torch.cat([x, x * x], -1))),
}
EXP = ("exp", Weight(lambda x: x, torch.exp))


def divide(numerator, denominator):
    return torch.where(denominator == 0, 0.0, numerator / denominator)


class Sum:
    def __init__(self, floor=None, detach=False, eps=0.0):
        self.floor, self.eps = floor, eps
        self.normalizer = SumNormalizer(floor, detach, eps)

    def divisor(self, denominator):
        return (denominator if self.floor is None else denominator.clamp(self.floor)) + self.eps

    def formula(self, numerator, denominator, count):
        return divide(numerator, self.divisor(denominator))

    def slack(self, numerator, denominator, count, size, weight_size, out):
        return divide(size + out.abs() * weight_size, self.divisor(denominator).abs())


class VisibleKeys:
    normalizer = "visible_keys"

    def formula(self, numerator, denominator, count):
        return numerator / count

    def slack(self, numerator, denominator, count, size, weight_size, out):
        return size / count


class Plain:
    normalizer = "none"

    def formula(self, numerator, denominator, count):
        return numerator

    def slack(self, numerator, denominator, count, size, weight_size, out):
        return size


class L2:
    def __init__(self, eps=0.0):
        self.eps, self.normalizer = eps, L2Normalizer(eps)

    def divisor(self, y):
        return y.square().sum(-1, keepdim=True).sqrt().clamp(self.eps)

    def formula(self, numerator, denominator, count):
        return divide(numerator, self.divisor(numerator))

    def slack(self, numerator, denominator, count, size, weight_size, out):
        return divide(2 * size.norm(dim=-1, keepdim=True), self.divisor(numerator)).expand_as(out)


WEIGHT = [0.5, -1.0, 2.0, 1.5, -0.25]  # of e = 5 entries
BIAS = [0.125, 0.25, -0.375, 0.5, 1.0]


class RMS:
    def __init__(self, weight=None, eps=0.0):
        self.weight, self.eps = weight, eps
        self.normalizer = RMSNormalizer(None if weight is None else torch.tensor(weight), eps)

    def divisor(self, y):
        return (y.square().mean(-1, keepdim=True) + self.eps).sqrt()

    def factor(self, y):
        return y.new_tensor([1.0] if self.weight is None else self.weight)

    def formula(self, numerator, denominator, count):
        return divide(numerator, self.divisor(numerator)) * self.factor(numerator)

    def slack(self, numerator, denominator, count, size, weight_size, out):
        gain = divide(2 * size.norm(dim=-1, keepdim=True), self.divisor(numerator))
        return (gain * self.factor(numerator).abs()).expand_as(out)


class Layer(RMS):
    def __init__(self, weight=None, bias=None, eps=0.0):
        super().__init__(weight, eps)
        self.bias = bias
        tensors = (None if x is None else torch.tensor(x) for x in (weight, bias))
        self.normalizer = LayerNormalizer(*tensors, eps)

    def divisor(self, y):
        return super().divisor(y - y.mean(-1, keepdim=True))

    def formula(self, numerator, denominator, count):
        bias = numerator.new_tensor([0.0] if self.bias is None else self.bias)
        centred = numerator - numerator.mean(-1, keepdim=True)
        return divide(centred, self.divisor(numerator)) * self.factor(numerator) + bias

    def slack(self, *sizes):
        return super().slack(*sizes) + (0 if self.bias is None else 1)


NORMALIZERS = {
    "sum": Sum(),
    "sum_floor": Sum(floor=0.7),
    "sum_detach": Sum(detach=True),
    "sum_eps": Sum(eps=0.3),
    "visible_keys": VisibleKeys(),
    "none": Plain(),
    "l2": L2(),
    "l2_eps": L2(eps=0.5),
    "rms": RMS(),
    "rms_weight_eps": RMS(WEIGHT, eps=0.2),
    "layer": Layer(),
    "layer_weight_bias_eps": Layer(WEIGHT, BIAS, eps=0.1),
}


def inputs(dtype=torch.float64, device="cpu", seed=0, num_queries=None, groups=1, **sizes):
    """q (B, H * groups, T_q, d), k (B, H, T, d), v (B, H, T, e), and the generator for more."""
    generator = torch.Generator().manual_seed(seed)
    b, h, t, d, e = ({**SIZES, **sizes}[name] for name in "BHTde")
    num_queries = t if num_queries is None else num_queries
    shapes = ((b, h * groups, num_queries, d), (b, h, t, d), (b, h, t, e))
    draw = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (*(x.to(device, dtype) for x in draw), generator)


def gates(generator, q, k, *, gate=None, decay=False, mask=False):
    """The options of a call with gates ("after" or "before"), decay and a mask of keys."""

    def uniform(shape):
        draw = torch.rand(shape, generator=generator, dtype=torch.float64)
        return draw.to(q.device, q.dtype)

    options = {}
    if gate is not None:
        options.update(input_gate=uniform(k.shape[:-1]) + 0.1, gate_position=gate)
        options.update(output_gate=uniform(q.shape[:-1]) + 0.1)
    if decay:
        options["log_decay"] = -uniform(k.shape[:-1])
    if mask:
        options["key_mask"] = uniform(k.shape[:-1]) < 0.7
    return options


def largest_ratios(errors, slack):
    """For errors (n, ...): the largest of each in units of slack (...); NaN counts as infinite."""
    errors = errors.detach().abs().double()
    ratios = torch.where(errors == 0, 0.0, errors / slack).nan_to_num(nan=math.inf)
    return [ratio.max().item() if ratio.numel() else 0.0 for ratio in ratios]


SCALE = 0.45  # of no default
# For `compare`: gates, decay, key mask, causal, query heads per key head
SETTINGS = list(itertools.product((None, "after", "before"), (0, 1), (0, 1), (True, False), (1, 2)))
WORST = {}  # (form, dtype): the largest error of all comparisons so far, in units of the slack


def compare(kernel_name, settings, dtype, device, forms=FORMS):
    """Every form against the reference, and against each other, under every normalizer."""
    kernel, weight = KERNELS.get(kernel_name, EXP)
    for seed, (gate, decay, mask, is_causal, groups) in settings:
        q, k, v, generator = inputs(dtype, device, seed=seed, groups=groups)
        options = gates(generator, q, k, gate=gate, decay=decay, mask=mask)
        options.update(scale=SCALE, is_causal=is_causal, enable_gqa=groups > 1)
        sums = Sums(q, k, v, weight=weight, **options)
        for name, divide in NORMALIZERS.items():
            options.update(kernel=kernel, normalizer=divide.normalizer)
            outs, states = zip(*(form(q, k, v, **options) for form in forms.values()), strict=True)
            assert {out.dtype for out in outs} == {dtype}
            expected, slack = sums.over(divide)
            case = (name, gate, decay, mask, is_causal, groups)
            assert_close(torch.stack(outs), expected, slack, dtype, forms, case)
        if len(forms) > 1:
            assert_same_states(states, dtype)


def assert_close(outs, expected, slack, dtype, forms, case=()):
    """outs (forms, ...): each is the reference, and no two lie further apart."""
    for form, error in zip(forms, largest_ratios(outs - expected, slack), strict=True):
        assert error <= TOLERANCE[dtype], (form, error, *case)
        WORST[form, dtype] = max(WORST.get((form, dtype), 0.0), error)
    spread = largest_ratios((outs.amax(0) - outs.amin(0)).unsqueeze(0), slack)
    assert spread[0] <= TOLERANCE[dtype], ("between forms", spread, *case)


def assert_same_states(states, dtype):
    sums = torch.stack([state.sums for state in states])
    size = 1 + sums.abs().amax((0, -1), keepdim=True)
    assert (sums.amax(0) - sums.amin(0) <= TOLERANCE[dtype] * size).all()
    for state in states[1:]:
        assert torch.equal(state.visible, states[0].visible)
        assert (state.feature_set, state.scale) == (states[0].feature_set, states[0].scale)
