"""The crossover widget: its numbers against the cost model, its words, its controls."""

import json
from itertools import product
from pathlib import Path

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib import crossover, explain, init_state, taylor
from softattn_lib.tasks.records import read_rows
from softattn_lib.widgets.base import PLOTLY, Explorer
from softattn_lib.widgets.crossover import (
    FORMS,
    HEADS,
    ORDERS,
    SECONDS,
    TOKENS,
    WIDTHS,
    compute,
    draw,
    mount,
    read_out,
)
from tests.live_figures import assert_shows

ROWS = read_rows(Path(__file__).parent.parent / "benchmarks" / "crossovers.csv")
STATES = list(product(WIDTHS, ORDERS, (64, 4096, 2**20)))
CONTROLS = ("d", "order", "tokens")


@pytest.mark.parametrize(("d", "order", "tokens"), [(8, 1, 64), (16, 2, 4096), (64, 3, 2**20)])
def test_times_and_sizes_are_those_that_explain_gives(d, order, tokens):
    race = compute(ROWS, d, order, tokens)
    q = torch.empty(1, HEADS, tokens, d, device="meta")
    plan = explain(q, q, q, kernel=taylor(order), return_state=False)
    expected = {"softmax": plan.softmax.seconds, **{n: c.seconds for n, c in plan.costs.items()}}
    assert race.at_tokens == expected
    assert list(race.at_tokens.values()) == sorted(expected.values())
    assert race.crossover == plan.crossover == crossover(d, order)
    assert race.state_bytes == plan.costs["chunked"].state_bytes
    assert race.cache_bytes == 4 * (q.numel() + q.numel())


def test_the_state_is_that_of_the_library():
    state = init_state(taylor(3), d=16, e=16, batch_shape=(HEADS,))
    assert compute(ROWS, 16, 3).state_bytes == state.sums.numel() * state.sums.element_size()


@pytest.mark.parametrize(("d", "order"), list(product(WIDTHS, ORDERS)))
def test_the_crossover_lies_between_the_two_winners(d, order):
    race = compute(ROWS, d, order)
    chunked_wins = race.seconds["chunked"] < race.seconds["softmax"]
    assert (chunked_wins == (np.array(TOKENS) >= race.crossover)).all()
    assert race.predicted[ORDERS.index(order)] == race.crossover
    assert (np.diff(race.predicted) > 0).all()
    position = np.searchsorted(TOKENS, race.crossover)
    assert np.searchsorted(race.seconds["softmax"], race.crossover_seconds) == position


def test_measured_crossovers_are_those_of_the_table():
    found = 0
    for row in ROWS:
        measured = compute(ROWS, int(row["d"]), 1).measured[int(row["order"]) - 1]
        assert measured == float(row["tokens"]) if row["tokens"] else np.isnan(measured)
        found += bool(row["tokens"])
    assert len(ROWS) == 16 and 8 < found < 16
    assert np.isnan(compute(ROWS, d=128).measured).all()
    assert np.isnan(compute([], d=16).measured).all()


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"d": 5}, r"d must be one of \(4, 8, 16, 32, 64, 128\), got 5"),
        ({"order": 0}, r"order must be one of \(1, 2, 3, 4\), got 0"),
        ({"tokens": 100}, "tokens must be one of .*, got 100"),
    ],
)
def test_other_values_are_refused_by_name(values, named):
    with pytest.raises(ValueError, match=named):
        compute(ROWS, **values)


@pytest.mark.slow
def test_drawing_in_place_gives_the_figure_anew_and_no_two_states_say_the_same():
    in_place, seen = None, set()
    for state in STATES:
        race = compute(ROWS, *state)
        figure = draw(race)
        in_place = draw(race, in_place)
        assert isinstance(figure, go.Figure) and in_place == figure
        caption, words = figure.layout.title.subtitle.text, read_out(race)
        assert "<br>" not in caption  # on one line, or the plot would jump
        assert "nan" not in caption + words and "inf" not in caption + words
        seen.add((caption, words))
        for seconds in race.seconds.values():  # the axes hold all of it
            assert (SECONDS[0] < seconds).all() and (seconds < SECONDS[1]).all()
    assert len(seen) == len(STATES)


