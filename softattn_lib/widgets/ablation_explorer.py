"""One formula, three parts to choose: kernel, normalizer, gates.

    out_t = output_gate_t * NORMALIZER( sum_{s <= t} KERNEL(q_t . k_s) * decay_{s..t}
                                        * input_gate_s * v_s )

The widget shows the weights, the length of the outputs beside that of softmax attention's, the
state, and the names under which the paper's code and this library have the combination.
"""

import html
import warnings
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import plotly.graph_objects as go
import torch
import torch.nn.functional as F
from plotly.subplots import make_subplots

from ..call import SignedWeightsWarning
from ..figures import color_axis, heatmap
from ..kernels import KERNELS as PLAIN_KERNELS
from ..kernels import ExpKernel, FeatureMapKernel
from ..normalizers import (
    L2Normalizer,
    LayerNormalizer,
    NoNormalizer,
    RMSNormalizer,
    SumNormalizer,
    VisibleKeysNormalizer,
)
from ..parallel import parallel_attention, softmax_attention
from ..theme import TEMPLATE, cells, compact, headline, style
from ..variants import VARIANTS, AttentionVariant, equivalents, variant
from .base import WIDE, Explorer, ipywidgets


@dataclass(frozen=True)
class Part:
    """One choice of a control.

    Attributes:
        label: in the control.
        formula: HTML; of a normalizer with a gap for the sum of the weighted values.
        fields: of the `AttentionVariant`.
    """

    label: str
    formula: str
    fields: dict


def _like(name, *fields):
    return {field: getattr(variant(name), field) for field in fields}


def _taylor(order):
    terms = ("l", "l²/2", "l³/6", "l⁴/24", "l⁵/120", "l⁶/720")
    formula = " + ".join(("1", *terms[:order]))
    return Part(f"Taylor, order {order}", formula, _like(f"taylor_{order}", "kernel"))


def _feature_map(name, label, formula):  # the paper's linear entries have no 1 / sqrt(d)
    return Part(label, formula, {"kernel": PLAIN_KERNELS[name], "scale": 1.0})


KERNELS = {
    "exp": Part("exp", "e<sup>l</sup>", {"kernel": ExpKernel()}),
    "exp_clamp5": Part(
        "exp, clamped at 5", "e<sup>min(l, 5)</sup>", {"kernel": ExpKernel(clamp=5.0)}
    ),
    "taylor_1": _taylor(1),
    "taylor_2": _taylor(2),
    "taylor_4": _taylor(4),
    "taylor_6": _taylor(6),
    "power_2": Part("power 2", "l²", _like("power_2", "kernel")),
    "identity": _feature_map("identity", "identity", "q · k"),
    "relu": _feature_map("relu", "relu", "relu(q) · relu(k)"),
    "elu_plus_one": _feature_map("elu_plus_one", "elu + 1", "(elu(q) + 1) · (elu(k) + 1)"),
    "cosine": _feature_map("cosine", "cosine", "q · k / (|q| |k|)"),
}
NORMALIZERS = {
    "sum": Part("sum", "{} / Σ w", _like("softmax", "normalizer")),
    "visible_keys": Part("1/t", "1/t · {}", _like("1_over_t", "normalizer")),
    "none": Part("none", "{}", _like("no_denominator", "normalizer")),
    "l2": Part("L2", "L2( {} )", _like("l2", "normalizer")),
    "rms": Part("RMS", "RMS( {} )", _like("rms", "normalizer", "learned_norm")),
    "layer": Part("layer", "LN( {} )", _like("layer", "normalizer", "learned_norm")),
}
_BEFORE = {"output_gate": "sigmoid", "gate_position": "before"}
GATES = {
    "none": Part("none", "", {}),
    "output_after": Part("output gate, after", "", {"output_gate": "sigmoid"}),
    "output_before": Part("output gate, before", "", _BEFORE),
    "input": Part("input gate", "", {"input_gate": "sigmoid"}),
    "both": Part("input gate, output gate before", "", {"input_gate": "sigmoid", **_BEFORE}),
    "decay": Part("softplus decay", "", {"decay": "softplus"}),
}
CONTROLS = {"kernel": KERNELS, "normalizer": NORMALIZERS, "gates": GATES}
NORMS = (L2Normalizer, RMSNormalizer, LayerNormalizer)
NAMED = [entry for entry in VARIANTS.values() if not entry.unavailable]
NAMED += [variant(name) for name in KERNELS if name.startswith(("taylor", "power"))]
NAMED += [  # names of ours with the scores clamped
    variant(f"{entry.name}_clamp5")
    for entry in NAMED
    if entry.kernel == ExpKernel() and (entry.number is None or entry.name == "softmax")
]
IN_A_NORM = "a positive factor (gate, 1/n_t, scale) cancels inside a norm, up to its eps"
OF_A_SUM = "a scalar times a sum is the sum of the scaled weights"
EPS_ALONE = "they differ in an eps alone"


