"""Plain figures for the notebooks, in the house style: each returns a `plotly` figure.

All of them take tensors, arrays or lists, and `{name: values}` where there are several. The caption
says in words what the figure shows, for readers who cannot see it well.
"""

import html

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .theme import (
    COLORS,
    DIVERGING,
    NEUTRAL,
    SEQUENTIAL,
    TEMPLATE,
    VERMILLION,
    compact,
    headline,
    style,
)

HEIGHT = 420
MAX_NUMBERED = 12  # cells a side up to which a heat map shows its numbers


def lines_figure(
    x, curves, *, title, caption="", x_title="", y_title="", log_x=False, log_y=False
) -> go.Figure:
    """Curves over common x values, each with its own colour, dash and, if they are few, markers.

    Args:
        x: (n,) positions.
        curves: {name: (n,) heights}. NaN leaves a gap; so does 0 on a logarithmic axis.
        title, caption: what the figure is, and what to see in it.
        x_title, y_title: what stands along the axes, with units.
        log_x, log_y: logarithmic axes.

    Example:
        >>> figure = lines_figure([0, 1, 2], {"square": [0, 1, 4]}, title="A square")
        >>> figure.data[0].name, figure.data[0].y.tolist()
        ('square', [0.0, 1.0, 4.0])
    """
    x = compact(x)
    mode = "lines+markers" if len(x) <= 25 else "lines"
    traces = [
        go.Scatter(x=x, y=compact(y), name=name, mode=mode, **style(n))
        for n, (name, y) in enumerate(curves.items())
    ]
    figure = _figure(traces, title, caption, x_title, y_title)
    figure.update_xaxes(type="log" if log_x else "linear")
    figure.update_yaxes(type="log" if log_y else "linear")
    return figure


def bars_figure(
    labels, bars, *, title, caption="", x_title="", y_title="", log_y=False
) -> go.Figure:
    """Groups of bars.

    Args:
        labels: (n,) what stands under each group; words, or numbers that are only names.
        bars: {name: (n,) heights}, one bar of each group per name.
        title, caption, x_title, y_title, log_y: as in `lines_figure`.

    Example:
        >>> bars_figure(["a", "b"], {"count": [3, 5]}, title="Counts").data[0].y.tolist()
        [3.0, 5.0]
    """
    positions = list(range(len(labels)))
    traces = [
        go.Bar(x=positions, y=compact(heights), name=name, marker=_pattern(n))
        for n, (name, heights) in enumerate(bars.items())
    ]
    figure = _figure(traces, title, caption, x_title, y_title)
    figure.update_xaxes(tickvals=positions, ticktext=_words(labels))
    figure.update_yaxes(type="log" if log_y else "linear")
    return figure


def points_figure(
    groups, *, title, caption="", x_title="", reference=None, other_axis=None
) -> go.Figure:
    """A row of points for each name, the first on top, with a bar at their mean.

    Args:
        groups: {name: values}, for instance one value a seed. A NaN leaves the row without a bar,
            and its name says how many there are.
        reference: name of a row whose mean is drawn through all rows.
        other_axis: (x_title, function of an array) of a second scale, to which buttons switch.
        title, caption, x_title: as in `lines_figure`.

    Example:
        >>> figure = points_figure({"a": [1, 3], "b": [2, float("nan")]}, title="Losses")
        >>> figure.data[1].x.tolist(), figure.layout.yaxis.ticktext
        ([2.0, nan], ('a', 'b (1 of 2 NaN)'))
    """
    values = {name: compact(points).ravel() for name, points in groups.items()}
    means = compact([points.mean() for points in values.values()])
    rows = [row for row, points in enumerate(values.values()) for _ in points]
    traces = [
        go.Scatter(
            x=np.concatenate(list(values.values())),
            y=rows,
            name="one run",
            mode="markers",
            marker={**style(0)["marker"], "opacity": 0.7},
        ),
        go.Scatter(
            x=means,
            y=list(range(len(means))),
            name="mean",
            mode="markers",
            marker={"symbol": "line-ns-open", "size": 14, "line_width": 2, "color": VERMILLION},
        ),
    ]
    figure = _figure(traces, title, caption, x_title, "")
    names = [
        name + (f" ({nan} of {len(points)} NaN)" if (nan := np.isnan(points).sum()) else "")
        for name, points in values.items()
    ]
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=_words(names),
        range=[len(names) - 0.5, -0.5],
        zeroline=False,
    )
    figure.update_layout(height=max(HEIGHT, 150 + 19 * len(names)))
    if reference is not None:
        line = {"color": NEUTRAL, "dash": "dot", "width": 1}
        figure.add_vline(x=means[list(values).index(reference)], line=line)
    if other_axis is not None:
        other_title, function = other_axis
        transformed = {name: function(points) for name, points in values.items()}
        other = points_figure(transformed, title=title, x_title=other_title, reference=reference)
        _add_buttons(figure, other)
    return figure


