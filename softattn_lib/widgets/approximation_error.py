"""How far a Taylor polynomial of the score is from exp: where, at which order, in which precision.

The error is relative, |p(s) / exp(s) - 1|: what a weight of attention is wrong by, before the
normalizer. It is computed as the library computes weights, in float64 and in float32, on scores
that both hold exactly, against exp in float64.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..polynomials import taylor
from ..theme import BLUE, NEUTRAL, ORANGE, TEMPLATE, VERMILLION, compact, headline
from .base import WIDE, Explorer, ipywidgets

ORDERS = list(range(49))
POINTS = 121  # scores of a curve
COARSE = 6  # every 6th of them is enough for the worst error of each order
SMALLEST = 2.0**-54  # half a unit of float64 in the last place: an error below it cannot be told
TICKS = np.array([-1e4, -100, -10, -1, 0, 1, 10, 100, 1e4])  # of the weights' axis
UNIT = 0.1  # weights below it are drawn on a linear scale, those above on a logarithmic one


@dataclass(frozen=True)
class Error:
    """What the figure shows. Errors are relative and at least `SMALLEST`."""

    order: int
    radius: float
    center: float
    scores: np.ndarray  # (n,) from -radius to radius
    exact: np.ndarray  # (n,) exp of the scores
    weights: np.ndarray  # (n,) the polynomial in float64
    error64: np.ndarray  # (n,) of the weights
    error32: np.ndarray  # (n,) of the weights computed in float32
    worst64: np.ndarray  # (49,) over the scores, for each order
    worst32: np.ndarray  # (49,)


def compute(order: int = 5, radius: float = 4.0, center: float = 0.0) -> Error:
    """Weights and their errors on |s| <= radius.

    Args:
        order: highest power kept, 0 to 48.
        radius: of the scores, > 0.
        center: about which exp is expanded.

    Raises:
        ValueError: if an argument is outside its range.

    Example:
        >>> error = compute(order=1, radius=2.0)
        >>> error.weights[0].item(), error.error64[0].round(3).item()  # 1 + s, its error; s = -2
        (-1.0, 8.389)
    """
    if order not in ORDERS:
        raise ValueError(f"order must be an integer from 0 to {ORDERS[-1]}, got {order!r}")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius must be finite and > 0, got {radius}")
    scores = np.linspace(-radius, radius, POINTS, dtype=np.float32)
    worst = [_errors(n, center, scores[::COARSE]) for n in ORDERS]
    error64, error32 = _errors(order, center, scores)
    return Error(
        order=order,
        radius=radius,
        center=center,
        scores=scores.astype(np.float64),
        exact=np.exp(scores.astype(np.float64)),
        weights=_polynomial(order, center)(scores.astype(np.float64)),
        error64=error64,
        error32=error32,
        worst64=np.array([e64.max() for e64, _ in worst]),
        worst32=np.array([e32.max() for _, e32 in worst]),
    )


_polynomial = lru_cache(maxsize=None)(taylor)


def _errors(order, center, scores):
    """Relative errors of the polynomial computed in float64 and in float32; scores are float32."""
    polynomial, scores64 = _polynomial(order, center), scores.astype(np.float64)
    weights = polynomial(scores64), polynomial(scores)
    return [np.maximum(np.abs(w / np.exp(scores64) - 1), SMALLEST) for w in weights]


def draw(error: Error, figure=None) -> go.Figure:
    """Left, the weights and their error over the score; right, the worst error of each order.

    Traces: 0 exp, 1 the polynomial, 2 its negative part, 3 and 4 the error in float64 and float32,
    5 and 6 the worst errors of all orders, 7 those of the chosen order. Traces 0 to 2 stand on a
    scale that is logarithmic on both sides of zero; their `customdata` are the weights.

    Args:
        error: what to show.
        figure: an earlier figure of this function, to be changed in place; None makes a new one.
    """
    figure = _blank() if figure is None else figure
    exact, polynomial, negative, error64, error32, worst64, worst32, chosen = figure.data
    below = np.where(error.weights < 0, error.weights, np.nan)
    curves = ((exact, error.exact), (polynomial, error.weights), (negative, below))
    for trace, weights in curves:
        trace.x, trace.y, trace.customdata = (
            compact(error.scores),
            compact(_position(weights)),
            compact(weights),
        )
    for trace, errors in ((error64, error.error64), (error32, error.error32)):
        trace.x, trace.y = compact(error.scores), compact(errors)
    worst64.y, worst32.y = compact(error.worst64), compact(error.worst32)
    chosen.x = [error.order] * 2
    chosen.y = compact([error.worst64[error.order], error.worst32[error.order]])
    side = "negative" if error.scores[np.argmax(error.error64)] < 0 else "positive"
    figure.update_layout(headline(f"The series fails first at {side} scores", _caption(error)))
    return figure


def _position(weights):
    """Where a weight stands: sign(w) log10(1 + |w| / UNIT)."""
    return np.sign(weights) * np.log10(1 + np.abs(weights) / UNIT)


def _caption(error: Error) -> str:
    worst = int(np.argmax(error.error64))
    text = (
        f"Order {error.order} about {error.center:g}, |s| ≤ {error.radius:g}: the weight at "
        f"s = {error.scores[worst]:.3g} is wrong by {_in_words(error.error64[worst])}"
    )
    share = (error.weights < 0).mean()
    return (
        f"{text}; negative on {share:.0%} of the range." if share else f"{text}; none is negative."
    )


def _in_words(error: float) -> str:
    return f"{error:,.3g} times its size" if error >= 1 else f"{100 * error:.2g} %"


def _blank() -> go.Figure:
    figure = make_subplots(
        rows=2,
        cols=2,
        specs=[[{}, {"rowspan": 2}], [{}, None]],
        shared_xaxes=True,
        vertical_spacing=0.14,
        horizontal_spacing=0.14,
        subplot_titles=["weight", "worst error by order", "error of the weight"],
    )
    sees_weight = "s = %{x:.2f}: %{customdata:.4~g}<extra>%{fullData.name}</extra>"
    float64, float32 = {"color": BLUE, "width": 2}, {"color": ORANGE, "width": 2, "dash": "dot"}
    traces = [
        go.Scatter(name="exp(s)", line={"color": NEUTRAL, "width": 5}, hovertemplate=sees_weight),
        go.Scatter(name="polynomial", line=float64, hovertemplate=sees_weight),
        go.Scatter(
            name="negative",
            mode="markers",
            marker={"color": VERMILLION, "symbol": "x", "size": 8, "maxdisplayed": 12},
            hovertemplate=sees_weight,
        ),
        go.Scatter(name="in float64", line=float64),
        go.Scatter(name="in float32", line=float32),
        go.Scatter(x=ORDERS, name="in float64", line=float64, showlegend=False),
        go.Scatter(x=ORDERS, name="in float32", line=float32, showlegend=False),
        go.Scatter(
            name="chosen order",
            mode="markers",
            marker={"color": NEUTRAL, "symbol": "diamond", "size": 10},
        ),
    ]
    for trace in traces:
        trace.mode = trace.mode or "lines"
    figure.add_traces(traces, rows=[1, 1, 1, 2, 2, 1, 1, 1], cols=[1, 1, 1, 1, 1, 2, 2, 2])
    figure.update_layout(template=TEMPLATE, height=480)
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title_text="score s", row=2, col=1)
    figure.update_xaxes(title_text="order", row=1, col=2)
    figure.update_yaxes(tickvals=_position(TICKS), ticktext=[f"{t:g}" for t in TICKS], col=1, row=1)
    figure.update_yaxes(type="log", range=[-17, 9], dtick=8, row=2, col=1)
    figure.update_yaxes(type="log", range=[-17, 9], dtick=4, row=1, col=2)
    return figure


def read_out(error: Error) -> str:
    """The same in numbers, as HTML."""
    n = error.order
    best = int(np.argmin(error.worst32))
    return (
        f"Worst error of order {n}: <b>{error.worst64[n]:.3g}</b> in float64, "
        f"<b>{error.worst32[n]:.3g}</b> in float32. Smallest weight: {error.weights.min():.3g}, "
        f"where exp has {error.exact.min():.3g}. In float32 no order does better than "
        f"{error.worst32[best]:.2g} (order {best})."
    )


def mount() -> Explorer:
    """The widget, with the controls `order`, `radius` and `center`.

    Example:
        >>> widget = mount()
        >>> widget.order.value = 4
        >>> int((widget.figure.data[1].customdata < 0).sum())  # even orders have no negative weight
        0
    """
    return Explorer(
        question="Where does a truncated series of exp fail first, and do more orders always help?",
        controls={
            "order": ipywidgets.IntSlider(5, 0, ORDERS[-1], description="order N", style=WIDE),
            "radius": ipywidgets.FloatSlider(
                4, min=0.5, max=13, step=0.5, description="scores up to ±", style=WIDE
            ),
            "center": ipywidgets.FloatSlider(
                0, min=-8, max=8, step=0.5, description="expanded about", style=WIDE
            ),
        },
        slide=("order", range(13)),
        compute=compute,
        draw=draw,
        read_out=read_out,
        conclusion="odd orders ... on the left, even orders never do; the error is largest at "
        "s = ..., because there exp is ... while the terms are ...; and with scores down to −8, "
        "more orders stop helping in float32 because ...",
        answer="Odd orders turn negative. The error is largest at the lower end, where exp is "
        "tiny and the terms are large and of both signs. In float32 each of them is rounded to 7 "
        "digits, and what is left after they cancel is smaller than the rounding.",
    )
