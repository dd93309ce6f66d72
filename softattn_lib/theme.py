"""The house style of every figure: colours, dashes, and a slim template.

The colours are those of Okabe and Ito (2008), and a grey; colour-blind readers too tell them apart,
and each comes with a dash and a marker, so that colour never carries a meaning alone. Backgrounds
are transparent, and text is that grey: it stands out equally (4.3 : 1) from JupyterLab's white and
black.
"""

import sys
import textwrap

import numpy as np
import plotly.graph_objects as go

# With its first live figure plotly imports jsonschema, which imports this for one check that
# nothing here uses; it takes seconds.
sys.modules.setdefault("rfc3987_syntax", None)

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY = "#E69F00", "#56B4E9"
NEUTRAL = "#7A7A7A"  # text, and what is there for reference
FAINT = "rgba(122, 122, 122, 0.25)"  # grid lines

COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, NEUTRAL)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "3px,6px")
MARKERS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star")

# Of heat maps: light is little. plotly writes the numbers in black or white, by the cell's colour.
SEQUENTIAL = ((0, "#F7F7F7"), (0.5, "#7FB8D8"), (1, BLUE))
DIVERGING = ((0, VERMILLION), (0.25, "#EAAE7F"), (0.5, "#F7F7F7"), (0.75, "#7FB8D8"), (1, BLUE))

TITLE_CHARACTERS, CAPTION_CHARACTERS = 44, 56  # that fit on a line of a figure 400 pixels wide

_AXIS = {
    "gridcolor": FAINT,
    "zerolinecolor": NEUTRAL,
    "linecolor": NEUTRAL,
    "showline": True,
    "ticks": "outside",
    "ticklen": 4,
    "tickcolor": NEUTRAL,
    "automargin": True,
    "title": {"standoff": 6},
    "exponentformat": "power",
}

TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": "system-ui, DejaVu Sans, sans-serif", "size": 12, "color": NEUTRAL},
        "title": {
            "x": 0,
            "xref": "container",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 8, "l": 10},
            "font": {"size": 15, "weight": 600},
            "subtitle": {"font": {"size": 12}},
        },
        "colorway": COLORS,
        "paper_bgcolor": "rgba(0, 0, 0, 0)",
        "plot_bgcolor": "rgba(0, 0, 0, 0)",
        "margin": {"l": 10, "r": 10, "b": 10},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        # At the very bottom, so that the axes above keep room for their words whatever the size.
        "legend": {
            "orientation": "h",
            "xref": "container",
            "yref": "container",
            "x": 0.02,
            "y": 0.02,
            "yanchor": "bottom",
        },
        "annotationdefaults": {"showarrow": False},
    }
)


def style(index: int) -> dict:
    """Line and marker of the index-th curve of a figure, for a scatter trace.

    Example:
        >>> style(1)["line"]
        {'color': '#D55E00', 'dash': 'dash', 'width': 2}
    """
    n = index % len(COLORS)
    return {
        "line": {"color": COLORS[n], "dash": DASHES[n], "width": 2},
        "marker": {"color": COLORS[n], "symbol": MARKERS[n], "size": 7},
    }


def compact(values, digits: int = 6) -> np.ndarray:
    """An array for a figure: float64, rounded to `digits` significant decimal digits.

    Rounded, because the last bits differ between processors and would be stored with the figure.

    Args:
        values: a tensor (any dtype and device, with or without gradient), an array, nested lists.
        digits: how many digits are kept.

    Example:
        >>> compact([1 / 3, 123456789.0])
        array([3.33333e-01, 1.23457e+08])
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().double()
    values = np.asarray(values, dtype=np.float64)
    return np.array([float(f"{x:.{digits - 1}e}") for x in values.flat]).reshape(values.shape)


def cells(matrix) -> list[list[float | None]]:
    """A matrix for a live heat map: rounded, and None for NaN, which it cannot send to the page.

    Example:
        >>> cells([[1 / 3, float("nan")]])
        [[0.333333, None]]
    """
    return [[None if np.isnan(x) else x for x in row] for row in compact(matrix).tolist()]


def headline(title: str, caption: str = "") -> dict:
    """Layout entries: a title, under it a caption that says what to see, and room for both.

    Args:
        title: at most 44 characters, which is what fits on a line of a figure 400 pixels wide.
        caption: of any length; it is broken into lines that fit.

    Raises:
        ValueError: if the title is longer.

    Example:
        >>> headline("Powers", "Each order is one network, and softmax attention is their sum")
        {'title': {'text': 'Powers', 'subtitle': {'text': 'Each order is one network, and softmax \
attention is<br>their sum'}}, 'margin': {'t': 86}}
    """
    if len(title) > TITLE_CHARACTERS:
        raise ValueError(f"title must have at most {TITLE_CHARACTERS} characters, got {title!r}")
    lines = textwrap.wrap(caption, CAPTION_CHARACTERS)
    return {
        "title": {"text": title, "subtitle": {"text": "<br>".join(lines)}},
        "margin": {"t": 50 + 18 * len(lines)},
    }
