"""The loss curves: means, bands and differences by hand, diverged runs, the committed table."""

import math
import statistics
from itertools import cycle
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest

from softattn_lib.tasks.records import read_rows
from softattn_lib.widgets.loss_curves import (
    GROUPS,
    MAX_FROM_STEP,
    MAX_LINES,
    REFERENCE,
    SHOWN,
    compute,
    draw,
    mount,
    read_out,
)
from tests.live_figures import assert_shows

pytestmark = pytest.mark.slow  # figures are drawn by the hundred

TABLE = Path(__file__).parent.parent / "experiments" / "curves.csv"
STEPS = range(10, MAX_FROM_STEP + 21, 10)
SEEDS = ("0", "1", "2")
STRESS = "under stress"


def loss(position, seed, step):
    """Made up: later variants and seeds are worse, all fall."""
    return 1.5 + 0.1 * position + 0.01 * int(seed) ** 2 + 20 / step


def row(sweep, name, seed, step, train_loss, norm=1.0):
    return {
        "sweep": sweep,
        "variant": name,
        "seed": seed,
        "step": str(step),
        "train_loss": f"{train_loss:.4f}",
        "largest_loss": "0",
        "gradient_norm": "0",
        "largest_gradient_norm": f"{norm:.4f}",
    }


@pytest.fixture
def rows():
    """Every variant of every group, three seeds; seed 1 of gate diverges under stress."""
    made, seen = [], set()
    for sweep, names in GROUPS.values():
        for position, name in enumerate(names):
            if (sweep, name) in seen:
                continue
            seen.add((sweep, name))
            for seed in SEEDS:
                for step in STEPS:
                    value, norm = loss(position, seed, step), step / 10 + int(seed)
                    if (sweep, name, seed) == ("stability", "gate", "1") and step > 100:
                        value = norm = math.nan
                    made.append(row(sweep, name, seed, step, value, norm))
                    if math.isnan(value):
                        break
    return made


def test_mean_and_band_are_those_of_the_seeds(rows):
    for show, expected in {
        "loss": lambda seed, n: loss(1, seed, n),
        "ln loss": lambda seed, n: math.log(loss(1, seed, n)),
        "difference": lambda seed, n: 0.1,
        "norm": lambda seed, n: n / 10 + int(seed),
    }.items():
        result = compute(rows, show=show, from_step=100)
        assert result.steps.tolist() == list(STEPS)[10:]
        curve = result.curves["l2"]
        by_hand = np.array([[expected(seed, n) for n in result.steps] for seed in SEEDS])
        for found, wanted in (
            (curve.shown, by_hand),
            (curve.mean, by_hand.mean(0)),
            (curve.lowest, by_hand.min(0)),
            (curve.highest, by_hand.max(0)),
        ):
            np.testing.assert_allclose(found, wanted, atol=2e-4)
    assert curve.largest_norm == STEPS[-1] / 10 + 2


def test_a_difference_is_taken_seed_by_seed(rows):
    kept = [r for r in rows if r["variant"] != REFERENCE or r["seed"] == "2"]
    result = compute(kept, show="difference")
    np.testing.assert_allclose(result.curves["l2"].shown, 0.1 * np.ones((1, len(STEPS))), atol=2e-4)
    without = [r for r in rows if (r["variant"] == REFERENCE) == (r["seed"] == "2")]
    with pytest.raises(ValueError, match="no seed that 'l2' and 'softmax' both ran with"):
        compute(without, show="difference")


def test_last_losses_are_of_the_last_fifty_steps_of_each_seed(rows):
    values = compute(rows, from_step=200).curves["rms"].last_losses.values
    for seed, value in zip(SEEDS, values, strict=True):
        last = statistics.mean(loss(2, seed, n) for n in list(STEPS)[-5:])
        assert value == pytest.approx(last, abs=2e-4)


def test_a_run_that_diverged_is_named_and_ends_the_mean(rows):
    result = compute(rows, STRESS)
    gate = result.curves["gate"]
    assert gate.diverged == {"1": 100} and math.isnan(gate.last_losses.mean)
    assert np.isnan(gate.mean[result.steps > 100]).all()
    assert np.isfinite(gate.mean[result.steps <= 100]).all()
    assert np.isfinite(gate.lowest).all() and np.isfinite(gate.highest).all()  # two seeds go on
    words = read_out(result)
    assert "<td>gate</td><td>1 of 3 diverged</td><td>seed 1 after step 100</td>" in words
    assert words.count("diverged") == 1
    band, line = draw(result).data[4:6]
    assert line.name == "gate" and np.isnan(line.y[-1]) and np.isfinite(band.y).all()


def test_a_shorter_run_has_not_diverged(rows):
    kept = [r for r in rows if r["variant"] != "l2" or int(r["step"]) <= 200]
    l2 = compute(kept).curves["l2"]
    assert l2.diverged == {} and np.isnan(l2.mean[-1])


def test_all_seeds_diverged_before_what_is_shown(rows):
    kept = [r for r in rows if r["variant"] != "gate" or r["seed"] == "1"]
    result = compute(kept, STRESS, from_step=MAX_FROM_STEP)
    assert "<td>1 of 1 diverged</td><td>seed 1 after step 100</td><td>none</td>" in read_out(result)
    assert draw(result).data[4].y.tolist() == []


