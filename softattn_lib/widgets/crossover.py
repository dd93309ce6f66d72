"""Which form is fastest at T tokens, and from where on a state beats softmax attention.

Times are the predictions of `cost.py`: causal, forward, float32, one thread of one machine, e = d
and 8 heads. Measured crossovers are handed in, as rows of the table benchmarks/crossovers.csv.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .. import cost
from ..features import num_features
from ..theme import NEUTRAL, TEMPLATE, compact, headline, style
from .base import WIDE, Explorer, ipywidgets

WIDTHS = (4, 8, 16, 32, 64, 128)
ORDERS = (1, 2, 3, 4)
TOKENS = tuple(2**n for n in range(6, 21))
HEADS = 8
FORMS = {
    "softmax": cost.softmax_cost,
    "chunked": cost.chunked_cost,
    "parallel": cost.parallel_cost,
    "recurrent": cost.recurrent_cost,
}
SECONDS = (1e-5, 1e9)  # of the axis


@dataclass(frozen=True)
class Race:
    """What the figure shows. Times in seconds, sizes of all 8 heads."""

    d: int
    order: int
    tokens: int
    seconds: dict[str, np.ndarray]  # (15,) of each form, one for each of TOKENS
    crossover: int  # tokens from which the chunked form is predicted faster than softmax
    crossover_seconds: float  # of softmax attention there
    predicted: np.ndarray  # (4,) crossovers of the orders 1 to 4 at this width
    measured: np.ndarray  # (4,) the same, measured; NaN where there is none
    state_bytes: int
    cache_bytes: int  # of keys and values of all tokens

    @property
    def at_tokens(self) -> dict[str, float]:
        """Seconds of each form at the chosen number of tokens, the fastest first."""
        position = TOKENS.index(self.tokens)
        times = {form: seconds[position].item() for form, seconds in self.seconds.items()}
        return dict(sorted(times.items(), key=lambda item: item[1]))


def compute(rows, d: int = 16, order: int = 2, tokens: int = 4096) -> Race:
    """Predicted times of all forms, and the crossovers of all orders.

    Args:
        rows: of the measured crossovers, with the columns d, order and tokens, which is empty
            where none was found; `read_rows("../benchmarks/crossovers.csv")` in a notebook.
        d: width of keys and values, one of 4, 8, 16, 32, 64, 128.
        order: highest power kept, 1 to 4.
        tokens: T, a power of 2 from 64 to 1,048,576.

    Raises:
        ValueError: for another width, order or number of tokens.

    Example:
        >>> race = compute([{"d": "16", "order": "2", "tokens": "959"}], d=16, order=2)
        >>> race.measured.tolist(), race.state_bytes, race.cache_bytes
        ([nan, 959.0, nan, nan], 83232, 4194304)
    """
    legal = {"d": (d, WIDTHS), "order": (order, ORDERS), "tokens": (tokens, TOKENS)}
    for name, (value, values) in legal.items():
        if value not in values:
            raise ValueError(f"{name} must be one of {values}, got {value!r}")
    measured = {(int(r["d"]), int(r["order"])): float(r["tokens"] or "nan") for r in rows}
    predicted = [cost.crossover(d, n, heads=HEADS) for n in ORDERS]
    crossover = predicted[ORDERS.index(order)]
    work = partial(_workload, d, order)
    return Race(
        d=d,
        order=order,
        tokens=tokens,
        seconds={
            form: np.array([cost_of(work(length)).seconds for length in TOKENS])
            for form, cost_of in FORMS.items()
        },
        crossover=crossover,
        crossover_seconds=cost.softmax_cost(work(crossover)).seconds,
        predicted=np.array(predicted, dtype=float),
        measured=np.array([measured.get((d, n), np.nan) for n in ORDERS]),
        state_bytes=cost.chunked_cost(work(tokens)).state_bytes,
        cache_bytes=cost.softmax_cost(work(tokens)).state_bytes,
    )


def _workload(d, order, length) -> cost.Workload:
    """A forward pass that keeps no state, for which the parallel form would need the features."""
    features = num_features(d, order)
    return cost.Workload(HEADS, 1, length, length, d, d, features, order, return_state=False)


def draw(race: Race, figure=None) -> go.Figure:
    """Left, seconds of each form over T; right, the crossovers of all orders at this width.

    Traces: 0 to 3 the forms (`FORMS`), 4 T, 5 the crossover, 6 predicted and 7 measured crossovers,
    8 the chosen order.

    Args:
        race: what to show.
        figure: an earlier figure of this function, to be changed in place; None makes a new one.
    """
    figure = _blank() if figure is None else figure
    *forms, tokens, crossover, predicted, measured, chosen = figure.data
    for form, trace in zip(FORMS, forms, strict=True):
        trace.y = compact(race.seconds[form])
    tokens.x, tokens.text = [race.tokens] * 2, [" ", f"T = {race.tokens:,}"]
    in_left_half = race.tokens**2 < TOKENS[0] * TOKENS[-1]
    tokens.textposition = "bottom right" if in_left_half else "bottom left"
    crossover.x, crossover.y = [race.crossover], compact([race.crossover_seconds])
    predicted.y, measured.y = compact(race.predicted), _with_gaps(race.measured)
    chosen.x, chosen.y = [race.order], [race.crossover]
    text = (
        f"d = {race.d}, order {race.order}: chunked leads from {_rounded(race.crossover)} tokens."
    )
    layout = headline("From where on a state is faster", text)
    layout["margin"]["t"] += 10  # for the names of the two plots
    figure.update_layout(layout)
    return figure


def _with_gaps(values) -> list[float | None]:
    """None for NaN, which a live figure cannot send to the page."""
    return [None if np.isnan(x) else x for x in values.tolist()]


def _blank() -> go.Figure:
    figure = make_subplots(
        cols=2,
        column_widths=[0.66, 0.34],
        horizontal_spacing=0.06,
        subplot_titles=["predicted seconds", "crossover"],
    )
    forms = [
        go.Scatter(
            x=TOKENS,
            name=form,
            mode="lines",
            line=style(i)["line"],
            hovertemplate="%{x:,} tokens: %{y:.2g} s<extra>%{fullData.name}</extra>",
        )
        for i, form in enumerate(FORMS)
    ]
    tokens = go.Scatter(
        y=SECONDS,
        mode="lines+text",
        line={"color": NEUTRAL, "width": 1},
        showlegend=False,
        hoverinfo="skip",
    )
    crossover = go.Scatter(name="crossover", mode="markers", marker=_diamond(), hoverinfo="skip")
    by_order = {"x": ORDERS, "hovertemplate": "order %{x}: %{y:,}<extra>%{fullData.name}</extra>"}
    predicted = go.Scatter(
        name="predicted", mode="lines", line={"color": NEUTRAL}, showlegend=False, **by_order
    )
    measured = go.Scatter(
        name="measured", mode="markers", marker={**style(4)["marker"], "size": 11}, **by_order
    )
    chosen = go.Scatter(mode="markers", marker=_diamond(), showlegend=False, hoverinfo="skip")
    figure.add_traces(
        [*forms, tokens, crossover, predicted, measured, chosen],
        rows=[1] * 9,
        cols=[1] * 6 + [2] * 3,
    )
    figure.update_layout(template=TEMPLATE, height=440)
    figure.update_annotations(font_size=13)
    ticks = {"tickvals": [64, 1024, 16384, 2**18], "ticktext": ["64", "1k", "16k", "256k"]}
    figure.update_xaxes(type="log", title_text="T (tokens)", range=_log(50, 1.4e6), **ticks, col=1)
    figure.update_yaxes(type="log", range=_log(*SECONDS), dtick=2, col=1)
    figure.update_xaxes(title_text="order N", range=[0.7, 4.3], dtick=1, col=2)
    tokens = {"type": "log", "range": _log(100, 1e8), "dtick": 1, "side": "right"}
    figure.update_yaxes(title_text="tokens", **tokens, col=2)
    return figure


def _diamond() -> dict:
    return {"color": NEUTRAL, "size": 12, "symbol": "diamond"}


def _log(*limits) -> list[float]:
    """The range of a logarithmic axis."""
    return np.log10(limits).tolist()


def read_out(race: Race) -> str:
    """Which form wins, by how much, and what has to be kept; as HTML."""
    (winner, shortest), (second, longer), *_ = race.at_tokens.items()
    if winner == "softmax":
        verdict = (
            f"<b>softmax attention</b> wins: the best form of the polynomial, the {second} one, "
            f"takes <b>{_times(longer / shortest)}</b> as long."
        )
    else:
        ratio = race.at_tokens["softmax"] / shortest
        verdict = (
            f"the <b>{winner} form</b> wins: softmax attention takes <b>{_times(ratio)}</b> as "
            "long."
        )
    larger, ratio = "cache", race.cache_bytes / race.state_bytes
    if ratio < 1:
        larger, ratio = "state", 1 / ratio
    tokens = race.measured[ORDERS.index(race.order)]
    return (
        f"At T = {race.tokens:,} {verdict} To be kept for the next token, 8 heads in float32: a "
        f"state of <b>{_bytes(race.state_bytes)}</b>, or a KV cache of "
        f"<b>{_bytes(race.cache_bytes)}</b>; the {larger} is {_times(ratio)} as large. Crossover "
        f"at {_rounded(race.crossover)} tokens, "
        + ("none measured." if np.isnan(tokens) else f"measured at {_rounded(tokens)}.")
    )


def _rounded(number) -> str:
    """Two digits, because a prediction has no more."""
    return f"{float(f'{number:.1e}'):,.0f}"


def _times(ratio) -> str:
    return f"{ratio:.1f} times" if ratio < 10 else f"{_rounded(ratio)} times"


def _bytes(number) -> str:
    """Three digits and a decimal unit."""
    power = min(int(np.log10(number)) // 3, 3)
    return f"{number / 1000**power:.3g} {('B', 'kB', 'MB', 'GB')[power]}"


def mount(rows) -> Explorer:
    """The widget, with the controls `d`, `order` and `tokens`; rows as in `compute`.

    Example:
        >>> widget = mount([{"d": "16", "order": "2", "tokens": "959"}])
        >>> widget.order.value = 4
        >>> widget.figure.data[4].x, widget.figure.data[7].y
        ((4096, 4096), (None, 959.0, None, None))
    """
    return Explorer(
        question="From how many tokens on is a state faster than softmax attention, and what does "
        "one order more cost?",
        controls={
            "d": ipywidgets.SelectionSlider(
                options=WIDTHS, value=16, description="head width d", style=WIDE
            ),
            "order": ipywidgets.IntSlider(
                2, ORDERS[0], ORDERS[-1], description="order N", style=WIDE
            ),
            "tokens": ipywidgets.SelectionSlider(
                options=TOKENS, value=4096, description="tokens T", style=WIDE
            ),
        },
        slide=("order", None),
        compute=partial(compute, rows),
        draw=draw,
        read_out=read_out,
        conclusion="twice the tokens make softmax take ... times as long and the chunked form ... "
        "times; at d = 64 the state of order 2 is faster from some ... tokens on, that of order 4 "
        "from some ...; and the forms that are never the fastest are ...",
        answer="Four times, two times (on long texts). Several thousand; more than a million. "
        "Neither the parallel form, which has as many pairs as softmax, nor the recurrent form, "
        "which goes through the whole state for every single token.",
    )
