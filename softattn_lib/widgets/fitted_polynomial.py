"""Which polynomial follows exp where the attention weight of a real head lies.

For one head of a captured model: its scores, exp and a polynomial of a family over them, and the
weights that both give the keys of the last token. `misplaced` is the part of a query's weight that
lies on other tokens than with softmax: 0 where the weights are equal, above 1 only where some are
negative.
"""

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..calibration import FAMILIES, Calibration, fit_head
from ..families import interval_error
from ..features import num_features
from ..fitting import observe
from ..llama import CapturedAttention
from ..numerics import safe_divide
from ..theme import BLUE, NEUTRAL, ORANGE, TEMPLATE, VERMILLION, compact, headline
from .base import WIDE, Explorer, ipywidgets

ORDERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
POINTS, BINS = 301, 32  # of the curves, of the histogram
SMALLEST = 1e-30  # of the curves, which a logarithmic axis cannot show at 0
UNIT = 0.01  # weights below it are drawn on a linear scale, those above on a logarithmic one
TICKS = np.array([-1e4, -100, -1, 0, 1, 100, 1e4])  # of the weights' axis
FINE_TICKS = np.array([-1, -0.1, -UNIT, 0, UNIT, 0.1, 1])  # where all weights are within ±2


@dataclass(frozen=True)
class Fitted:
    """What the figure shows, of one head and one polynomial.

    Scores are those that the polynomial is given: a fit of "sum_of_squares" moves the keys first.
    Curves are in units of exp of the highest score, weights are shares of their row's sum.
    """

    layer: int
    head: int
    family: str
    order: int
    features: int  # numbers that a state keeps for each number of a value
    tokens: tuple[str, ...]  # T
    scores: np.ndarray  # (n,) from the lowest to the highest visible score
    exact: np.ndarray  # (n,) exp of these
    values: np.ndarray  # (n,) the polynomial of these
    edges: np.ndarray  # (BINS + 1,) of the bins that the visible scores are counted in
    pairs: np.ndarray  # (BINS,) share of the visible pairs
    weight: np.ndarray  # (BINS,) share of the softmax weight
    softmax: np.ndarray  # (T,) weights of the last query
    polynomial: np.ndarray  # (T,) the same, from the polynomial
    misplaced: np.ndarray  # (T,) of each query
    not_positive: int  # queries whose weights, before the division, have no positive sum
    worst: float  # largest |p - exp| between the lowest and the highest score, in the curves' unit
    outside: float  # share of the visible scores outside the interval that was fitted


def compute(
    captured: CapturedAttention,
    fits: Sequence[Calibration] = (),
    layer: int = 0,
    head: int = 0,
    family: str = "taylor",
    order: int = 4,
) -> Fitted:
    """Fit a family to the scores of one head, or look its fit up, and weigh with it.

    Args:
        captured: the attention of a model on one text, of some 60 to 200 tokens to be readable.
        fits: calibrations of this model with family "sum_of_squares", too slow to be fitted here.
        layer, head: one of the captured layers, a query head of it.
        family: as in `calibrate`.
        order: highest power kept; of those in `fits` for "sum_of_squares".

    Raises:
        ValueError: another layer, head or family, an order that the family or `fits` does not have.

    Example:
        >>> import torch
        >>> from softattn_lib.llama import LayerAttention
        >>> x, visible = torch.tensor([[[1.0], [-2.0]]]), torch.ones(2, 2, dtype=torch.bool).tril()
        >>> layers = {0: LayerAttention(0, x, x, x, scale=1.0, visible=visible)}
        >>> fitted = compute(CapturedAttention(("one", "two"), layers), order=2)
        >>> fitted.polynomial.round(4)  # scores -2 and 4: weights 1 and 13
        array([0.0714, 0.9286])
        >>> fitted.softmax.round(4), fitted.misplaced.round(4)
        (array([0.0025, 0.9975]), array([0.   , 0.069]))
    """
    scores, polynomial = _choose(captured, fits, layer, head, family, order)
    observed = observe(scores)
    if polynomial is None:
        polynomial = fit_head(observed, order, family, (FAMILIES[family] or ("",))[0])
    low, high, visible = observed.low, observed.high, scores.isfinite()
    values = polynomial(scores.where(visible, high)).where(visible, 0) * math.exp(-high)
    total, softmax = values.sum(-1, keepdim=True), scores.softmax(-1)
    weights, grid = safe_divide(values, total), np.linspace(low, high, POINTS)
    pairs, edges = np.histogram(observed.score, BINS)
    weight, _ = np.histogram(observed.score, edges, weights=softmax[visible].numpy())
    return Fitted(
        layer=layer,
        head=head,
        family=family,
        order=order,
        features=num_features(captured.layers[layer].key.shape[-1], order),
        tokens=captured.tokens,
        scores=grid,
        exact=np.exp(grid - high),
        values=polynomial(grid) * math.exp(-high),
        edges=edges,
        pairs=pairs / pairs.sum(),
        weight=weight / weight.sum(),
        softmax=softmax[-1].numpy(),
        polynomial=weights[-1].numpy(),
        misplaced=(weights - softmax).abs().sum(-1).numpy() / 2,
        not_positive=(total <= 0).sum().item(),
        worst=interval_error(polynomial, low, high),
        outside=observed.share_outside(polynomial.low, polynomial.high),
    )


