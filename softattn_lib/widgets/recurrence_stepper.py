"""Softmax attention as recurrent networks, token by token: write a key and a value, read a query.

Every number shown comes from the library: the features of its polynomial kernel (the full Kronecker
powers, as the paper writes them), its state after each `attention_step`, and its output.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from .. import toy
from ..call import SignedWeightsWarning
from ..features import num_features, order_slices
from ..figures import color_axis, heatmap
from ..kernels import PolynomialKernel
from ..parallel import softmax_attention
from ..polynomials import taylor
from ..recurrent import attention_step
from ..state import init_state
from ..theme import TEMPLATE, cells, compact, headline, style
from .base import WIDE, Explorer, ipywidgets

MAX_TOKENS = 8  # that a learner would step through
TOTALS = ("sum", "output", "softmax")  # rows below those of the orders
MAX_FEATURES = 15  # rows of a heat map whose numbers can still be read


@dataclass(frozen=True)
class Recording:
    """One run of the recurrence at each order that can be shown."""

    q: torch.Tensor  # (T, d)
    k: torch.Tensor  # (T, d)
    v: torch.Tensor  # (T, e)
    scale: float
    softmax: torch.Tensor  # (T, e), softmax attention's output
    outputs: list[torch.Tensor]  # (T, e) for each order
    states: list[torch.Tensor]  # (T, D, e + 1) for each order, after each token


@dataclass(frozen=True)
class Step:
    """What the figure shows: D features, orders 0..N, values of width e, T tokens.

    In whatever has width e + 1, the last column belongs to the denominator.
    """

    token: int  # 1 is the first
    order: int
    slices: dict[int, slice]  # where each order lies among the features
    names: list[str]  # (D,) of the features, as products of the key's entries
    key_powers: np.ndarray  # (D,)
    written: np.ndarray  # (D, e + 1) the key's powers times [v, 1]
    state: np.ndarray  # (D, e + 1) after the write
    query_powers: np.ndarray  # (D,) with 1 / n! and the scale in them
    readout: np.ndarray  # (N + 1, e + 1) of each order
    output: np.ndarray  # (e,)
    softmax: np.ndarray  # (e,)
    distance: np.ndarray  # (M + 1, T) of each output from softmax attention's, orders 0..M
    largest: float  # absolute value in any state


def record(q, k, v, scale: float = 1.0) -> Recording:
    """Run the recurrence of every order up to `max_order(d)`.

    Args:
        q, k, v: (T, d), (T, d), (T, e).
        scale: multiplies the scores; 1 as in the paper's equations.

    Example:
        >>> recording = record(toy.q, toy.k, toy.v)
        >>> [tuple(states.shape) for states in recording.states]
        [(4, 1, 3), (4, 3, 3), (4, 7, 3), (4, 15, 3)]
    """
    q, k, v = (x.detach().cpu().double() for x in (q, k, v))
    softmax = softmax_attention(q, k, v, scale=scale)
    outputs, states = [], []
    for order in range(max_order(k.shape[1]) + 1):
        kernel, steps = _kernel(order), []
        state = init_state(kernel, k.shape[1], v.shape[1], scale=scale, dtype=k.dtype)
        for query, key, value in zip(q, k, v, strict=True):
            with warnings.catch_warnings():  # odd orders are part of the lesson
                warnings.simplefilter("ignore", SignedWeightsWarning)
                out, state = attention_step(query, key, value, state, kernel=kernel, scale=scale)
            steps.append((out, state.sums))
        outputs.append(torch.stack([out for out, _ in steps]))
        states.append(torch.stack([sums for _, sums in steps]))
    return Recording(q, k, v, scale, softmax, outputs, states)


def compute(token: int, order: int, recording: Recording) -> Step:
    """What the recurrence of the orders 0..order holds and reads at a token.

    Args:
        token: how many tokens have come in, 1 to T.
        order: highest power kept, up to the recording's.
        recording: of `record`.

    Raises:
        ValueError: if token or order is outside its range.

    Example:
        >>> step = compute(2, 1, record(toy.q, toy.k, toy.v))
        >>> step.names, step.state.tolist()
        (['1', 'k₁', 'k₂'], [[1.0, 1.0, 2.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    """
    _check("token", token, 1, len(recording.k))
    _check("order", order, 0, len(recording.states) - 1)
    kernel, now, d = _kernel(order), token - 1, recording.k.shape[1]
    slices = order_slices(d, kernel.polynomial, packed=False)
    key = kernel.key_features(recording.k[now])
    query = kernel.query_features(recording.q[now], recording.scale)
    value, sums = recording.v[now], recording.states[order][now]
    distances = [(out - recording.softmax).norm(dim=-1) for out in recording.outputs]
    return Step(
        token=token,
        order=order,
        slices=slices,
        names=[_name(i) for n in slices for i in product(range(1, d + 1), repeat=n)],
        key_powers=key.numpy(),
        written=torch.outer(key, torch.cat([value, value.new_ones(1)])).numpy(),
        state=sums.numpy(),
        query_powers=query.numpy(),
        readout=torch.stack([query[rows] @ sums[rows] for rows in slices.values()]).numpy(),
        output=recording.outputs[order][now].numpy(),
        softmax=recording.softmax[now].numpy(),
        distance=torch.stack(distances).numpy(),
        largest=recording.states[order].abs().max().item(),
    )


def max_order(d: int) -> int:
    """The highest order whose features can be shown.

    Example:
        >>> max_order(2), max_order(3)  # 1 + 2 + 4 + 8 features, 1 + 3 + 9
        (3, 2)
    """
    order = 0
    while num_features(d, order + 1, packed=False) <= MAX_FEATURES:
        order += 1
    return order


def _kernel(order: int) -> PolynomialKernel:
    return PolynomialKernel(taylor(order), packed=False)


def _check(name: str, value, lowest: int, highest: int) -> None:
    if value not in range(lowest, highest + 1):
        raise ValueError(f"{name} must be an integer from {lowest} to {highest}, got {value!r}")


def _name(indices) -> str:
    """The feature k_i k_j ..., as in k₁k₂."""
    return "".join(f"k{_subscript(i)}" for i in indices) or "1"


def _subscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def draw(step: Step, figure=None) -> go.Figure:
    """Above, write and read, one row a feature; below, what each order reads, and the error so far.

    Traces: 0 the key's powers, 1 what is written, 2 the state, 3 the query's powers, 4 the readout
    (a row for each order, their sum, the output, and softmax attention's), and from 5 on the
    distance to softmax attention of the orders 0, 1, ... up to this token. Rows of NaN stand
    between the orders in traces 0 to 3.

    Args:
        step: what to show.
        figure: an earlier figure of this function, to be changed in place; None makes a new one.
    """
    figure = _blank(step) if figure is None else figure
    panels = (step.key_powers[:, None], step.written, step.state, step.query_powers[:, None])
    for trace, matrix in zip(figure.data, panels, strict=False):
        trace.z = cells(_apart(matrix, step, np.nan))
    figure.data[4].z = cells(_readout(step))
    for n, trace in enumerate(figure.data[5:]):
        trace.y = compact(step.distance[n, : step.token])
        trace.line.width, trace.marker.size = (4, 11) if n == step.order else (1.5, 6)

    layout, t = figure.layout, _subscript(step.token)
    layout.coloraxis.cmin, layout.coloraxis.cmax = -step.largest, step.largest
    names = _apart(np.array(_labels(step), dtype=object), step, "")
    for axis in (layout.yaxis, layout.yaxis2, layout.yaxis3, layout.yaxis4):
        _label_rows(axis, names)
    _label_rows(layout.yaxis5, [*(f"n = {n}" for n in step.slices), *TOTALS])
    titles = (
        f"k{t}ⁿ",
        f"k{t}ⁿ ⊗ [v{t}, 1]",
        f"state after {step.token}",
        f"q{t}ⁿ ÷ n!",
        f"what q{t} reads",
        "distance to softmax",
    )
    for annotation, title in zip(layout.annotations, titles, strict=True):
        annotation.text = title
    text = (
        f"Token {step.token}: {step.state.size} sums before it and after it; what the orders 0 to "
        f"{step.order} read is {step.distance[step.order, step.token - 1]:.3f} from softmax."
    )
    figure.update_layout(headline("Each token is added to a state of fixed size", text))
    return figure


def _readout(step: Step) -> np.ndarray:
    """(N + 4, e + 1): each order, their sum, the output, softmax attention's."""
    outputs = np.stack([step.output, step.softmax])
    outputs = np.pad(outputs, ((0, 0), (0, 1)), constant_values=np.nan)
    return np.concatenate([step.readout, step.readout.sum(0, keepdims=True), outputs])


def _apart(rows: np.ndarray, step: Step, blank) -> np.ndarray:
    """The rows of the features with a blank one between two orders."""
    starts = [rows_of_order.start for rows_of_order in step.slices.values()]
    return np.insert(rows, starts[1:], blank, axis=0)


def _labels(step: Step) -> list[str]:
    """The names of the features; the first of each order says which order it is."""
    labels = list(step.names)
    for n, rows in step.slices.items():
        labels[rows.start] = f"<b>n = {n}</b>  {labels[rows.start]}"
    return labels


def _label_rows(axis, labels) -> None:
    """Show the labels beside the rows of a matrix, the first on top."""
    size = len(labels)
    axis.range = [size - 0.5, -0.5]
    axis.tickvals, axis.ticktext = list(range(size)), list(labels)


def _blank(step: Step) -> go.Figure:
    columns = [f"v{_subscript(i + 1)}" for i in range(len(step.output))] + ["1"]
    figure = make_subplots(
        rows=2,
        cols=4,
        specs=[[{}, {}, {}, {}], [{"colspan": 2}, None, {"colspan": 2}, None]],
        column_widths=[1, len(columns), len(columns), 1],
        row_heights=[0.62, 0.38],
        vertical_spacing=0.14,
        horizontal_spacing=0.04,
        subplot_titles=["-"] * 6,
    )
    for n, name in enumerate(("key", "written", "state", "query")):
        figure.add_trace(heatmap(np.zeros((1, 1)), name=name), row=1, col=n + 1)
    figure.add_trace(heatmap(np.zeros((1, 1)), name="readout"), row=2, col=1)
    tokens = list(range(1, step.distance.shape[1] + 1))
    for n in range(len(step.distance)):
        trace = go.Scatter(x=tokens, name=f"order {n}", mode="lines+markers", **style(n))
        figure.add_trace(trace, row=2, col=3)
    figure.update_layout(template=TEMPLATE, height=620)
    figure.update_layout(coloraxis={**color_axis((-1, 1)), "showscale": False})
    figure.update_traces(textfont_size=10, selector={"type": "heatmap"})
    figure.update_annotations(font_size=12)
    figure.update_xaxes(showline=False, showgrid=False, zeroline=False, showticklabels=False)
    figure.update_xaxes(ticks="")
    figure.update_yaxes(showline=False, showgrid=False, zeroline=False, ticks="")
    for place in ({"row": 1, "col": 2}, {"row": 1, "col": 3}, {"row": 2, "col": 1}):
        ticks = {"tickvals": list(range(len(columns))), "ticktext": columns}
        figure.update_xaxes(showticklabels=True, **ticks, **place)
    for n in (2, 3, 4):
        figure.update_yaxes(showticklabels=False, row=1, col=n)
    plain = {"showline": True, "showgrid": True, "showticklabels": True, "ticks": "outside"}
    width = [0.8, len(tokens) + 0.2]
    figure.update_xaxes(title_text="token", tickvals=tokens, range=width, **plain, row=2, col=3)
    highest = 1.1 * step.distance.max()
    figure.update_yaxes(range=[-0.05 * highest, highest], side="right", **plain, row=2, col=3)
    return figure


def read_out(step: Step) -> str:
    """The last division in numbers, as HTML."""
    *numerator, denominator = step.readout.sum(0)
    return (
        f"{_vector(numerator)} ÷ {denominator:.3f} = <b>{_vector(step.output)}</b>; softmax "
        f"attention gives <b>{_vector(step.softmax)}</b>."
    )


def _vector(values) -> str:
    return f"({', '.join(f'{x:.3f}' for x in values)})"


def mount(q=toy.q, k=toy.k, v=toy.v, scale: float = 1.0) -> Explorer:
    """The widget, with the controls `token` and `order`; `play` moves the token.

    Args:
        q, k, v: (T, d), (T, d), (T, e), 2 to 8 tokens; the notebooks' toy unless given.
        scale: multiplies the scores; 1 as in the paper's equations.

    Raises:
        ValueError: if there are too few or too many tokens.

    Example:
        >>> widget = mount()
        >>> widget.token.value = 1
        >>> widget.figure.data[2].z[0]  # the state's row of order 0 is [v_1, 1]
        [1.0, 0.0, 1.0]
    """
    tokens = len(k)
    if not 2 <= tokens <= MAX_TOKENS:
        raise ValueError(f"k must have 2 to {MAX_TOKENS} tokens, got {tokens}")
    token = ipywidgets.IntSlider(tokens, 1, tokens, description="token", style=WIDE)
    explorer = Explorer(
        question="What does the network add to its state at each token, and what does each order "
        "read from it?",
        controls={
            "token": token,
            "order": ipywidgets.IntSlider(
                2, 0, max_order(k.shape[1]), description="order N", style=WIDE
            ),
        },
        compute=partial(compute, recording=record(q, k, v, scale)),
        draw=draw,
        read_out=read_out,
        conclusion="when a token comes in, the state ...; order 0 reads ..., whatever the query "
        "is; one order more ...",
        answer="The state stays as large as it was: the key's powers times [v, 1] are added to it. "
        "Order 0 reads the plain sum of the values. One order more adds rows to the state and "
        "brings the output closer to softmax attention, if the scores are small enough for it.",
    )
    explorer.play = ipywidgets.Play(tokens, 1, tokens, interval=1500)
    ipywidgets.link((explorer.play, "value"), (token, "value"))
    explorer.control_row.children = (explorer.play, *explorer.control_row.children)
    return explorer