def test_the_read_out_is_a_table_of_the_numbers(rows):
    result = compute(rows)
    words = read_out(result)
    assert words.count("<tr>") == 1 + len(GROUPS[result.group][1])
    last = result.curves["l2"].last_losses
    cells = f"<td>l2</td><td>{last.mean:.3f}</td><td>{last.lowest:.3f} to {last.highest:.3f}</td>"
    assert cells in words


def test_variants_without_runs_are_named(rows):
    result = compute([r for r in rows if r["variant"] != "rms"])
    assert result.missing == ("rms",) and "<td>rms</td><td colspan=3>no runs</td>" in read_out(
        result
    )
    assert [line.name for line in draw(result).data[1::2]][:3] == ["softmax", "l2", "layer"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: {"rows": []}, "rows is empty; .*python -m tools.curves"),
        (lambda rows: {"rows": [{"variant": "softmax"}]}, "lack the columns sweep, seed, step"),
        (lambda rows: {"group": "nice ones"}, "group must be one of .*; got 'nice ones'"),
        (lambda rows: {"show": "accuracy"}, "show must be one of loss, .*; got 'accuracy'"),
        (lambda rows: {"from_step": 320}, "from_step is 320, and the runs end at step 320"),
        (
            lambda rows: {"rows": [r for r in rows if r["variant"] != REFERENCE]},
            "no run of 'softmax' in the sweep 'small'",
        ),
    ],
)
def test_what_cannot_be_shown_is_named(rows, change, message):
    with pytest.raises(ValueError, match=message):
        compute(**{"rows": rows, **change(rows)})
    if "rows" in change(rows):
        with pytest.raises(ValueError, match=message):
            mount(change(rows)["rows"])


def test_drawing_in_place_gives_the_figure_of_the_state(rows):
    figure = draw(compute(rows))
    starts = dict(zip(GROUPS, cycle((MAX_FROM_STEP, 0)), strict=False))
    for state in [(group, show, starts[group]) for group in GROUPS for show in SHOWN.values()]:
        result = compute(rows, *state)
        assert draw(result, figure) is figure
        fresh = draw(result)
        assert isinstance(fresh, go.Figure) and figure == fresh
        names = GROUPS[state[0]][1]
        shown = [trace for trace in fresh.data if trace.visible]
        assert [trace.name for trace in shown[1::2]] == list(names)
        assert fresh.layout.yaxis.type == ("log" if state[1] == "norm" else "linear")


def test_no_group_has_more_lines_than_can_be_told_apart():
    assert MAX_LINES <= 7
    for _, names in GROUPS.values():
        assert names[0] == REFERENCE and len(set(names)) == len(names)


def test_lines_differ_in_colour_and_dash(rows):
    looks = [(line.line.color, line.line.dash) for line in draw(compute(rows)).data[1::2]]
    assert len(set(looks)) == MAX_LINES


@pytest.fixture
def widget(rows):
    return mount(rows)


def test_every_control_to_both_ends_and_every_option(rows, widget):
    assert list(widget.group.options) == list(GROUPS)
    assert dict(widget.show.options) == SHOWN
    assert (widget.from_step.min, widget.from_step.max) == (0, MAX_FROM_STEP)
    moves = [(widget.group, group) for group in [*GROUPS][1:]]
    moves += [(widget.show, show) for show in [*SHOWN.values()][1:]]
    moves += [(widget.from_step, MAX_FROM_STEP), (widget.from_step, 0)]
    for control, value in moves:
        before = widget.figure.to_json()
        control.value = value
        assert widget.figure.to_json() != before
        result = compute(rows, widget.group.value, widget.show.value, widget.from_step.value)
        assert widget.read_out.value == read_out(result)
        assert_shows(widget.figure, draw(result))
    assert widget.error is None and widget.error_box.value == ""


def test_what_it_cannot_show_keeps_the_figure(widget):
    before = widget.figure.to_json()
    widget.from_step.max = 1000
    with pytest.raises(ValueError, match="from_step is 1000"):
        widget.from_step.value = 1000
    assert "from_step is 1000" in widget.error_box.value
    assert widget.figure.to_json() == before


def test_the_answer_names_the_variants_that_overlap(rows):
    close = [dict(r, train_loss="1.6") if r["variant"] == "l2" else r for r in rows]
    assert "the last losses of l2 overlap" in mount(close).children[-1].value
    assert "the last losses of no other variant overlap" in mount(rows).children[-1].value


@pytest.mark.skipif(not TABLE.exists(), reason="the table is not there")
class TestCommittedTable:
    rows = read_rows(TABLE)

    def test_every_group_has_all_its_runs(self):
        for group in GROUPS:
            result = compute(self.rows, group)
            assert result.missing == ()
            assert {len(curve.shown) for curve in result.curves.values()} == {3}
            assert len(read_out(result)) > 100

    def test_every_variant_is_in_a_group(self):
        shown = {(sweep, name) for sweep, names in GROUPS.values() for name in names}
        assert {(r["sweep"], r["variant"]) for r in self.rows} == shown
