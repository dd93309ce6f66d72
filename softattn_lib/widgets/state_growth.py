"""How large the recurrent state is, against a KV cache that grows with every token.

A state of the orders 0..N has D features, and each holds a row [sum of phi v, sum of phi] of e + 1
floats. A KV cache holds d + e floats for every token so far. Here e = d, one head.
"""

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..features import features_of_degree, num_features
from ..theme import BLUE, NEUTRAL, TEMPLATE, VERMILLION, compact, headline
from .base import WIDE, Explorer, ipywidgets

WIDTHS = (4, 8, 16, 32, 64, 128)
ORDERS = list(range(7))
POINTS = 15  # of the curves over tokens


@dataclass(frozen=True)
class Growth:
    """What the figure shows; floats are those of one head."""

    d: int
    order: int
    packed: bool
    features: int  # D, all orders together
    state_floats: int  # D (e + 1)
    break_even: int  # first token at which the cache holds at least as many floats as the state
    tokens: np.ndarray  # (n,) from 1 on, evenly spread over the powers of ten
    cache_floats: np.ndarray  # (n,) 2 d tokens
    packed_features: np.ndarray  # (7,) of each of the orders 0..6
    full_features: np.ndarray  # (7,)


def compute(d: int = 64, order: int = 2, packed: bool = True) -> Growth:
    """Sizes of the state and of the cache.

    Args:
        d: width of a query, key and value.
        order: highest power kept.
        packed: one of each monomial, C(d+n-1, n) for order n, or the full Kronecker power, d^n.

    Raises:
        ValueError: if d < 1 or order < 0.

    Example:
        >>> growth = compute(d=64, order=2)
        >>> growth.features, growth.state_floats, growth.break_even
        (2145, 139425, 1090)
    """
    features = num_features(d, order, packed)
    state_floats = features * (d + 1)
    break_even = -(-state_floats // (2 * d))  # rounded up
    tokens = np.logspace(0, max(7, np.ceil(np.log10(break_even)) + 1), POINTS)
    return Growth(
        d=d,
        order=order,
        packed=packed,
        features=features,
        state_floats=state_floats,
        break_even=break_even,
        tokens=tokens,
        cache_floats=2 * d * tokens,
        packed_features=np.array([features_of_degree(d, n) for n in ORDERS], dtype=float),
        full_features=np.array(
            [features_of_degree(d, n, packed=False) for n in ORDERS], dtype=float
        ),
    )


def draw(growth: Growth, figure=None) -> go.Figure:
    """Left, state and cache over tokens; right, how many features each order has.

    Traces: 0 cache, 1 state, 2 break-even, 3 packed features, 4 full features.

    Args:
        growth: what to show.
        figure: an earlier figure of this function, to be changed in place; None makes a new one.
    """
    figure = _blank() if figure is None else figure
    cache, state, break_even, packed, full = figure.data
    cache.x, cache.y = compact(growth.tokens), compact(growth.cache_floats)
    state.x, state.y = compact(growth.tokens[[0, -1]]), compact([growth.state_floats] * 2)
    break_even.x, break_even.y = [growth.break_even], [growth.state_floats]
    break_even.text = [f"<b>{_tokens(growth)}</b>"]
    # Words stand where the other line is far: beyond the crossing if it is in the left half. (A
    # live figure never shows a word again where one was empty; a space is not empty.)
    if growth.break_even**2 < growth.tokens[-1]:
        state.text, state.textposition = [" ", "state"], "top left"
        break_even.textposition = "bottom right"
    else:
        state.text, state.textposition = ["state", " "], "top right"
        break_even.textposition = "top left"
    packed.y, full.y = compact(growth.packed_features), compact(growth.full_features)
    for trace, is_chosen in ((packed, growth.packed), (full, not growth.packed)):
        color = VERMILLION if is_chosen else NEUTRAL
        trace.line.color = trace.marker.color = trace.textfont.color = color
        kept = [is_chosen and n <= growth.order for n in ORDERS]
        trace.marker.symbol = ["circle" if k else "circle-open" for k in kept]
    text = (
        f"d = {growth.d}, up to order {growth.order}: the state of one head is as large as a cache "
        f"of {_tokens(growth)}."
    )
    figure.update_layout(headline("The cache grows, the state does not", text))
    return figure


def _tokens(growth: Growth) -> str:
    return f"{growth.break_even:,} token{'' if growth.break_even == 1 else 's'}"


def _blank() -> go.Figure:
    figure = make_subplots(
        cols=2,
        column_widths=[0.64, 0.36],
        horizontal_spacing=0.06,
        subplot_titles=["floats of one head", "features by order"],
    )
    figure.add_traces(
        [
            go.Scatter(
                name="KV cache",
                mode="lines+text",
                line={"color": BLUE, "width": 3},
                text=[""] * (POINTS - 1) + ["KV cache"],
                textposition="top left",
                textfont={"color": BLUE, "weight": 700},
            ),
            go.Scatter(
                name="state",
                mode="lines+text",
                line={"color": VERMILLION, "width": 3, "dash": "dash"},
                textfont={"color": VERMILLION, "weight": 700},
            ),
            go.Scatter(
                name="break-even",
                mode="markers+text",
                marker={"color": NEUTRAL, "size": 12, "symbol": "diamond"},
                cliponaxis=False,
            ),
            _features("packed", "bottom right"),
            _features("full", "top left"),
        ],
        rows=[1] * 5,
        cols=[1, 1, 1, 2, 2],
    )
    figure.update_layout(
        template=TEMPLATE,
        showlegend=False,
        height=400,
    )
    figure.update_xaxes(type="log", title_text="tokens so far", dtick=2, col=1)
    figure.update_xaxes(title_text="order", dtick=1, col=2)
    figure.update_yaxes(type="log", dtick=2)
    figure.update_yaxes(side="right", col=2)
    figure.update_annotations(font_size=13)
    return figure


def _features(name, textposition) -> go.Scatter:
    """A curve over the orders, named at order 3."""
    return go.Scatter(
        x=ORDERS,
        name=name,
        mode="lines+markers+text",
        line={"width": 2, "dash": "dash"},
        marker={"size": 8},
        text=["" if n != 3 else name for n in ORDERS],
        textposition=textposition,
        cliponaxis=False,
    )


def read_out(growth: Growth) -> str:
    """The same in numbers, as HTML."""
    other = num_features(growth.d, growth.order, not growth.packed)
    basis, other_basis = ("packed", "full") if growth.packed else ("full", "packed")
    return (
        f"<b>{growth.features:,}</b> {basis} features ({other_basis}: {other:,}), each with "
        f"d + 1 = {growth.d + 1} sums: <b>{growth.state_floats:,} floats</b>. The cache holds "
        f"2 d = {2 * growth.d} floats a token, and is as large after <b>{_tokens(growth)}</b>."
    )


def mount() -> Explorer:
    """The widget, with the controls `d`, `order` and `packed`.

    Example:
        >>> widget = mount()
        >>> widget.order.value = 1
        >>> widget.figure.data[2].x  # break-even of d = 64, order 1
        (34,)
    """
    return Explorer(
        question="From how many tokens on is the recurrent state smaller than a KV cache?",
        controls={
            "d": ipywidgets.SelectionSlider(
                options=WIDTHS, value=64, description="head width d", style=WIDE
            ),
            "order": ipywidgets.IntSlider(2, 0, ORDERS[-1], description="order N", style=WIDE),
            "packed": ipywidgets.ToggleButtons(
                options={"packed": True, "full": False},
                value=True,
                style={"button_width": "70px"},
                tooltips=["each monomial once", "all entries of the Kronecker power"],
            ),
        },
        slide=("order", None),
        compute=compute,
        draw=draw,
        read_out=read_out,
        conclusion="one order more makes the state about ... times larger at head width 64, so "
        "that a text has to be ... tokens long before order 3 pays, and packing ...",
        answer="From order 2 to 3 the state grows 22 times (from 3 to 4, 17 times); order 3 pays "
        "after 24,327 tokens. Packing divides the last order by up to N!, which delays the growth "
        "and does not stop it.",
    )
