"""The registry of variants: all names, what each computes, and which of them coincide."""

import math

import pytest
import torch

from softattn_lib.attention import FORMS
from softattn_lib.kernels import ExpKernel
from softattn_lib.layers import SoftAttention, rotary_embedding, rotate
from softattn_lib.polynomials import taylor
from softattn_lib.variants import (
    EQUALITIES,
    VARIANTS,
    AttentionVariant,
    VariantUnavailableError,
    equivalents,
    variant,
    with_clamp,
)

FAMILIES = ["taylor_1", "taylor_2", "taylor_3", "taylor_4", "power_2", "power_4"]
BUILDABLE = [name for name, entry in VARIANTS.items() if not entry.unavailable] + FAMILIES
B, T, HIDDEN, HEADS, KEY_HEADS, WIDTH = 3, 9, 10, 6, 2, 4
quiet = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


def make_layer(name, key_heads=KEY_HEADS):
    """A layer in float64 with random weights that depend on a parameter's name and shape alone."""
    layer = SoftAttention(name, HIDDEN, HEADS, key_heads, head_dim=WIDTH).double()
    for parameter_name, parameter in layer.named_parameters():
        seed = sum(map(ord, parameter_name)) + 7 * parameter.numel()
        values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            parameter.copy_(0.6 * values + (parameter_name == "norm_weight"))
    return layer