@dataclass(frozen=True)
class Example:
    """What goes in: T tokens of one head.

    Attributes:
        q, k, v: (T, d), (T, d), (T, e) float64.
        input_gate, output_gate: (T,) between 0 and 1.
        log_decay: (T,) below 0.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    input_gate: torch.Tensor
    output_gate: torch.Tensor
    log_decay: torch.Tensor


def example(length: int = 12, width: int = 4) -> Example:
    """Random tokens, always the same, with scores of either sign, some of them above 5.

    Example:
        >>> example().q.shape
        torch.Size([12, 4])
    """
    generator = torch.Generator().manual_seed(3)
    q, k, v = torch.randn(3, length, width, generator=generator, dtype=torch.float64)
    gates = torch.randn(3, length, generator=generator, dtype=torch.float64)
    return Example(1.6 * q, 1.6 * k, v, *gates[:2].sigmoid(), -F.softplus(gates[2]))


@dataclass(frozen=True)
class Combination:
    """What the figure shows."""

    kernel: str
    normalizer: str
    gates: str
    weights: np.ndarray  # (T, T), times the values; before a norm; NaN where the key is not visible
    outputs: np.ndarray  # (T, e)
    softmax: np.ndarray  # (T, e), the outputs of softmax attention
    features: int | None  # rows of the state, None without a state of constant size
    state_size: int | None  # numbers in the state
    learnables: tuple[str, ...]
    names: tuple[str, ...]  # variants that have these parts
    equivalents: dict[str, str]  # other variants that compute the same, with the reason
    warning: str

    @property
    def lengths(self) -> np.ndarray:
        """(T,) of the outputs."""
        return np.linalg.norm(self.outputs, axis=-1)

    @property
    def cosines(self) -> np.ndarray:
        """(T,) of the angles between the outputs and softmax attention's; NaN for no output."""
        lengths = self.lengths * np.linalg.norm(self.softmax, axis=-1)
        with np.errstate(invalid="ignore"):
            return (self.outputs * self.softmax).sum(-1) / lengths


def compute(inputs: Example, kernel="exp", normalizer="sum", gates="none") -> Combination:
    """Weights and outputs of a combination, and what it is called.

    Args:
        inputs: see `example`.
        kernel, normalizer, gates: keys of `KERNELS`, `NORMALIZERS`, `GATES`.

    Raises:
        ValueError: for another key, with those that exist.
        OverflowError: for scores whose weights leave the range of float64.

    Example:
        >>> compute(example(), "exp", "l2", "output_before").equivalents.keys()
        dict_keys(['gated_softmax_no_gate_L2norm_nodivS_noclamp', \
'gated_softmax_out_gate_L2norm_nodivS_noclamp', 'l2'])
    """
    chosen = combine(kernel, normalizer, gates)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SignedWeightsWarning)
        outputs = _attend(inputs, inputs.v, chosen)
    d, e = inputs.q.shape[-1], inputs.v.shape[-1]
    names = tuple(entry.name for entry in NAMED if _parts(entry) == _parts(chosen))
    return Combination(
        kernel,
        normalizer,
        gates,
        weights=_weights(inputs, chosen),
        outputs=outputs.numpy(),
        softmax=softmax_attention(inputs.q, inputs.k, inputs.v).numpy(),
        features=chosen.kernel.num_features(d) if chosen.is_recurrent else None,
        state_size=chosen.state_size(d, e),
        learnables=chosen.learnables,
        names=names,
        equivalents=_equivalents(chosen, names),
        warning="; ".join(str(warning.message) for warning in caught),
    )


def combine(kernel: str, normalizer: str, gates: str) -> AttentionVariant:
    """The variant that has these parts.

    Raises:
        ValueError: for a key that does not exist.

    Example:
        >>> combine("exp_clamp5", "visible_keys", "output_after").learnables
        ('output gate',)
    """
    fields = {}
    chosen = {"kernel": kernel, "normalizer": normalizer, "gates": gates}
    for control, name in chosen.items():
        if name not in CONTROLS[control]:
            raise ValueError(f"{control} must be one of {', '.join(CONTROLS[control])}; got {name}")
        fields |= CONTROLS[control][name].fields
    return AttentionVariant("a combination", formula="", **fields)


def _weights(inputs: Example, chosen: AttentionVariant) -> np.ndarray:
    """(T, T) what the values are multiplied by, before a norm; NaN where no key is visible."""
    if isinstance(chosen.normalizer, NORMS):
        gate = chosen.output_gate if chosen.gate_position == "before" else None
        chosen = replace(chosen, normalizer=NoNormalizer(), output_gate=gate)
    one_hot = torch.eye(len(inputs.v), dtype=inputs.v.dtype)  # as values they show the weights
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SignedWeightsWarning)
        weights = _attend(inputs, one_hot, chosen).numpy()
    return np.where(np.tri(len(weights), dtype=bool), weights, np.nan)


