"""What the tests of all widgets ask of a live figure."""

import numpy as np
from plotly.basewidget import BaseFigureWidget


def assert_shows(live, fresh):
    """The live figure shows what a figure drawn anew does, trace by trace."""
    for one, other in zip(live.data, fresh.data, strict=True):
        one, other = one.to_plotly_json(), other.to_plotly_json()
        one.pop("uid"), other.pop("uid", None)
        np.testing.assert_equal(one, other)
    assert live.layout == fresh.layout


def count_updates(monkeypatch) -> list:
    """A list that grows by one with each update that a live figure sends to the page."""
    updates, send = [], BaseFigureWidget._send_update_msg
    monkeypatch.setattr(
        BaseFigureWidget, "_send_update_msg", lambda *a, **k: updates.append(1) or send(*a, **k)
    )
    return updates