def inputs(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(B, T, HIDDEN, generator=generator, dtype=torch.float64)


def test_the_registry_holds_the_38_names_of_the_paper_in_order():
    numbers = [entry.number for entry in VARIANTS.values() if entry.number]
    assert numbers == list(range(1, 39))
    assert sum(bool(entry.unavailable) for entry in VARIANTS.values()) == 5


# The formula of each row once more, as one head's loop over queries: scores l (T, T), clamped
# scores c, number n of visible keys, gates o and i, values v. It shares no code with the library.


def norm(y):
    return y / y.square().sum().sqrt()


def rms(y, p):
    return y / (y.square().mean() + 1e-6).sqrt() * p["weight"]


def layer_norm(y, p):
    centred = y - y.mean()
    return centred / (centred.square().mean() + 1e-5).sqrt() * p["weight"] + p["bias"]


HAND = {
    "softmax": lambda r: r.e @ r.v / r.e.sum(),
    "softmax_clamp_denom": lambda r: r.c @ r.v / max(1, r.c.sum()),
    "softmax_detach_denom": lambda r: r.c @ r.v / max(1, r.c.sum()),
    "softmax_detach_denom_gate": lambda r: r.o * (r.c @ r.v) / (r.c.sum() + 1e-4),
    "softmax_divs": lambda r: r.c @ r.v / r.n,
    "softmax_gate": lambda r: r.o * (r.c @ r.v),
    "softmax_divS_gate": lambda r: r.o * (r.c @ r.v) / r.n,
    "softmax_divS_gatev2": lambda r: r.o * r.c @ r.v / r.n,
    "softmax_divS_norm": lambda r: rms(r.c @ r.v / r.n, r.p),
    "softmax_taylor_80terms": lambda r: (
        sum(r.s**n / float(math.factorial(n)) for n in range(80)) @ r.v
    ),
    "gated_softmax": lambda r: layer_norm(r.o * (r.c * r.i) @ r.v / r.n, r.p),
    "gated_softmax_no_norm": lambda r: r.o * (r.c * r.i) @ r.v / r.n,
    "gated_softmax_no_in_gate": lambda r: layer_norm(r.o * r.c @ r.v / r.n, r.p),
    "gated_softmax_no_out_gate": lambda r: layer_norm((r.c * r.i) @ r.v / r.n, r.p),
    "gated_softmax_no_out_gate_no_norm": lambda r: (r.c * r.i) @ r.v / r.n,
    "gated_softmax_no_in_gate_no_norm": lambda r: r.o * r.c @ r.v / r.n,
    "gated_relu_no_in_gate_no_norm": lambda r: (
        r.o * (r.relu / math.sqrt(WIDTH)).clamp(max=5) @ r.v / r.n
    ),
    "gated_softmax_no_gate": lambda r: layer_norm(r.c @ r.v / r.n, r.p),
    "gated_softmax_no_gate_L2norm_nodivS": lambda r: norm(r.c @ r.v),
    "gated_softmax_no_gate_L2norm_nodivS_noclamp": lambda r: norm(r.e @ r.v),
    "gated_ReLU_no_gate_L2norm_nodivS_noclamp": lambda r: norm(r.relu @ r.v),
    "gated_softmax_out_gate_L2norm_nodivS_noclamp": lambda r: norm(r.o * r.e @ r.v / r.n),
    "gated_softmax_post_out_gate_L2norm_nodivS_noclamp": lambda r: r.o * norm(r.e @ r.v / r.n),
    "gated_softmax_no_gate_rmsnorm": lambda r: rms(r.c @ r.v / r.n, r.p),
    "gated_softmax_no_gate_rmsnorm_nodivS": lambda r: rms(r.c @ r.v, r.p),
    "gated_softmax_no_gate_no_norm": lambda r: r.c @ r.v / r.n,
    "gated_softmax_no_gate_customnorm": lambda r: WIDTH * norm(r.c @ r.v / r.n),
    "gated_softmax_cumgate": lambda r: r.c @ r.v / max(1, r.g.exp().sum()),
    "cumulative_gated_softmax": lambda r: (-r.g[-1]).exp() * (r.c @ r.v) / r.n,
    "gated_softmax_decay": lambda r: layer_norm(
        r.o * (r.c * (r.running[-1] - r.running).div(1024).exp() * r.i) @ r.v / r.n, r.p
    ),
    "linear_elu": lambda r: r.elu @ r.v / r.elu.sum(),
    "linear_relu": lambda r: r.relu @ r.v / (r.relu.sum() + 1e-8),
    "linear_cosine": lambda r: (r.heads_cosine / torch.arange(1, r.n + 1) ** r.m) @ r.v,
    "l2": lambda r: norm(r.e @ r.v),
    "rms": lambda r: rms(r.e @ r.v, r.p),
    "gate": lambda r: r.o * (r.e @ r.v) / r.n,
    "gate_without_1_over_t": lambda r: r.o * (r.e @ r.v),
    "1_over_t": lambda r: r.e @ r.v / r.n,
    "no_denominator": lambda r: r.e @ r.v,
    "cosine": lambda r: r.cosine @ r.v / r.n**r.m,
    "layer": lambda r: layer_norm(r.e @ r.v, r.p),
    "power_2_decay": lambda r: (w := r.s**2 * (r.soft[-1] - r.soft).exp()) @ r.v / w.sum(),
    "taylor_2": lambda r: (w := 1 + r.s + r.s**2 / 2) @ r.v / w.sum(),
    "power_4": lambda r: r.s**4 @ r.v / (r.s**4).sum(),
}


class Row:
    """What the formulas of `HAND` need of query t of one head."""

    def __init__(self, layer, x, head, t):
        split = lambda y: y.unflatten(-1, (-1, WIDTH)).transpose(0, 1)  # noqa: E731
        q, k, v = (split(p(x)) for p in (layer.q_proj, layer.k_proj, layer.v_proj))
        q_plain, k_plain = q, k
        if layer.variant.rotary:
            cos, sin = rotary_embedding(T, WIDTH, 10000.0, like=x)
            q, k = (rotate(y[None], cos, sin)[0] for y in (q, k))
        self.n, self.v = t + 1, v[head, : t + 1]
        query, keys = q[head, t], k[head, : t + 1]
        self.s = keys @ query / math.sqrt(WIDTH)
        self.e, self.c = self.s.exp(), self.s.clamp(max=5).exp()
        self.relu = keys.relu() @ query.relu()
        elu = torch.nn.functional.elu
        self.elu = (elu(keys) + 1) @ (elu(query) + 1)
        self.cosine = keys @ query / keys.norm(dim=-1) / query.norm()
        over_heads = lambda y: y / y.norm(dim=0, keepdim=True)  # noqa: E731
        turned = (
            [rotate(over_heads(y)[None], cos, sin)[0] for y in (q_plain, k_plain)]
            if (layer.variant.norm_over_heads)
            else (q, k)
        )
        self.heads_cosine = turned[1][head, : t + 1] @ turned[0][head, t]
        if layer.variant.output_gate in ("sigmoid", "exp_negative", "running_sum"):
            self.g = layer.output_gate(x)[: t + 1, head]
            self.o = self.g[-1].sigmoid()
        if layer.variant.input_gate == "sigmoid":
            self.i = layer.input_gate(x)[: t + 1, head].sigmoid()
        if layer.variant.decay:
            g = layer.decay(x)[:, head]
            before = torch.cat([torch.zeros(1), g[:-1]])
            self.running = before.cumsum(0)[: t + 1]
            self.soft = -torch.nn.functional.softplus(g).cumsum(0)[: t + 1]
        if hasattr(layer, "position_power"):
            self.m = layer.position_power[head].sigmoid()
        if layer.variant.learned_norm:
            self.p = {"weight": layer.norm_weight, "bias": getattr(layer, "norm_bias", None)}


@quiet
@pytest.mark.parametrize("name", HAND)
def test_a_variant_computes_its_formula(name):
    layer, x = make_layer(name, key_heads=HEADS), inputs()
    layer.o_proj = torch.nn.Identity()
    out, _ = layer(x)
    for b, head, t in ((0, 0, 0), (1, 3, 4), (2, 5, T - 1)):
        expected = HAND[name](Row(layer, x[b], head, t))
        got = out[b, t].unflatten(-1, (-1, WIDTH))[head]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


def test_every_buildable_row_of_the_paper_is_checked_by_hand():
    assert {n for n, entry in VARIANTS.items() if not entry.unavailable} <= set(HAND)


@quiet
@pytest.mark.parametrize("name", BUILDABLE)
def test_pieces_with_memory_equal_the_whole(name):
    layer, x = make_layer(name), inputs()
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1, :4] = False
    whole, _ = layer(x, key_mask=mask)
    cos, sin = rotary_embedding(T, WIDTH, 10000.0, like=x)
    memory, pieces = None, []
    for start, stop in ((0, 5), (5, 6), (6, T)):
        piece, memory = layer(
            x[:, start:stop],
            rotary=(cos[:, start:stop], sin[:, start:stop]),
            key_mask=mask[:, start:stop],
            memory=memory,
            remember=True,
        )
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 1)[mask], whole[mask], rtol=1e-9, atol=1e-9)