def _choose(captured, fits, layer, head, family, order):
    """The scores (T, T) that the polynomial is given, and the polynomial where it is in `fits`."""
    _check("layer", layer, captured.layers)
    attention, polynomial = captured.layers[layer], None
    _check("head", head, range(len(attention.query)))
    _check("family", family, FAMILIES)
    if family == "sum_of_squares":
        by_order = {fit.order: fit for fit in fits if fit.family == family}
        _check("order of sum_of_squares, which is not fitted here but looked up,", order, by_order)
        fit = by_order[order].layers[layer]
        key = attention.key - fit.key_shift.unsqueeze(1).to(attention.key)
        attention, polynomial = replace(attention, key=key), fit.polynomials[head]
    return attention.scores()[head].double().cpu(), polynomial


def _check(name, value, values):
    if value not in values:
        words = ", ".join(str(v) for v in values) or "those of the fits given, which are none"
        raise ValueError(f"{name} must be one of {words}; got {value!r}")


def draw(fitted: Fitted, figure=None) -> go.Figure:
    """Above, exp and the polynomial over the score, and where it counts; below, what comes of it.

    Traces: 0 exp, 1 |polynomial|, 2 the same where it is negative; 3 shares of the pairs and 4 of
    the weight; 5 softmax's and 6 the polynomial's weights of the last query, on a scale that is
    logarithmic on both sides of zero. `customdata` of 0, 1, 2, 5 and 6 are the values themselves.

    A `figure` is an earlier one of this function, to be changed in place; None makes a new one.
    """
    figure = _blank() if figure is None else figure
    exact, values, negative, pairs, weight, softmax, polynomial = figure.data
    below = np.where(fitted.values < 0, fitted.values, np.nan)
    for trace, y in ((exact, fitted.exact), (values, fitted.values), (negative, below)):
        trace.x, trace.customdata = compact(fitted.scores), compact(y)
        trace.y = compact(np.maximum(np.abs(y), SMALLEST))
    for trace, y in ((pairs, fitted.pairs), (weight, fitted.weight)):
        trace.x, trace.y = compact((fitted.edges[1:] + fitted.edges[:-1]) / 2), compact(y)
    tokens = [html.escape(t.strip() or repr(t), quote=False) for t in fitted.tokens]
    for trace, y in ((softmax, fitted.softmax), (polynomial, fitted.polynomial)):
        trace.x, trace.y = list(range(len(y))), compact(_position(y))
        trace.customdata, trace.hovertext = compact(y), tokens
    named = _named(fitted.softmax)
    figure.update_xaxes(tickvals=named, ticktext=[tokens[n] for n in named], row=3)
    figure.update_yaxes(range=[_decade_below(fitted), 2], row=1)
    ticks = FINE_TICKS if np.abs(fitted.polynomial).max() < 2 else TICKS
    figure.update_yaxes(tickvals=_position(ticks), ticktext=[f"{t:g}" for t in ticks], row=3)
    share = _percent(fitted.misplaced.mean())
    family = f"{fitted.family.replace('_', ' ').capitalize()}, order {fitted.order}"
    title = f"Layer {fitted.layer}, head {fitted.head}: in place of exp"
    layout = headline(title, f"{family}: misplaced weight {share}")
    layout["margin"]["t"] += 14  # for the name of the uppermost plot
    figure.update_layout(layout)
    return figure


def _position(weights):
    """Where a weight stands: sign(w) log10(1 + |w| / UNIT)."""
    return np.sign(weights) * np.log10(1 + np.abs(weights) / UNIT)


def _decade_below(fitted: Fitted) -> float:
    """A power of ten below nearly all of the weight, where the axis of the curves begins."""
    first = np.searchsorted(np.cumsum(fitted.weight), 0.001)
    return math.floor((fitted.edges[first] - fitted.edges[-1]) / math.log(10)) - 1


