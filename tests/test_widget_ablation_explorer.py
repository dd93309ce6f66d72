"""The ablation explorer: every combination against the formula, names and equivalents, controls."""

import functools
import math
from itertools import combinations, product

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib import VARIANTS, SoftAttention, equivalents, parallel_attention, variant
from softattn_lib.widgets import ablation_explorer
from softattn_lib.widgets.ablation_explorer import (
    GATES,
    KERNELS,
    NAMED,
    NORMALIZERS,
    Example,
    combine,
    compute,
    draw,
    essence,
    example,
    formula,
    mount,
    read_out,
)

pytestmark = pytest.mark.slow  # figures are drawn by the hundred

INPUTS = example()
T, E = INPUTS.v.shape
ALL = list(product(KERNELS, NORMALIZERS, GATES))
SIGNED = {"taylor_1", "identity", "cosine"}

shown = functools.cache(functools.partial(compute, INPUTS))  # the product is wanted often
each_kernel = pytest.mark.parametrize("kernel", KERNELS)


def weight_by_hand(kernel, q, k):
    """The weight of one key for one query, in plain arithmetic."""
    score = (q @ k).item() / math.sqrt(len(q))
    elu = lambda x: torch.where(x > 0, x + 1, x.exp())  # noqa: E731
    series = lambda order: sum(score**n / math.factorial(n) for n in range(order + 1))  # noqa: E731
    return {
        "exp": lambda: math.exp(score),
        "exp_clamp5": lambda: math.exp(min(score, 5)),
        "taylor_1": lambda: series(1),
        "taylor_2": lambda: series(2),
        "taylor_4": lambda: series(4),
        "taylor_6": lambda: series(6),
        "power_2": lambda: score**2,
        "identity": lambda: q @ k,
        "relu": lambda: q.clamp(min=0) @ k.clamp(min=0),
        "elu_plus_one": lambda: elu(q) @ elu(k),
        "cosine": lambda: q @ k / q.norm() / k.norm(),
    }[kernel]()


def by_hand(inputs, kernel, normalizer, gates):
    """Outputs (T, e) of the formula as a loop; it shares no code with the library."""
    out = torch.zeros_like(inputs.v)
    for t in range(len(inputs.v)):
        plain = [float(weight_by_hand(kernel, inputs.q[t], k)) for k in inputs.k[: t + 1]]
        plain = torch.tensor(plain, dtype=torch.float64)
        if gates == "decay":
            plain = plain * torch.stack(
                [inputs.log_decay[s + 1 : t + 1].sum().exp() for s in range(t + 1)]
            )
        weights = plain
        if gates in ("input", "both"):
            weights = weights * inputs.input_gate[: t + 1]
        y = weights @ inputs.v[: t + 1]
        if gates in ("output_before", "both"):
            y = y * inputs.output_gate[t]
        centred = y - y.mean()
        total = plain.sum()
        y = {
            "sum": lambda y=y, total=total: y / total if total else 0 * y,
            "visible_keys": lambda y=y, t=t: y / (t + 1),
            "none": lambda y=y: y,
            "l2": lambda y=y: y / y.square().sum().sqrt() if y.any() else y,
            "rms": lambda y=y: y / (y.square().mean() + 1e-6).sqrt(),
            "layer": lambda c=centred: c / (c.square().mean() + 1e-5).sqrt(),
        }[normalizer]()
        out[t] = y * inputs.output_gate[t] if gates == "output_after" else y
    return out


@each_kernel
def test_outputs_are_those_of_the_formula(kernel):
    for normalizer, gates in product(NORMALIZERS, GATES):
        result = shown(kernel, normalizer, gates)
        expected = by_hand(INPUTS, kernel, normalizer, gates).numpy()
        np.testing.assert_allclose(
            result.outputs, expected, rtol=1e-9, atol=1e-10, err_msg=f"{normalizer}, {gates}"
        )


@each_kernel
def test_weights_times_values_are_the_outputs_before_a_norm(kernel):
    for normalizer, gates in product(NORMALIZERS, GATES):
        result = shown(kernel, normalizer, gates)
        assert np.isnan(result.weights[np.triu_indices(T, 1)]).all()
        got = np.nan_to_num(result.weights) @ INPUTS.v.numpy()
        without_norm = normalizer in ("sum", "visible_keys", "none")
        if not without_norm:
            gates = "none" if gates == "output_after" else gates
        expected = by_hand(INPUTS, kernel, normalizer if without_norm else "none", gates)
        np.testing.assert_allclose(got, expected.numpy(), rtol=1e-9, atol=1e-9)