@quiet
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [n for n in BUILDABLE if make_layer(n).keeps_state])
def test_forms_of_a_layer_agree(name, form):
    layer, x = make_layer(name), inputs()
    torch.testing.assert_close(layer(x, form=form)[0], layer(x)[0], rtol=1e-9, atol=1e-9)


@quiet
@pytest.mark.parametrize("names, reason", EQUALITIES, ids=lambda value: str(value)[:40])
def test_equal_variants_are_equal(names, reason):
    outputs = [make_layer(name)(inputs())[0] for name in names]
    tolerance = 1e-12
    if "eps" in reason:  # eps keeps the cancelled factor visible where the output is tiny
        tolerance = 0.2
    for other in outputs[1:]:
        assert (other - outputs[0]).abs().max() < tolerance * outputs[0].abs().max()


def test_two_names_of_one_formula_are_called_so():
    """Names that need a reason beside that have formulas that are written differently."""
    for names, reason in EQUALITIES:
        different = len({VARIANTS[name].formula for name in names})
        if reason == "the same formula under two names":
            assert different == 1, names
        else:
            assert different > 1, names
    assert equivalents("l2") == {
        "gated_softmax_no_gate_L2norm_nodivS_noclamp": "the same formula under two names",
        "gated_softmax_out_gate_L2norm_nodivS_noclamp": "a positive scalar (gate, 1/n_t) cancels "
        "inside the L2 norm",
    }


def test_eps_is_all_that_separates_gated_layer_norms(monkeypatch):
    from softattn_lib import layers
    from softattn_lib.normalizers import LayerNormalizer

    plain = layers.SoftAttention._normalizer

    def without_eps(self, normalizer):
        made = plain(self, normalizer)
        if isinstance(made, LayerNormalizer):
            return LayerNormalizer(weight=made.weight, bias=made.bias)
        return made

    monkeypatch.setattr(layers.SoftAttention, "_normalizer", without_eps)
    for names in (
        ("gated_softmax", "gated_softmax_no_out_gate"),
        ("gated_softmax_no_in_gate", "gated_softmax_no_gate"),
    ):
        first, second = (make_layer(name)(inputs())[0] for name in names)
        torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-9)


def test_different_variants_differ():
    """Names that no equality joins give different outputs."""
    x = inputs()
    names = [n for n in VARIANTS if not VARIANTS[n].unavailable and n != "softmax_taylor_80terms"]
    outputs = {name: make_layer(name)(x)[0] for name in names}
    for first in names:
        for second in names:
            if first < second and second not in equivalents(first):
                assert (outputs[first] - outputs[second]).abs().max() > 1e-9, (first, second)


