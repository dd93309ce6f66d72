"""Training to watch: levels by hand, curves against the run's history, errors, divergence."""

import json
import math

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib.tasks.training import History, train
from softattn_lib.variants import VariantUnavailableError, variant
from softattn_lib.widgets import live_training
from softattn_lib.widgets.base import PLOTLY
from softattn_lib.widgets.live_training import CHOICES, draw, levels, mount, points, read_out

pytestmark = pytest.mark.slow  # figures are drawn by the hundred

TINY = {
    "hidden_size": 16, "mlp_size": 16, "heads": 2, "layers": 1, "steps": 25, "length": 8,
    "batch_size": 4, "held_out_sequences": 2,
}  # fmt: skip


def test_levels_are_entropies():
    ids = torch.tensor([0, 0, 1, 2, 0, 1])
    known = levels(ids, size=5)
    assert known["nothing known"] == pytest.approx(math.log(5), abs=1e-3)
    pairs = [(0, 0), (0, 1), (1, 2), (2, 0), (0, 1)]
    after = [b for _, b in pairs]
    frequencies = -sum(math.log(after.count(b) / 5) for b in after) / 5
    assert known["frequencies known"] == pytest.approx(frequencies, abs=1e-3)
    first = [a for a, _ in pairs]
    one = -sum(math.log(pairs.count(p) / first.count(p[0])) for p in pairs) / 5
    assert known["one token seen"] == pytest.approx(one, abs=1e-3)


def test_points_are_means_of_ten_steps():
    losses = [float(n) for n in range(23)]
    assert points(losses) == ([10, 20, 23], [4.5, 14.5, 21.0])
    assert points([]) == ([], [])


def trained(figure):
    """The lines of variants, of the figure or of its static twin."""
    return [line for line in figure.data if line.mode == "lines+markers" and line.visible]


def test_the_first_figure_holds_the_levels_and_no_curve():
    figure = draw(40, {"a": 4.0, "b": 2.0}, 3)
    assert [(line.name, line.x, line.y) for line in figure.data[:2]] == [
        ("a", (0, 40), (4.0, 4.0)),
        ("b", (0, 40), (2.0, 2.0)),
    ]
    assert len(figure.data) == 5 and trained(figure) == []
    assert figure.layout.xaxis.range == (0, 40) and figure.layout.yaxis.range[1] > 4


def test_the_read_out_has_loss_and_speed():
    history = History([3.0, 2.5, 2.0, 1.25], [1.0] * 4, seconds=2.0)
    words = read_out(history, steps=8, tokens_per_step=1000)
    assert words == "Step 4 of 8: loss <b>1.25</b> nats, 2,000 tokens a second."


def test_every_choice_can_be_trained():
    assert not any(variant(name).unavailable for name in CHOICES)


@pytest.fixture
def widget():
    return mount("l2", seed=3, **TINY)


def test_the_curve_is_that_of_the_run(widget, monkeypatch):
    seen = []

    def watch(history, *args):
        (line,) = trained(widget.figure)
        seen.append((history.step, line.x, widget.start_button.disabled))
        return read_out(history, *args)

    monkeypatch.setattr(live_training, "read_out", watch)
    result = widget.train()
    same = train("l2", "mini", seed=3, **TINY)
    assert result.history.losses == same.history.losses
    assert widget.results == {"l2": result}
    # It grew during the run, while the button was off.
    assert seen == [(10, (10,), True), (20, (10, 20), True), (25, (10, 20, 25), True)]
    assert not widget.start_button.disabled
    (line,) = trained(widget.figure)
    assert line.name == "l2"
    means = [np.mean(same.history.losses[n : n + 10]) for n in (0, 10, 20)]
    np.testing.assert_allclose(line.y, means, rtol=1e-3)
    assert f"loss <b>{same.history.losses[-1]:.2f}</b> nats" in widget.read_out.value
    assert f"held out: <b>{same.held_out_loss:.2f}</b> nats" in widget.read_out.value


def test_the_button_trains_what_is_chosen_and_a_second_run_takes_its_own_line(widget):
    for name in ("taylor_2", "softmax", "taylor_2"):
        widget.variant.value = name
        widget.start_button.click()
        assert widget.results[name].variant == name
    lines = trained(widget.figure)
    assert [line.name for line in lines] == ["taylor_2", "softmax"]
    assert lines[0].x == lines[1].x == (10, 20, 25)
    assert lines[0].line.color != lines[1].line.color
    assert list(widget.results) == ["taylor_2", "softmax"]


@pytest.mark.parametrize("name", ["l2", CHOICES[0], CHOICES[-1], "taylor_6"])
def test_any_variant_can_be_the_first_choice(name):
    widget = mount(name, **TINY)
    assert widget.variant.value == name
    assert set(widget.variant.options) == {name, *CHOICES}
    assert len(widget.variant.options) == len(set(widget.variant.options))


def test_a_run_that_diverges_says_so():
    widget = mount("no_denominator", **{**TINY, "learning_rate": 1e30, "warmup_steps": 0})
    result = widget.train()
    assert math.isnan(result.held_out_loss)
    assert (
        widget.read_out.value == "<b>no_denominator</b>. It diverged within ten steps after step 0."
    )


def test_a_run_that_diverges_leaves_nothing_of_the_ones_before():
    widget = mount("l2", **TINY)
    widget.train()
    widget.variant.value = "softmax"
    widget.train()
    widget._changes |= {"learning_rate": 1e30, "warmup_steps": 0}
    widget.variant.value = "l2"
    widget.train()
    assert "softmax" not in widget.read_out.value and "<b>l2</b>" in widget.read_out.value
    assert "diverged within ten steps after step" in widget.read_out.value
    line = next(line for line in widget.figure.data if line.name == "l2")
    assert len(line.x or ()) < 3


def test_what_cannot_be_trained_is_shown_and_raised(widget):
    widget.variant.options = [*widget.variant.options, "linear_mamba"]
    widget.variant.value = "linear_mamba"
    with pytest.raises(VariantUnavailableError):
        widget.train()
    assert "VariantUnavailableError" in widget.error_box.value
    assert not widget.start_button.disabled and widget.results == {}
    assert trained(widget.figure) == []
    widget.variant.value = "l2"
    widget.train()
    assert widget.error_box.value == ""


def test_what_does_not_fit_is_refused_at_once():
    with pytest.raises(KeyError, match="sotfmax"):
        mount("sotfmax")
    with pytest.raises(KeyError, match="preset must be one of"):
        mount("softmax", "huge")
    with pytest.raises(ValueError, match="stepz"):
        mount("softmax", stepz=3)


def test_static_twin_is_the_figure_as_it_stands(widget):
    before = widget._repr_mimebundle_()[PLOTLY]
    curves = len(widget.variant.options)
    assert before == json.loads(draw(25, widget.levels, curves).to_json())
    widget.train()
    after = go.Figure(widget._repr_mimebundle_()[PLOTLY])
    assert [line.name for line in trained(after)] == ["l2"]


def test_no_line_is_added_to_the_live_figure(widget):
    """It would not be seen on the page, which also gives each line without a name its own."""
    before = len(widget.figure.data)
    for number, line in enumerate(widget.figure.data[len(widget.levels) :]):
        line.name = f"trace {number}"
    for name in widget.variant.options:
        widget._follow(name, History([3.0], [1.0]))
    assert len(widget.figure.data) == before
    assert [line.name for line in trained(widget.figure)] == list(widget.variant.options)


def test_the_text_of_the_package():
    known = mount(**TINY).levels
    assert known == {"nothing known": 4.143, "frequencies known": 3.026, "one token seen": 2.267}