def _attend(inputs: Example, values, chosen: AttentionVariant) -> torch.Tensor:
    return parallel_attention(
        inputs.q,
        inputs.k,
        values,
        kernel=chosen.kernel,
        normalizer=chosen.normalizer,
        scale=chosen.scale,
        input_gate=inputs.input_gate if chosen.input_gate else None,
        output_gate=inputs.output_gate if chosen.output_gate else None,
        gate_position=chosen.gate_position,
        log_decay=inputs.log_decay if chosen.decay else None,
        return_state=False,
    )[0]


def _parts(entry: AttentionVariant) -> tuple:
    """All that decides what a variant computes."""
    return (
        entry.kernel,
        entry.normalizer,
        entry.scale,
        entry.input_gate,
        entry.output_gate,
        entry.gate_position,
        entry.decay,
        entry.rotary,
        entry.norm_over_heads,
    )


def essence(entry: AttentionVariant) -> tuple:
    """The parts of a variant without what cancels; equal ones are one function up to an eps.

    A positive factor of a token cancels inside a norm, the scale of a feature map also inside a
    sum. Without a norm, a gate before the normalizer is a gate after it.

    Example:
        >>> gated = variant("gated_softmax_out_gate_L2norm_nodivS_noclamp")
        >>> essence(gated) == essence(variant("l2"))
        True
    """
    steps = getattr(entry.normalizer, "steps", (entry.normalizer,))
    has_norm = any(isinstance(step, NORMS) for step in steps)
    if has_norm:
        steps = [step for step in steps if not isinstance(step, VisibleKeysNormalizer)]
    kinds = tuple(
        replace(step, eps=0.0) if isinstance(step, SumNormalizer) else type(step) for step in steps
    )
    inert = has_norm and entry.gate_position == "before"
    rescaled = isinstance(entry.kernel, FeatureMapKernel) and entry.normalizer.cancels_unit
    return (
        entry.kernel,
        kinds,
        None if rescaled else entry.scale,
        entry.input_gate,
        None if inert else entry.output_gate,
        entry.decay,
        entry.rotary,
        entry.norm_over_heads,
    )


def _equivalents(chosen, names) -> dict[str, str]:
    known = {other: reason for name in names for other, reason in equivalents(name).items()}
    same = [entry for entry in NAMED if essence(entry) == essence(chosen)]
    return {
        entry.name: known.get(entry.name) or _reason(chosen, entry)
        for entry in same
        if entry.name not in names
    }


def _reason(chosen, entry) -> str:
    """Why two variants of one essence are the same."""
    if isinstance(chosen.normalizer, NORMS):
        return IN_A_NORM
    return EPS_ALONE if chosen.gate_position == entry.gate_position else OF_A_SUM


def draw(shown: Combination, figure=None) -> go.Figure:
    """Left, the weights; right, the length of each output and of softmax attention's.

    Traces: 0 the weights, 1 the lengths, 2 those of softmax attention.

    Args:
        shown: what to show.
        figure: an earlier figure of this function for the same tokens, to be changed in place;
            None makes a new one.
    """
    figure = _blank(shown) if figure is None else figure
    weights, lengths, _ = figure.data
    weights.z = cells(shown.weights)
    lengths.y = compact(shown.lengths)
    lowest, highest = float(np.nanmin(shown.weights)), float(np.nanmax(shown.weights))
    figure.update_layout(
        coloraxis=color_axis((min(0.0, lowest), highest)),
        **headline("Weights, and lengths of the outputs", _caption(shown)),
    )
    return figure


def _blank(shown: Combination) -> go.Figure:
    """The figure without what the controls decide."""
    figure = make_subplots(cols=2, horizontal_spacing=0.24)
    positions = list(range(1, len(shown.weights) + 1))
    weights = heatmap(np.zeros_like(shown.weights), name="weight", x=positions, y=positions)
    weights.update(texttemplate=None, hovertemplate="query %{y}, key %{x}: %{z:.4~g}")
    figure.add_trace(weights, row=1, col=1)
    lengths = {"this combination": None, "softmax": np.linalg.norm(shown.softmax, axis=-1)}
    for n, (name, y) in enumerate(lengths.items()):
        y = None if y is None else compact(y)
        look = style(1 - n)  # softmax is blue in all widgets
        trace = go.Scatter(x=positions, y=y, name=name, mode="lines+markers", **look)
        figure.add_trace(trace, row=1, col=2)
    # Softmax wider and below, so that both are seen where they coincide.
    figure.data[1].zorder = 1
    figure.data[2].update(line_width=5, marker_size=12)
    figure.update_layout(template=TEMPLATE, height=400, coloraxis={"colorbar": {"x": 0.4}})
    figure.update_xaxes(title_text="key", dtick=4, showgrid=False, zeroline=False, col=1)
    figure.update_yaxes(title_text="query", dtick=2, showgrid=False, zeroline=False, col=1)
    figure.update_yaxes(autorange="reversed", col=1)
    figure.update_xaxes(title_text="query", dtick=4, col=2)
    figure.update_yaxes(title_text="length of the output", side="right", col=2)
    figure.update_yaxes(type="log", exponentformat="none", col=2)
    return figure