def test_a_gate_before_a_norm_gets_no_gradient():
    layer = make_layer("gated_softmax_out_gate_L2norm_nodivS_noclamp")
    layer(inputs())[0].square().sum().backward()
    assert layer.output_gate.weight.grad.abs().max() < 1e-12
    assert layer.q_proj.weight.grad.abs().max() > 1e-3


def test_detached_denominator_changes_only_gradients():
    grads = []
    for name in ("softmax_clamp_denom", "softmax_detach_denom"):
        layer = make_layer(name)
        layer(inputs())[0].square().sum().backward()
        grads.append(layer.q_proj.weight.grad)
    assert (grads[0] - grads[1]).abs().max() > 1e-3


@pytest.mark.parametrize("name", [n for n, entry in VARIANTS.items() if entry.unavailable])
def test_rows_that_cannot_be_built_say_why(name):
    with pytest.raises(VariantUnavailableError, match=name):
        SoftAttention(name, HIDDEN, HEADS)


def test_an_unknown_name_lists_the_legal_ones():
    with pytest.raises(KeyError, match="taylor_N"):
        variant("softmacks")


def test_a_clamp_is_for_exp_alone():
    assert with_clamp("gate", 5.0).kernel.clamp == 5.0
    for clamp in (5.0, 2.5):
        named = variant(with_clamp("gate", clamp).name)
        assert (named.kernel, named.normalizer) == (ExpKernel(clamp), VARIANTS["gate"].normalizer)
    with pytest.raises(ValueError, match="linear_relu"):
        with_clamp("linear_relu", 5.0)


def test_what_a_variant_learns():
    assert VARIANTS["gated_softmax_decay"].learnables == (
        "input gate",
        "output gate",
        "decay",
        "norm",
    )
    assert VARIANTS["gated_softmax_cumgate"].learnables == ("output gate",)
    assert VARIANTS["linear_cosine"].learnables == ("power of position",)  # one m a head, no gate
    assert VARIANTS["cosine"].learnables == ("power of position",)
    assert VARIANTS["l2"].learnables == ()


def test_state_sizes():
    assert variant("taylor_2").state_size(16, 16) == 153 * 17
    assert variant("linear_relu").state_size(64, 64) == 64 * 65
    assert variant("softmax").state_size(64, 64) is None


def test_a_layer_has_the_llama_names_and_nothing_more():
    assert sorted(SoftAttention("softmax", HIDDEN, HEADS).state_dict()) == [
        "k_proj.weight",
        "o_proj.weight",
        "q_proj.weight",
        "v_proj.weight",
    ]


@quiet
@pytest.mark.parametrize("name", BUILDABLE)
def test_every_variant_runs_in_mixed_precision(name):
    layer, x = make_layer(name).float(), inputs().float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, memory = layer(x, remember=True)
        next_out, _ = layer(x[:, -1:], memory=memory, remember=True)
    assert out.dtype == next_out.dtype == torch.bfloat16
    assert out.isfinite().all() and next_out.isfinite().all()
    assert memory.state is None or memory.state.sums.dtype == torch.float32


@quiet
@pytest.mark.parametrize("name", ["l2", "no_denominator", "linear_relu", "taylor_3", "power_2"])
def test_mixed_precision_keeps_the_sums_in_float32(name):
    layer, x = make_layer(name, key_heads=HEADS).float(), inputs().float()
    layer.o_proj = torch.nn.Identity()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, _ = layer(x, form="parallel")
        q, k, v = layer._heads(x, None, None)
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16
    expected, _ = FORMS["parallel"](q.float(), k.float(), v.float(), **layer._core())
    assert torch.equal(out, expected.transpose(1, 2).flatten(2).bfloat16())


def test_a_polynomial_and_names_will_do_for_the_parts_of_a_variant():
    mine = AttentionVariant("mine", formula="x", kernel=taylor(3), normalizer="l2")
    assert mine.kernel == variant("taylor_3").kernel
    assert mine.normalizer == VARIANTS["l2"].normalizer
    assert mine.state_size(4, 4) == variant("taylor_3").state_size(4, 4)
    with pytest.raises(TypeError, match="kernel must be a Polynomial"):
        AttentionVariant("mine", formula="x", kernel=3)
