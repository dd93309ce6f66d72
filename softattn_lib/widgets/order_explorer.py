"""One row of attention, with the series of exp cut after order N in place of exp.

The weight of a key whose score is s is (1 + s + s^2 / 2! + ... + s^N / N!) over the sum of these:
order 0 is the plain average of the values so far, and softmax is where the orders lead.
"""

import html
from dataclasses import dataclass
from functools import partial

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from ..numerics import safe_divide
from ..polynomials import taylor
from ..theme import BLUE, NEUTRAL, TEMPLATE, VERMILLION, compact, headline
from .base import WIDE, Explorer, ipywidgets

MAX_ORDER = 12
BARS_OF_SOFTMAX = {
    "color": BLUE,
    "pattern": {"shape": "/", "size": 6, "solidity": 0.4},
    "line": {"color": BLUE, "width": 1},
}
SERIES = ("1", " + s", " + s²/2", " + s³/6", " + s⁴/24")


@dataclass(frozen=True)
class Row:
    """What the figure shows: one query, its T keys, the orders 0 to 12."""

    tokens: tuple[str, ...]
    order: int
    weights: np.ndarray  # (13, T), one row an order
    softmax: np.ndarray  # (T,)
    distance: np.ndarray  # (13,) |O_N - O| / |O|, of the output to softmax attention's


def compute(tokens, scores, values, order: int = 2) -> Row:
    """Weights and outputs of all orders.

    Args:
        tokens: T words.
        scores: (T,) tensor, the scores that the query gives its keys.
        values: (T, e) tensor.
        order: the order to look at, 0 to 12.

    Raises:
        ValueError: for another order.

    Example:
        >>> scores, values = torch.tensor([0.0, 1.0]), torch.eye(2)
        >>> compute(("a", "b"), scores, values).weights[:3].round(2).tolist()
        [[0.5, 0.5], [0.33, 0.67], [0.29, 0.71]]
    """
    if not 0 <= order <= MAX_ORDER:
        raise ValueError(f"order must be 0 to {MAX_ORDER}, got {order}")
    scores, values = scores.double(), values.double()
    weights = torch.stack([taylor(n)(scores) for n in range(MAX_ORDER + 1)])
    weights = safe_divide(weights, weights.sum(-1, keepdim=True))
    softmax = scores.softmax(-1)
    distance = ((weights - softmax) @ values).norm(dim=-1) / (softmax @ values).norm()
    return Row(tuple(tokens), order, weights.numpy(), softmax.numpy(), distance.numpy())


def draw(row: Row, figure=None) -> go.Figure:
    """Left, the weights of the order beside softmax's; right, how far each order is from softmax.

    Traces: 0 weights of the order, 1 weights of softmax, 2 distance of all orders, 3 of this one.

    Args:
        row: what to show.
        figure: an earlier figure of this function for the same row, of which the order is changed
            in place; None makes a new one.
    """
    figure = _for_any_order(row) if figure is None else figure
    weights, _, _, chosen = figure.data
    weights.name, weights.y = f"order {row.order}", compact(row.weights[row.order])
    chosen.x, chosen.y = [row.order], compact(row.distance[[row.order]])
    figure.update_layout(headline("What the last token attends to", _caption(row)))
    return figure


def _for_any_order(row: Row) -> go.Figure:
    """The figure without what the order decides."""
    figure = make_subplots(cols=2, column_widths=[0.7, 0.3], horizontal_spacing=0.05)
    positions = list(range(len(row.tokens)))
    figure.add_traces(
        [
            go.Bar(x=positions, marker_color=VERMILLION),
            go.Bar(x=positions, y=compact(row.softmax), name="softmax", marker=BARS_OF_SOFTMAX),
            go.Scatter(
                x=list(range(len(row.distance))),
                y=compact(row.distance),
                mode="lines+markers",
                showlegend=False,
                line={"color": NEUTRAL},
                hovertemplate="order %{x}: %{y:.2~g}<extra></extra>",
            ),
            go.Scatter(
                mode="markers",
                showlegend=False,
                marker={"color": VERMILLION, "size": 13, "symbol": "diamond"},
                hoverinfo="skip",
            ),
        ],
        rows=[1] * 4,
        cols=[1, 1, 2, 2],
    )
    lowest, highest = max(row.weights.min(), -1), min(row.weights.max(), 1.2)
    words = [html.escape(token, quote=False) for token in row.tokens]
    figure.update_layout(template=TEMPLATE)
    figure.update_xaxes(tickvals=positions, ticktext=words, tickangle=-90, col=1)
    figure.update_yaxes(title_text="weight", range=[lowest - 0.02, highest + 0.02], col=1)
    figure.update_xaxes(title_text="order N", dtick=4, col=2)
    distance = {"type": "log", "title_text": "distance to softmax", "dtick": 1, "side": "right"}
    figure.update_yaxes(distance, col=2)
    return figure


def _caption(row: Row) -> str:
    name = {0: ", a plain average", 1: ", a straight line"}.get(row.order, "")
    return f"Order {row.order}{name}: the output is off by {_percent(row.distance[row.order])}."


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share >= 1e-4 else "less than 0.01 %"


def read_out(row: Row) -> str:
    """What a weight is at this order, and how far all weights together are from softmax's."""
    series = "".join(SERIES[: row.order + 1])
    if row.order >= len(SERIES):
        series += f" + ... + s<sup>{row.order}</sup>/{row.order}!"
    misplaced = np.abs(row.weights[row.order] - row.softmax).sum() / 2
    negative = int((row.weights[row.order] < 0).sum())
    return (
        f"A key whose score is s gets the weight <b>{series}</b>, divided by the sum over all "
        f"keys. Against softmax, {_percent(misplaced)} of the weight lies on other tokens, and "
        f"{negative} of the {len(row.tokens)} weights are negative."
    )


def mount(tokens, scores, values) -> Explorer:
    """The widget for one row of attention, with the control `order`; arguments as in `compute`.

    Example:
        >>> widget = mount(("a", "b"), torch.tensor([0.0, 1.0]), torch.eye(2))
        >>> widget.order.value = 0
        >>> widget.figure.data[0].y.tolist()
        [0.5, 0.5]
    """
    close = np.flatnonzero(compute(tokens, scores, values).distance < 0.01)
    first = f"order {close[0]}" if len(close) else f"an order beyond {MAX_ORDER}"
    return Explorer(
        question="Which order is the first whose bars you cannot tell from softmax's?",
        controls={
            "order": ipywidgets.IntSlider(2, 0, MAX_ORDER, description="order N", style=WIDE)
        },
        compute=partial(compute, tokens, scores, values),
        draw=draw,
        read_out=read_out,
        conclusion="order 0 gives every token ..., every further order moves weight to the tokens "
        "whose score is ..., and from order ... on the output is within 1 % of softmax attention.",
        answer=f"The same weight; high; here from {first} on. The larger the scores of a row, the "
        "more orders it takes.",
    )
