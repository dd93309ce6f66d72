"""Frames of a widget: each shows what the widget shows with its control at that value."""

import json

import ipywidgets
import plotly.graph_objects as go
import pytest

from softattn_lib.widgets import recall_capacity, recurrence_stepper, state_growth
from softattn_lib.widgets.base import PLOTLY, Explorer
from softattn_lib.widgets.frames import MAX_FRAMES, SWITCH, with_slider


def as_shown(figure, frame):
    """Traces and layout of a figure after a frame, the slider apart."""
    shown = json.loads(figure.to_json())
    frame = json.loads(frame.to_json())
    for number, part in zip(frame["traces"], frame["data"], strict=True):
        shown["data"][number] |= part
    layout = shown["layout"] | frame["layout"]
    return shown["data"], {k: v for k, v in layout.items() if k not in ("sliders", "meta")}


@pytest.mark.parametrize("module", [state_growth, recall_capacity, recurrence_stepper])
def test_a_frame_is_the_figure_of_its_value(module):
    widget = module.mount()
    name, _ = widget.slide
    figure = with_slider(widget)
    assert len(figure.frames) > 3
    for frame, read_out in zip(figure.frames, figure.layout.meta["read_outs"], strict=True):
        values = widget._defaults | {name: int(frame.name)}
        result = widget._compute(**values)
        alone = json.loads(widget._draw(result).to_json())
        assert as_shown(figure, frame) == (alone["data"], alone["layout"])
        assert read_out == widget._read_out(result)


def explorer(**options):
    return Explorer(
        question="",
        controls={
            "x": ipywidgets.IntSlider(7, 0, 100, description="x"),
            "up": ipywidgets.Dropdown(options={"yes": 1, "no": -1}, description="up?"),
        },
        compute=lambda x, up: x * up,
        draw=lambda y, figure=None: (figure or go.Figure(go.Bar())).update_traces(y=[y]),
        read_out=str,
        conclusion="",
        answer="",
        **options,
    )


def test_the_first_control_is_the_slider_and_has_few_values():
    figure = with_slider(explorer())
    names = [frame.name for frame in figure.frames]
    assert len(names) == MAX_FRAMES and names[0] == "0" and names[-1] == "100"
    assert names[figure.layout.sliders[0].active] == "7"
    assert list(figure.data[0].y) == [7]
    assert figure.layout.meta["fixed"] == "Other controls: up? yes."


def test_a_widget_may_name_another_control():
    figure = with_slider(explorer(slide=("up", None)))
    assert [(frame.name, list(frame.data[0].y)) for frame in figure.frames] == [
        ("yes", [7]),
        ("no", [-7]),
    ]


def test_only_a_switch_makes_displayed_widgets_carry_frames(monkeypatch):
    monkeypatch.delenv(SWITCH, raising=False)
    assert "frames" not in explorer()._repr_mimebundle_()[PLOTLY]
    monkeypatch.setenv(SWITCH, "1")
    assert len(explorer()._repr_mimebundle_()[PLOTLY]["frames"]) == MAX_FRAMES