def test_softmax_is_softmax():
    result = compute(INPUTS)
    np.testing.assert_allclose(result.outputs, result.softmax, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.nansum(result.weights, 1), 1)
    np.testing.assert_allclose(result.cosines, 1)
    assert result.names == ("softmax",) and result.equivalents == {} and result.warning == ""
    assert "that of softmax attention at every token" in read_out(result)


def test_l2_keeps_the_direction_of_softmax_and_layer_does_not():
    np.testing.assert_allclose(compute(INPUTS, "exp", "l2").lengths, 1)
    np.testing.assert_allclose(compute(INPUTS, "exp", "l2").cosines, 1)
    assert compute(INPUTS, "exp", "layer").cosines.min() < 0.9
    assert "the smallest cosine" in read_out(compute(INPUTS, "exp", "layer"))


@each_kernel
def test_state_size_and_learnables(kernel):
    for normalizer, gates in product(NORMALIZERS, GATES):
        result = shown(kernel, normalizer, gates)
        chosen = combine(kernel, normalizer, gates)
        _, state = parallel_attention(
            INPUTS.q, INPUTS.k, INPUTS.v, kernel=chosen.kernel, normalizer="none"
        )
        words = read_out(result)
        if state is None:
            assert result.state_size is None and kernel.startswith("exp")
            assert "none of constant size" in words
        else:
            assert result.state_size == state.sums.numel() == result.features * (E + 1)
            assert f"{result.features} × {E + 1} = {result.state_size} numbers" in words
        learned = {"none": (), "input": ("input gate",), "decay": ("decay",)}.get(gates)
        if learned is None:
            learned = ("input gate",) * (gates == "both") + ("output gate",)
        assert result.learnables == learned + ("norm",) * (normalizer in ("rms", "layer"))


@pytest.mark.filterwarnings("error")
def test_weights_of_both_signs_over_their_sum_are_warned_of_in_the_read_out():
    for kernel, normalizer in product(KERNELS, NORMALIZERS):
        result = compute(INPUTS, kernel, normalizer)  # and no warning leaves the widget
        expected = kernel in SIGNED and normalizer == "sum"
        assert bool(result.warning) == expected == ("<b>Warning:</b>" in read_out(result))


# Names and equivalents


def test_every_name_has_the_chosen_parts():
    found = {}
    for values in ALL:
        chosen = combine(*values)
        for name in shown(*values).names:
            entry = variant(name)
            assert entry.kernel == chosen.kernel and entry.normalizer == chosen.normalizer
            assert (entry.input_gate, entry.output_gate) == (chosen.input_gate, chosen.output_gate)
            assert entry.decay == chosen.decay and entry.rotary and not entry.norm_over_heads
            found.setdefault(name, []).append(values)
    assert all(len(places) == 1 for places in found.values())
    expected = {
        "softmax": ("exp", "sum", "none"),
        "softmax_gate": ("exp_clamp5", "none", "output_after"),
        "softmax_divS_gatev2": ("exp_clamp5", "visible_keys", "output_before"),
        "gated_softmax_no_out_gate_no_norm": ("exp_clamp5", "visible_keys", "input"),
        "gate": ("exp", "visible_keys", "output_after"),
        "linear_elu": ("elu_plus_one", "sum", "none"),
        "power_2_decay": ("power_2", "sum", "decay"),
        "l2_clamp5": ("exp_clamp5", "l2", "none"),
        "layer": ("exp", "layer", "none"),
    }
    assert {name: found[name][0] for name in expected} == expected


def test_known_equivalents_are_all_there_with_their_reasons():
    for values in ALL:
        result = shown(*values)
        for name in result.names:
            for other, reason in equivalents(name).items():
                assert other in result.names or result.equivalents[other] == reason
        assert not set(result.names) & set(result.equivalents)