def _caption(shown: Combination) -> str:
    labels = [parts[getattr(shown, control)].label for control, parts in CONTROLS.items()]
    visible = np.isfinite(shown.weights).sum()
    negative = (shown.weights < 0).sum()
    return (
        f"Kernel {labels[0]}, normalizer {labels[1]}, gates: {labels[2]}. "
        f"{negative or 'None'} of the {visible} weights {'are' if negative > 1 else 'is'} negative."
    )


def formula(kernel: str, normalizer: str, gates: str) -> str:
    """The output of one head, as HTML.

    Example:
        >>> formula("exp", "sum", "none")
        'out<sub>t</sub> = Σ<sub>s≤t</sub> w v<sub>s</sub> / Σ w, w = e<sup>l</sup>'
    """
    chosen = combine(kernel, normalizer, gates)
    gate = "σ<sub>t</sub> "
    inner = "Σ<sub>s≤t</sub> w " + ("ι<sub>s</sub> " if chosen.input_gate else "") + "v<sub>s</sub>"
    if chosen.output_gate and chosen.gate_position == "before":
        inner = gate + inner
    out = NORMALIZERS[normalizer].formula.format(inner)
    if chosen.output_gate and chosen.gate_position == "after":
        out = gate + out
    weight = KERNELS[kernel].formula
    if chosen.decay:
        weight = f"({weight}) e<sup>A<sub>t</sub> − A<sub>s</sub></sup>"
    return f"out<sub>t</sub> = {out}, w = {weight}"


def read_out(shown: Combination) -> str:
    """Formula, state, learnables, names and equivalents."""
    lines = [
        f"<b>{formula(shown.kernel, shown.normalizer, shown.gates)}</b>",
        f"<b>State:</b> {_state(shown)}",
        f"<b>Learned beside the projections:</b> {', '.join(shown.learnables) or 'nothing'}",
        f"<b>Names:</b> {', '.join(map(_code, shown.names)) or 'none'}",
        f"<b>The same function as:</b> {_same(shown)}",
        f"<b>Direction:</b> {_direction(shown)}",
    ]
    if shown.warning:
        lines.append(f"<b>Warning:</b> {html.escape(shown.warning)}")
    return "<br>".join(lines)


def _state(shown: Combination) -> str:
    if shown.state_size is None:
        return "none of constant size; every key and value is kept"
    e = shown.outputs.shape[-1]
    return f"{shown.features} × {e + 1} = {shown.state_size} numbers, however many tokens"


def _same(shown: Combination) -> str:
    if not shown.equivalents:
        return "no other name"
    reasons = {}
    for name, reason in shown.equivalents.items():
        reasons.setdefault(reason, []).append(_code(name))
    return "; ".join(f"{', '.join(names)} ({reason})" for reason, names in reasons.items())


def _direction(shown: Combination) -> str:
    least = np.nanmin(shown.cosines)
    if least > 1 - 1e-9:
        return "that of softmax attention at every token"
    return f"the smallest cosine with softmax attention's output is {least:.3f}"


def _code(name: str) -> str:
    return f"<code>{html.escape(name)}</code>"


def mount(inputs: Example | None = None) -> Explorer:
    """The widget, with the controls `kernel`, `normalizer` and `gates`.

    Args:
        inputs: tokens of one head; None takes `example()`.

    Example:
        >>> widget = mount()
        >>> widget.normalizer.value = "l2"
        >>> widget.figure.data[1].y.round(3).tolist()[:3]
        [1.0, 1.0, 1.0]
    """
    return Explorer(
        question="With L2 as the normalizer, which gate changes the outputs, and which does not?",
        controls={
            control: ipywidgets.Dropdown(
                options={part.label: name for name, part in parts.items()},
                description=control,
                style=WIDE,
                layout=ipywidgets.Layout(width="auto"),
            )
            for control, parts in CONTROLS.items()
        },
        slide=("normalizer", None),
        compute=partial(compute, inputs or example()),
        draw=draw,
        read_out=read_out,
        conclusion="a gate before a norm changes ..., after it it changes ..., and without a norm "
        "the two places are ...",
        answer="Nothing but the norm's eps; the length of the output; the same. An input gate is "
        "another matter: it weighs the values against each other, and no norm can undo that.",
    )