def test_figure_shows_forms_crossover_and_tokens():
    race = compute(ROWS, 16, 2, 4096)
    *forms, tokens, point, predicted, measured, chosen = draw(race).data
    assert [trace.name for trace in forms] == list(FORMS)
    assert len({(t.line.color, t.line.dash) for t in forms}) == 4
    for trace in forms:
        np.testing.assert_allclose(trace.y, race.seconds[trace.name], rtol=1e-5)
    assert tokens.x == (4096, 4096) and tokens.text[1] == "T = 4,096"
    assert point.x == (race.crossover,)
    assert chosen.x == (2,) and chosen.y == (race.crossover,)
    np.testing.assert_allclose(predicted.y, race.predicted)
    np.testing.assert_array_equal(measured.y, race.measured)
    assert draw(compute(ROWS, 64, 2)).data[7].y[2:] == (None, None)


def test_the_name_of_t_stays_on_the_plot():
    positions = [draw(compute(ROWS, tokens=t)).data[4].textposition for t in TOKENS]
    assert positions[0] == "bottom right" and positions[-1] == "bottom left"
    assert positions == sorted(positions, reverse=True)


def test_read_out_says_who_wins_and_what_is_kept():
    race = compute(ROWS, 16, 2, 4096)
    ratio = race.at_tokens["softmax"] / race.at_tokens["chunked"]
    words = read_out(race)
    assert "the <b>chunked form</b> wins: softmax attention takes" in words
    assert f"<b>{ratio:.1f} times</b>" in words
    assert "a state of <b>83.2 kB</b>, or a KV cache of <b>4.19 MB</b>" in words
    assert "the cache is 50 times as large" in words
    words = read_out(compute(ROWS, 64, 4, 4096))
    assert "<b>softmax attention</b> wins: the best form of the polynomial, the parallel" in words
    assert "a state of <b>1.69 GB</b>" in words and "the state is 100 times as large" in words
    assert "none measured" in words


@pytest.fixture
def widget():
    return mount(ROWS)


def moves(widget):
    """Every control to every value."""
    values = {"d": WIDTHS, "order": ORDERS, "tokens": TOKENS[::7]}
    return [(getattr(widget, name), value) for name in CONTROLS for value in values[name]]


def test_every_control_shows_what_it_says(widget):
    seen = set()
    for control, value in moves(widget):
        control.value = value
        race = compute(ROWS, *(getattr(widget, name).value for name in CONTROLS))
        assert_shows(widget.figure, draw(race))
        assert widget.read_out.value == read_out(race)
        json.dumps(widget.figure.get_state(), allow_nan=False, default=lambda buffer: "bytes")
        seen.add(widget.figure.to_json())
    assert len(seen) == len(moves(widget)) - 1  # order 2 at d = 128 comes twice
    assert widget.error is None


def test_form(widget):
    assert isinstance(widget, Explorer)
    assert (widget.order.min, widget.order.max) == (ORDERS[0], ORDERS[-1])
    assert widget.d.options == WIDTHS and widget.tokens.options == TOKENS
    assert "?" in widget.children[0].value
    below = widget.children[-1].value
    assert "Finish the sentence" in below and "..." in below.split("<details>")[0]
    assert all(isinstance(getattr(widget, name), ipywidgets.Widget) for name in CONTROLS)
    assert len(json.dumps(widget._repr_mimebundle_()[PLOTLY])) < 40_000


def test_an_order_it_does_not_have_shows_its_error(widget):
    before = widget.figure.to_json()
    widget.order.max = 5
    with pytest.raises(ValueError, match="got 5"):
        widget.order.value = 5
    assert "order must be one of" in widget.error_box.value
    assert widget.figure.to_json() == before


def test_the_answer_is_true_of_growth():
    seconds = compute(ROWS, 16, 2).seconds
    assert seconds["softmax"][-1] / seconds["softmax"][-2] == pytest.approx(4, rel=0.02)
    assert seconds["chunked"][-1] / seconds["chunked"][-2] == pytest.approx(2, rel=0.02)


def test_the_answer_is_true_of_crossovers_at_64():
    _, two, _, four = compute(ROWS, 64).predicted
    assert 3000 < two < 15_000 and four > 1e6


def test_the_answer_is_true_of_the_forms_that_never_win():
    winners = {
        next(iter(compute(ROWS, *state).at_tokens)) for state in product(WIDTHS, ORDERS, TOKENS)
    }
    assert winners == {"softmax", "chunked"}