def histogram_figure(
    samples, *, title, caption="", x_title="", y_title="share", bins=40, log_y=False
) -> go.Figure:
    """Outlines of histograms over common bins; each one's heights add up to 1.

    Args:
        samples: {name: values of any shape}.
        bins: how many bins of equal width from the smallest to the largest of all values, or
            their edges.
        title, caption, x_title, y_title, log_y: as in `lines_figure`.

    Example:
        >>> figure = histogram_figure({"scores": [0, 0, 1, 2]}, bins=2, title="Scores")
        >>> figure.data[0].y.tolist()  # two bins of 0.5 each, and the last edge
        [0.5, 0.5, 0.5]
    """
    arrays = {name: compact(values).ravel() for name, values in samples.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(arrays.values())), bins)
    traces = []
    for n, (name, values) in enumerate(arrays.items()):
        share = np.histogram(values, edges)[0] / len(values)
        line = {**style(n)["line"], "shape": "hv"}
        y = compact(np.append(share, share[-1]))
        traces.append(go.Scatter(x=compact(edges), y=y, name=name, mode="lines", line=line))
    figure = _figure(traces, title, caption, x_title, y_title)
    figure.update_yaxes(type="log" if log_y else "linear")
    return figure


def heatmap_figure(
    matrices, *, title, caption="", rows=None, columns=None, x_title="", y_title="", limits=None
) -> go.Figure:
    """Matrices side by side as they are written, first row on top, on one colour scale.

    Small ones show their numbers. Values of one sign go from light to blue; where there are
    values of both signs, light is zero, blue positive and vermillion negative.

    Args:
        matrices: a matrix (n, m), or {name: (n, m)} for several, all of n rows.
        rows, columns: words beside the rows and under the columns.
        limits: (lowest, highest) value of the colour scale; None takes them from the matrices.
        title, caption, x_title, y_title: as in `lines_figure`.

    Example:
        >>> figure = heatmap_figure([[1.0, 0.0], [0.5, 0.5]], title="Weights")
        >>> figure.data[0].z.tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """
    named = matrices if isinstance(matrices, dict) else {"": matrices}
    named = {name: compact(matrix) for name, matrix in named.items()}
    widths = [matrix.shape[1] for matrix in named.values()]
    figure = make_subplots(
        cols=len(named), shared_yaxes=True, column_widths=widths, subplot_titles=list(named)
    )
    for n, (name, matrix) in enumerate(named.items()):
        figure.add_trace(heatmap(matrix, name=name), row=1, col=n + 1)
    figure.update_layout(
        template=TEMPLATE,
        height=HEIGHT,
        coloraxis=color_axis(limits or _limits(named.values())),
        **headline(title, caption),
    )
    if len(named) > 1:
        figure.layout.margin.t += 20
    figure.update_annotations(font_size=13)  # the names above the matrices
    figure.update_xaxes(title_text=x_title, showline=False, showgrid=False, zeroline=False)
    figure.update_yaxes(autorange="reversed", showline=False, showgrid=False, zeroline=False)
    figure.update_yaxes(title_text=y_title, col=1)
    for n, width in enumerate(widths):
        figure.update_xaxes(_ticks(columns, width), col=n + 1)
    figure.update_yaxes(_ticks(rows, len(named[next(iter(named))])))
    if columns is not None and len(columns) > MAX_NUMBERED:
        figure.update_xaxes(tickfont_size=9)
    return figure