@pytest.mark.parametrize(
    "values, name, reason",
    [
        (("exp", "l2", "output_before"), "l2", ablation_explorer.IN_A_NORM),
        (("exp_clamp5", "layer", "both"), "gated_softmax", ablation_explorer.IN_A_NORM),
        (("exp", "visible_keys", "output_before"), "gate", ablation_explorer.OF_A_SUM),
        (
            ("exp_clamp5", "visible_keys", "both"),
            "gated_softmax_no_norm",
            ablation_explorer.OF_A_SUM,
        ),
        (("relu", "sum", "none"), "linear_relu", ablation_explorer.EPS_ALONE),
        (
            ("relu", "l2", "none"),
            "gated_ReLU_no_gate_L2norm_nodivS_noclamp",
            ablation_explorer.IN_A_NORM,
        ),
    ],
)
def test_equivalents_beyond_the_names(values, name, reason):
    result = shown(*values)
    assert result.equivalents[name] == reason
    assert f"<code>{name}</code>" in read_out(result) and reason in read_out(result)


def test_essence_joins_exactly_the_variants_that_are_known_to_be_equal():
    entries = [entry for entry in VARIANTS.values() if not entry.unavailable]
    for one, other in combinations(entries, 2):
        if {one.name, other.name} == {"softmax_clamp_denom", "softmax_detach_denom"}:
            continue  # equal values of unequal gradients
        same = essence(one) == essence(other)
        assert same == (other.name in equivalents(one.name)), (one.name, other.name)


def layer_of(entry):
    """A layer of one head whose queries, keys, values and gates are columns of its input."""
    layer = SoftAttention(entry, 3 * E + 2, 1, head_dim=E, rotary_base=None).double()
    eye = torch.eye(3 * E + 2, dtype=torch.float64)
    for n, projection in enumerate((layer.q_proj, layer.k_proj, layer.v_proj)):
        projection.weight.data = eye[n * E : (n + 1) * E]
    layer.o_proj = torch.nn.Identity()
    for n, gate in ((-2, "input_gate"), (-1, "output_gate"), (-1, "decay")):
        if hasattr(layer, gate):
            getattr(layer, gate).weight.data = eye[[n]]
            getattr(layer, gate).bias.data.zero_()
    return layer


@pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")
def test_named_variants_give_the_outputs_that_the_widget_shows():
    """Through the layer, on tokens whose gates are the widget's; equal up to eps."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, T, E, generator=generator, dtype=torch.float64)
    gates = torch.randn(2, T, generator=generator, dtype=torch.float64)
    decay = -torch.nn.functional.softplus(gates[1])
    inputs = Example(q, k, v, *gates.sigmoid(), decay)
    x = torch.cat([q, k, v, gates.T], dim=-1)
    checked = set()
    for values in ALL:
        result = compute(inputs, *values)
        for name in (*result.names, *result.equivalents):
            entry = next(entry for entry in NAMED if entry.name == name)
            with torch.no_grad():
                out, _ = layer_of(entry)(x[None])
            has_eps = values[1] in ("rms", "layer")
            close = {"rtol": 0.02, "atol": 0.02} if has_eps and name not in result.names else {}
            np.testing.assert_allclose(
                out[0].numpy(), result.outputs, **(close or {"rtol": 1e-6, "atol": 1e-9})
            )
            checked.add(name)
    paper = {entry.name for entry in VARIANTS.values() if entry.number and not entry.unavailable}
    assert len(checked & paper) == 23 and len(checked) > 35


# The figure


@each_kernel
def test_figure_shows_the_combination_and_in_place_is_anew(kernel):
    """With every normalizer, and the gates in turn."""
    figure = None
    for n, normalizer in enumerate(NORMALIZERS, start=list(KERNELS).index(kernel)):
        gates = list(GATES)[n % len(GATES)]
        result = shown(kernel, normalizer, gates)
        fresh = draw(result)
        figure = draw(result, figure)
        assert figure == fresh and isinstance(figure, go.Figure)
        weights, lengths, softmax = fresh.data
        np.testing.assert_allclose(np.array(weights.z, float), result.weights, rtol=1e-5)
        np.testing.assert_allclose(lengths.y, np.linalg.norm(result.outputs, axis=-1), rtol=1e-5)
        np.testing.assert_allclose(softmax.y, np.linalg.norm(result.softmax, axis=-1), rtol=1e-5)
        axis = fresh.layout.coloraxis
        assert axis.cmin <= np.nanmin(result.weights) and np.nanmax(result.weights) <= axis.cmax
        negative = (np.nan_to_num(result.weights) < 0).sum()
        caption = fresh.layout.title.subtitle.text.replace("<br>", " ")
        assert f"{negative or 'None'} of the 78 weights" in caption
        assert "nan" not in caption


def test_both_curves_are_seen_where_they_coincide():
    _, chosen, softmax = draw(shown("exp", "sum", "none")).data
    assert tuple(chosen.y) == tuple(softmax.y)
    assert chosen.zorder > (softmax.zorder or 0)  # the thin one on top
    assert chosen.line.width < softmax.line.width and chosen.marker.size < softmax.marker.size


def test_no_two_combinations_have_the_same_read_out():
    """Before or after a sum, a gate does the same; there only the caption differs."""
    words = {values: read_out(shown(*values)) for values in ALL}
    assert "nan" not in "".join(words.values())
    same = [(a, b) for a, b in combinations(ALL, 2) if words[a] == words[b]]
    for one, other in same:
        assert one[:2] == other[:2] and {one[2], other[2]} == {"output_after", "output_before"}
    assert len({ablation_explorer._caption(shown(*values)) for values in ALL}) == len(ALL)


def test_formula():
    assert formula("exp", "sum", "none").endswith("w v<sub>s</sub> / Σ w, w = e<sup>l</sup>")
    assert "= σ<sub>t</sub> L2( Σ" in formula("exp", "l2", "output_after")
    assert "= L2( σ<sub>t</sub> Σ" in formula("exp", "l2", "output_before")
    assert "LN( σ<sub>t</sub> Σ<sub>s≤t</sub> w ι<sub>s</sub> v" in formula("exp", "layer", "both")
    assert formula("taylor_2", "none", "decay").endswith(
        "w = (1 + l + l²/2) e<sup>A<sub>t</sub> − A<sub>s</sub></sup>"
    )
    for kernel, normalizer in product(KERNELS, NORMALIZERS):
        different = len({formula(kernel, normalizer, gates) for gates in GATES})
        # written the same where the gate is only a factor of the one sum
        assert different == len(GATES) - (normalizer in ("sum", "none"))


# The widget


@pytest.fixture
def widget():
    return mount()


def controls(widget):
    return {"kernel": widget.kernel, "normalizer": widget.normalizer, "gates": widget.gates}


def values_of(control):
    return [value for _, value in control._options_full]


def test_every_value_of_every_control_moves_the_figure(widget):
    expected_options = {"kernel": KERNELS, "normalizer": NORMALIZERS, "gates": GATES}
    for name, control in controls(widget).items():
        assert values_of(control) == list(expected_options[name])
        for value in (*values_of(control)[1:], values_of(control)[0]):
            before = widget.read_out.value
            control.value = value
            result = compute(INPUTS, **{n: c.value for n, c in controls(widget).items()})
            shown_weights = np.array(widget.figure.data[0].z, float)
            np.testing.assert_allclose(shown_weights, result.weights, rtol=1e-5)
            np.testing.assert_allclose(widget.figure.data[1].y, result.lengths, rtol=1e-5)
            assert widget.figure.layout == draw(result).layout
            assert widget.read_out.value == read_out(result) != before
        control.value = values_of(control)[-1]
    assert widget.error is None


def test_a_choice_from_the_browser_arrives(widget):
    widget.kernel.set_state({"index": list(KERNELS).index("identity")})
    assert widget.kernel.value == "identity" and "<b>Warning:</b>" in widget.read_out.value


def test_a_part_that_does_not_exist_shows_its_error(widget):
    before = widget.figure.to_json()
    widget.normalizer.options = {**widget.normalizer.options, "<max>": "max"}
    with pytest.raises(ValueError, match=r"normalizer must be one of sum, .*; got max"):
        widget.normalizer.value = "max"
    assert "normalizer must be one of" in widget.error_box.value
    assert widget.figure.to_json() == before
    widget.normalizer.value = "l2"
    assert widget.error is None and widget.error_box.value == ""


def test_weights_that_overflow_show_their_error():
    big = Example(40 * INPUTS.q, 40 * INPUTS.k, *(getattr(INPUTS, n) for n in
                  ("v", "input_gate", "output_gate", "log_decay")))  # fmt: skip
    widget = mount(big)
    with pytest.raises(OverflowError):
        widget.normalizer.value = "none"
    assert "OverflowError" in widget.error_box.value
    widget.kernel.value = "exp_clamp5"
    assert widget.error is None


@pytest.mark.parametrize("control", ["kernel", "normalizer", "gates"])
def test_an_unknown_part_is_named(control):
    with pytest.raises(ValueError, match=f"{control} must be one of .*; got softer"):
        compute(INPUTS, **{control: "softer"})


def test_own_tokens():
    inputs = example(length=5, width=3)
    assert np.shape(mount(inputs).figure.data[0].z) == (5, 5)
