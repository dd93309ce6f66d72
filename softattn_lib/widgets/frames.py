"""An Explorer's figure for a page without a kernel: frames computed beforehand, and one slider."""

import json
import os

import plotly.graph_objects as go

SWITCH = "SOFTATTN_FRAMES"  # environment variable: widgets are displayed with a slider's frames
MAX_FRAMES = 13
AT_ONCE = {"mode": "immediate", "transition": {"duration": 0}, "frame": {"duration": 0}}


def wanted() -> bool:
    """Whether displayed widgets carry frames, which make a notebook several times larger."""
    return os.environ.get(SWITCH) == "1"


def with_slider(explorer) -> go.Figure:
    """The figure of an Explorer with a frame for each value of one control, and a slider.

    `explorer.slide` says which control, and which values if not all; of more than 13 some that lie
    evenly between the ends are taken. The first values of all others hold.

    Frames hold what differs between them and nothing else. `layout.meta` has what belongs beside
    the figure: `read_outs`, HTML for each frame, and `fixed`, a sentence about the other controls.

    Example:
        >>> from softattn_lib.widgets import state_growth
        >>> figure = with_slider(state_growth.mount())
        >>> [frame.name for frame in figure.frames]
        ['0', '1', '2', '3', '4', '5', '6']
        >>> figure.layout.sliders[0].active, figure.layout.meta["fixed"]
        (2, 'Other controls: head width d 64; packed.')
    """
    control, values = explorer.slide
    labels = choices(explorer._controls[control])
    first = explorer._defaults[control]
    values = thinned(list(labels), first) if values is None else list(values)
    results = [explorer._compute(**{**explorer._defaults, control: value}) for value in values]
    figures = [json.loads(explorer._draw(result).to_json()) for result in results]
    names = [labels[value] for value in values]
    active = values.index(first)
    figure = go.Figure({**figures[active], "frames": frames(figures, names)})
    figure.layout.sliders = [slider(explorer._controls[control].description, names, active)]
    figure.layout.meta = {
        "read_outs": [explorer._read_out(result) for result in results],
        "fixed": fixed(explorer, control),
    }
    return figure


def choices(control) -> dict:
    """{value: how it is written} of a control, in its order.

    Example:
        >>> import ipywidgets
        >>> choices(ipywidgets.IntSlider(min=2, max=4))
        {2: '2', 3: '3', 4: '4'}
        >>> choices(ipywidgets.Dropdown(options={"no gate": None}))
        {None: 'no gate'}
    """
    if hasattr(control, "options"):
        return {value: label for label, value in control._options_full}
    steps = round((control.max - control.min) / control.step)
    values = [control.min + n * control.step for n in range(steps + 1)]
    return {value: f"{value:g}" for value in values}


def thinned(values: list, first) -> list:
    """At most 13 values, both ends and the first one among them.

    Example:
        >>> thinned(list(range(49)), 5)
        [0, 5, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48]
    """
    if len(values) <= MAX_FRAMES:
        return values
    last, position = len(values) - 1, values.index(first)
    kept = [round(n * last / (MAX_FRAMES - 1)) for n in range(MAX_FRAMES)]
    if position not in kept:
        nearest = min(range(1, MAX_FRAMES - 1), key=lambda n: abs(kept[n] - position))
        kept[nearest] = position
    return [values[n] for n in kept]


def frames(figures: list[dict], names: list[str]) -> list[dict]:
    """One frame a figure, with the parts of traces and layout that are not the same in all."""
    traces = list(zip(*(figure["data"] for figure in figures), strict=True))
    moving = [n for n, versions in enumerate(traces) if changing(versions)]
    parts = [changing(versions) for versions in traces]
    layout = changing([figure["layout"] for figure in figures])
    return [
        {
            "name": name,
            "traces": moving,
            "data": [
                {"type": figure["data"][n]["type"]} | pick(figure["data"][n], parts[n])
                for n in moving
            ],
            "layout": pick(figure["layout"], layout),
        }
        for name, figure in zip(names, figures, strict=True)
    ]


def changing(versions) -> list[str]:
    """Names of the entries that are not the same in all of these dicts.

    Example:
        >>> changing([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}])
        ['b']
    """
    names = dict.fromkeys(name for version in versions for name in version)
    return [n for n in names if any(v.get(n) != versions[0].get(n) for v in versions)]


def pick(entries: dict, names) -> dict:
    return {name: entries.get(name) for name in names}


def slider(description: str, names: list[str], active: int) -> dict:
    """A slider of plotly's, which shows the frame whose name it stands at."""
    return {
        "active": active,
        "currentvalue": {"prefix": f"{description}: "},
        "pad": {"t": 50},  # below the axis and its title
        "steps": [{"label": n, "method": "animate", "args": [[n], AT_ONCE]} for n in names],
    }


def fixed(explorer, control: str) -> str:
    """Where the other controls stand; nothing if there are none.

    A choice without a description of its own says by its label what it is.
    """
    others = []
    for name, other in explorer._controls.items():
        if name != control:
            first = explorer._defaults[name]
            others.append(f"{other.description} {choices(other).get(first, first)}".strip())
    return f"Other controls: {'; '.join(others)}." if others else ""