def weights_figure(weights, *, title, caption="", tokens=None) -> go.Figure:
    """Attention weights: one row a query, one column a key, colours from 0 to 1.

    Weights below 0 or above 1, as a truncated series of odd order can have, widen the scale to
    both signs.

    Args:
        weights: (T_q, T_k), or {name: (T_q, T_k)} for several.
        tokens: the words of the tokens, under the columns and, if T_q = T_k, beside the rows.
        title, caption: as in `lines_figure`.

    Example:
        >>> figure = weights_figure([[1.0, 0.0], [0.5, 0.5]], title="Averages")
        >>> figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax
        (0, 1)
    """
    named = weights if isinstance(weights, dict) else {"": weights}
    lowest, highest = _limits(map(compact, named.values()))
    is_square = all(len(matrix) == len(matrix[0]) for matrix in named.values())
    return heatmap_figure(
        weights,
        title=title,
        caption=caption,
        rows=tokens if is_square else None,
        columns=tokens,
        x_title="key",
        y_title="query",
        limits=(0, 1) if lowest >= 0 and highest <= 1 else (lowest, highest),
    )


def heatmap(matrix, **options) -> go.Heatmap:
    """One heat map on the figure's colour axis, with its numbers if it is small.

    Example:
        >>> heatmap([[1.0, 2.0]]).texttemplate
        '%{z:.2~f}'
    """
    z = compact(matrix)
    numbers = "%{z:.2~f}" if max(z.shape) <= MAX_NUMBERED else None
    return go.Heatmap(
        z=z,
        coloraxis="coloraxis",
        texttemplate=numbers,
        xgap=1,
        ygap=1,
        hovertemplate="%{y}, %{x}: %{z:.4~g}<extra>%{fullData.name}</extra>",
        **options,
    )


def color_axis(limits) -> dict:
    """The colour axis of heat maps: from light to blue, or around zero if limits have both signs.

    Example:
        >>> color_axis((-1, 2))["cmin"]  # as far below zero as above
        -2
    """
    lowest, highest = limits
    bar = {"thickness": 10, "outlinewidth": 0}
    if lowest < 0:
        largest = max(-lowest, highest)
        return {"colorscale": DIVERGING, "cmin": -largest, "cmax": largest, "colorbar": bar}
    return {"colorscale": SEQUENTIAL, "cmin": lowest, "cmax": highest, "colorbar": bar}


def _figure(traces, title, caption, x_title, y_title) -> go.Figure:
    figure = go.Figure(traces)
    figure.update_layout(
        template=TEMPLATE,
        height=HEIGHT,
        xaxis_title_text=x_title,
        yaxis_title_text=y_title,
        showlegend=len(traces) > 1,
        **headline(title, caption),
    )
    return figure


def _add_buttons(figure, other) -> None:
    """Buttons above the legend that switch between a figure's x values and those of another."""
    buttons = [
        {
            "label": one.layout.xaxis.title.text,
            "method": "update",
            "args": [
                {"x": [list(trace.x) for trace in one.data]},
                {
                    "xaxis.title.text": one.layout.xaxis.title.text,
                    "shapes": [shape.to_plotly_json() for shape in one.layout.shapes],
                },
            ],
        }
        for one in (figure, other)
    ]
    figure.layout.height += 75
    figure.layout.updatemenus = [
        {
            "type": "buttons",
            "direction": "down",
            "buttons": buttons,
            "x": 1,
            "xanchor": "right",
            "y": -75 / figure.layout.height,
            "yanchor": "top",
        }
    ]


def _pattern(index: int) -> dict:
    """Colour and hatching of the index-th kind of bar."""
    shapes = ("", "/", ".", "x", "-", "|", "+")
    n = index % len(COLORS)
    return {
        "color": COLORS[n],
        "pattern": {"shape": shapes[n], "size": 6, "solidity": 0.4},
        "line": {"color": COLORS[n], "width": 1},
    }


def _limits(matrices) -> tuple[float, float]:
    """From the lowest value, or 0 if there is none below, to the highest."""
    values = np.concatenate([matrix.ravel() for matrix in matrices])
    return min(0.0, float(np.nanmin(values))), float(np.nanmax(values))


def _ticks(labels, size: int) -> dict:
    """One tick per row or column, if there are words for them or only a few."""
    if labels is None and size > MAX_NUMBERED:
        return {}
    labels = range(size) if labels is None else labels
    return {"tickvals": list(range(size)), "ticktext": _words(labels)}


def _words(labels) -> list[str]:
    """Labels that plotly shows as they are, `<` and `&` included."""
    return [html.escape(str(label), quote=False) for label in labels]
