"""How many random pairs a state of one order reads back, against the width of its keys.

Untrained: P random keys of width d are written with one of 32 symbols each, then each key asks for
its own (`softattn_lib.tasks.capacity`). Orders are pure powers of the score. For comparison the
softmax of keys of length 2, whose score with themselves is 4: it has no state, and needs the cache.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from ..features import features_of_degree
from ..polynomials import power
from ..tasks.capacity import SYMBOLS, random_pairs, recalled
from ..theme import BLUE, NEUTRAL, TEMPLATE, compact, headline, style
from .base import WIDE, Explorer, ipywidgets

ORDERS = (1, 2, 3, 4, 5, 6)
WIDTHS = (4, 8, 16, 32)
PAIRS = tuple(2**n for n in range(11))
QUESTIONS = 512  # that a point of a curve averages over
LENGTH = 2.0  # of the keys; no power depends on it, exp does
BINS = np.linspace(-1, 1, 41)  # of the weights


@dataclass(frozen=True)
class Recall:
    """What the figure shows. Accuracies are shares of right answers; a guess has 1 / 32."""

    order: int
    d: int
    pairs: int
    accuracy: np.ndarray  # (6, 11), one row an order, one column a number of pairs
    softmax: np.ndarray  # (11,)
    weights: np.ndarray  # (40,) share of other keys whose weight falls in each bin; a match has 1
    state_floats: int  # D (e + 1), packed, with e = 32
    cache_floats: int  # P (d + e)

    @property
    def chosen(self) -> float:
        """The accuracy of the chosen order at the chosen number of pairs."""
        return self.accuracy[ORDERS.index(self.order), PAIRS.index(self.pairs)].item()


def compute(order: int = 2, d: int = 8, pairs: int = 32) -> Recall:
    """Accuracies of all orders at this width, and sizes of state and cache.

    Args:
        order: the power of the score, 1 to 6.
        d: width of the keys, one of 4, 8, 16, 32.
        pairs: a power of 2 from 1 to 1024.

    Raises:
        ValueError: for another order, width or number of pairs.

    Example:
        >>> recall = compute(order=1, d=8, pairs=8)
        >>> recall.state_floats, recall.cache_floats, round(recall.chosen)
        (264, 320, 1)
    """
    for name, value, legal in (("order", order, ORDERS), ("d", d, WIDTHS), ("pairs", pairs, PAIRS)):
        if value not in legal:
            raise ValueError(f"{name} must be one of {legal}, got {value!r}")
    accuracy, cosines = _measured(d)
    return Recall(
        order=order,
        d=d,
        pairs=pairs,
        accuracy=accuracy[:-1],
        softmax=accuracy[-1],
        weights=np.histogram(cosines**order, BINS)[0] / len(cosines),
        state_floats=features_of_degree(d, order) * (SYMBOLS + 1),
        cache_floats=pairs * (d + SYMBOLS),
    )


@cache
def _measured(d: int):
    """Accuracies (7, 11) of all orders and of exp, and many cosines of two random keys."""
    generator = torch.Generator().manual_seed(0)
    kernels = [*map(power, ORDERS), "exp"]
    columns = []
    for pairs in PAIRS:
        sets = max(1, QUESTIONS // pairs)
        keys, values = random_pairs(pairs, d, length=LENGTH, sets=sets, generator=generator)
        keys, values = keys.float(), values.float()  # half the time
        right = [recalled(kernel, keys, values, queries=QUESTIONS) for kernel in kernels]
        columns.append([share.double().mean().item() for share in right])
    asked, others = (keys[0] / LENGTH).tensor_split([10])  # of the largest set
    measured = np.array(columns).T, (asked @ others.T).numpy().ravel()
    for array in measured:
        array.setflags(write=False)  # it is kept for the next call
    return measured


def draw(recall: Recall, figure=None) -> go.Figure:
    """Left, accuracy over the number of pairs; right, the weights that other keys get.

    Traces: 0 to 5 the orders, 6 softmax, 7 the chosen point, 8 the weights.

    Args:
        recall: what to show.
        figure: an earlier figure of this function, to be changed in place; None makes a new one.
    """
    figure = _blank() if figure is None else figure
    *orders, softmax, point, weights = figure.data
    for order, trace, accuracy in zip(ORDERS, orders, recall.accuracy, strict=True):
        trace.y = compact(accuracy)
        trace.line.width = 4 if order == recall.order else 1.5
    softmax.y = compact(recall.softmax)
    point.x, point.y = [recall.pairs], compact([recall.chosen])
    weights.y = compact(recall.weights)
    text = f"Order {recall.order}, d = {recall.d}: {recall.chosen:.0%} of {_pairs(recall.pairs)}"
    layout = headline("How many random pairs a state recalls", f"{text} read back right.")
    layout["margin"]["t"] += 10  # for the names of the two plots
    figure.update_layout(layout)
    return figure


def _pairs(number: int) -> str:
    return f"{number:,} pair{'' if number == 1 else 's'}"


def _blank() -> go.Figure:
    figure = make_subplots(
        cols=2,
        column_widths=[0.66, 0.34],
        horizontal_spacing=0.1,
        subplot_titles=["read back right", "other keys"],
    )
    reads = "%{x} pairs: %{y:.0%}<extra>%{fullData.name}</extra>"
    curves = [
        go.Scatter(x=PAIRS, name=f"order {n}", mode="lines", line=style(i)["line"])
        for i, n in enumerate(ORDERS)
    ]
    softmax = go.Scatter(x=PAIRS, name="softmax", mode="lines", line={"color": NEUTRAL, "width": 2})
    point = go.Scatter(
        mode="markers",
        showlegend=False,
        marker={"color": NEUTRAL, "size": 13, "symbol": "diamond"},
        cliponaxis=False,
        hoverinfo="skip",
    )
    weights = go.Bar(
        x=compact((BINS[1:] + BINS[:-1]) / 2),
        showlegend=False,
        marker_color=BLUE,
        hovertemplate="about %{x:.2f}: %{y:.1%}<extra></extra>",
    )
    figure.add_traces([*curves, softmax, point, weights], rows=[1] * 9, cols=[1] * 8 + [2])
    figure.update_traces(hovertemplate=reads, selector={"mode": "lines"})
    figure.update_layout(template=TEMPLATE, height=420, bargap=0)
    figure.update_annotations(font_size=13)
    figure.update_xaxes(type="log", title_text="pairs", tickvals=PAIRS[::2], range=[0, 3.02], col=1)
    figure.update_yaxes(range=[0, 1.03], tickformat=".0%", col=1)
    figure.update_xaxes(title_text="weight (match: 1)", range=[-1, 1], dtick=1, col=2)
    share = {"title_text": "share", "tickformat": ".0%", "rangemode": "tozero", "side": "right"}
    figure.update_yaxes(share, col=2)
    return figure


def read_out(recall: Recall) -> str:
    """The same in numbers, as HTML."""
    rows = features_of_degree(recall.d, recall.order)
    softmax = recall.softmax[PAIRS.index(recall.pairs)]
    return (
        f"The state has {rows:,} rows of {SYMBOLS + 1} sums, <b>{recall.state_floats:,} floats</b> "
        f"whatever it holds, and reads back <b>{recall.chosen:.1%}</b>. A KV cache of "
        f"{_pairs(recall.pairs)} has <b>{recall.cache_floats:,} floats</b>; with it softmax, for "
        f"keys whose score with themselves is {LENGTH**2:g}, reads back {softmax:.1%}. A guess is "
        f"right with {1 / SYMBOLS:.1%}."
    )


def mount() -> Explorer:
    """The widget, with the controls `order`, `d` and `pairs`.

    Example:
        >>> widget = mount()
        >>> widget.order.value = 1
        >>> widget.figure.data[7].y.round(1).tolist()  # 32 pairs are too many for order 1 at d = 8
        [0.7]
    """
    return Explorer(
        question="How many random pairs can a state of one order hold, and is it smaller than a "
        "cache of the same pairs?",
        controls={
            "order": ipywidgets.IntSlider(
                2, ORDERS[0], ORDERS[-1], description="order n", style=WIDE
            ),
            "d": ipywidgets.SelectionSlider(
                options=WIDTHS, value=8, description="key width d", style=WIDE
            ),
            "pairs": ipywidgets.SelectionSlider(
                options=PAIRS, value=32, description="pairs P", style=WIDE
            ),
        },
        compute=compute,
        draw=draw,
        read_out=read_out,
        conclusion="one order more ... the weights of the other keys, so that ...; twice the width "
        "lets order 1 hold about ... times as many pairs, order 2 about ...; and where a state "
        "begins to fail, a cache of the same pairs is ...",
        answer="It pushes them towards 0 (compare odd orders with odd ones and even with even, for "
        "the sign), so that more of them fit. About 2 times, about 4 times. About as large: where "
        "9 of 10 pairs are right the state is 0.2 to 3 times the cache, on all curves that get "
        "there.",
    )