def _named(weights) -> list[int]:
    """The keys with the largest weights, as many as their names have room."""
    room, chosen = max(len(weights) // 14, 1), []
    for n in np.argsort(-weights, kind="stable").tolist():
        if all(abs(n - other) > room for other in chosen):
            chosen.append(n)
    return sorted(chosen)


def _blank() -> go.Figure:
    figure = make_subplots(
        rows=3,
        row_heights=[0.44, 0.18, 0.38],
        vertical_spacing=0.1,
        subplot_titles=[
            "exp and polynomial, the largest exp is 1",
            "where scores and weight lie, by score s",
            f"weights of the last query, log beyond ±{UNIT:g}",
        ],
    )
    value = {"hovertemplate": "s = %{x:.2f}: %{customdata:.3~g}<extra>%{fullData.name}</extra>"}
    share = {"hovertemplate": "s = %{x:.2f}: %{y:.1%}<extra>%{fullData.name}</extra>"}
    weight = {"hovertemplate": "%{hovertext}: %{customdata:.3~g}<extra>%{fullData.name}</extra>"}
    cross = {"color": VERMILLION, "symbol": "x", "size": 7, "maxdisplayed": 40}
    diamond = {"color": BLUE, "symbol": "diamond", "size": 6}
    traces = [
        go.Scatter(name="exp, softmax", mode="lines", line={"color": NEUTRAL, "width": 5}, **value),
        go.Scatter(name="polynomial", mode="lines", line={"color": BLUE, "width": 2}, **value),
        go.Scatter(name="negative, its size", mode="markers", marker=cross, **value),
        go.Bar(name="share of the pairs", marker_color=NEUTRAL, **share),
        go.Bar(name="share of the weight", marker_color=ORANGE, **share),
        go.Bar(name="softmax", marker_color=NEUTRAL, **weight),
        go.Scatter(name="polynomial", mode="markers", marker=diamond, **weight),
    ]
    figure.add_traces(traces, rows=[1, 1, 1, 2, 2, 3, 3], cols=[1] * 7)
    figure.update_traces(showlegend=False, row=3)
    figure.update_layout(template=TEMPLATE, height=640, bargap=0)
    figure.update_annotations(font_size=13)
    figure.update_xaxes(zeroline=False)
    figure.update_xaxes(showticklabels=False, matches="x2", row=1)
    figure.update_xaxes(tickangle=-45, showgrid=False, row=3)
    figure.update_yaxes(type="log", row=1)
    figure.update_yaxes(tickformat=".0%", rangemode="tozero", nticks=4, row=2)
    return figure


def _percent(share) -> str:
    extreme = "under 0.1 %" if share < 0.001 else "over 1,000 %"
    return f"{float(f'{100 * share:.2g}'):g} %" if 0.001 <= share < 10 else extreme


def read_out(fitted: Fitted) -> str:
    """How much of the weight is misplaced, the errors behind it, and the price; as HTML."""
    mean, worst = _percent(fitted.misplaced.mean()), _percent(fitted.misplaced.max())
    outside = f"{_percent(fitted.outside)} of them lie outside the fitted interval. "
    return (
        f"<b>{mean}</b> of a query's weight lies on other tokens than with softmax (mean of "
        f"{len(fitted.misplaced)} queries; worst {worst}), and the weights of "
        f"<b>{fitted.not_positive}</b> queries have a sum that is not positive. Over these scores, "
        f"p is off from exp by at most {fitted.worst:.2g} of the largest exp. "
        f"{outside if fitted.outside else ''}A state of order {fitted.order} holds "
        f"<b>{_count(fitted.features)}</b> features for this head."
    )


def _count(number: int) -> str:
    mantissa, power = f"{number:.1e}".split("e+")
    return f"{number:,}" if number < 10**7 else f"{mantissa} · 10<sup>{int(power)}</sup>"


def mount(captured: CapturedAttention, fits: Sequence[Calibration] = ()) -> Explorer:
    """The widget, with the controls `layer`, `head`, `family`, `order`; arguments of `compute`.

    Example:
        >>> import torch
        >>> from softattn_lib.llama import LayerAttention
        >>> x, visible = torch.tensor([[[1.0], [-2.0]]]), torch.ones(2, 2, dtype=torch.bool).tril()
        >>> layers = {0: LayerAttention(0, x, x, x, scale=1.0, visible=visible)}
        >>> widget = mount(CapturedAttention(("one", "two"), layers))
        >>> widget.order.value = 2
        >>> widget.figure.data[6].customdata
        array([0.0714286, 0.928571 ])
    """
    heads = min(len(layer.query) for layer in captured.layers.values())
    families = [(name.replace("_", " "), name) for name in FAMILIES]
    slider = partial(ipywidgets.SelectionSlider, style=WIDE)
    return Explorer(
        question="Which family of polynomials follows exp where the weight of the head lies?",
        controls={
            "layer": slider(options=tuple(captured.layers), description="layer"),
            "head": ipywidgets.IntSlider(0, 0, heads - 1, description="head", style=WIDE),
            "family": ipywidgets.Dropdown(options=families, description="family", style=WIDE),
            "order": slider(options=ORDERS, value=4, description="order N"),
        },
        slide=("order", None),
        compute=partial(compute, captured, fits),
        draw=draw,
        read_out=read_out,
        conclusion="... has the smallest largest error, and yet at order 8 it misplaces more "
        "weight than ..., because many rows lie far below the head's highest score, where ...; "
        "Taylor about 0 fails in heads whose scores reach far ..., where its highest power ...; "
        "and the weights of a square never ...",
        answer="Minimax. Least squares, which counts an error against the sum of its own row. "
        "There minimax is off by more than exp is large, and turns negative. Below 0; it grows, "
        "and gives weight to keys that softmax leaves out. Have a sum that is not positive.",
    )
