"""The recall capacity widget: its numbers against the library; test_widgets.py moves it."""

import time
from itertools import product

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib import Polynomial, init_state
from softattn_lib.tasks.capacity import recall_accuracy
from softattn_lib.widgets import recall_capacity
from softattn_lib.widgets.recall_capacity import (
    ORDERS,
    PAIRS,
    WIDTHS,
    compute,
    draw,
    mount,
    read_out,
)

pytestmark = pytest.mark.slow  # figures are drawn by the hundred

STATES = list(product((1, 2, 6), WIDTHS, (1, 32, 1024)))


@pytest.mark.parametrize(("order", "d", "pairs"), [(1, 8, 32), (2, 16, 256), (3, 4, 64), (6, 4, 8)])
def test_accuracy_is_that_of_the_library_on_other_pairs(order, d, pairs):
    kernel, generator = Polynomial((0,) * order + (1,)), torch.Generator().manual_seed(9)
    expected = recall_accuracy(kernel, d, pairs, sets=4096 // pairs, generator=generator)
    assert compute(order, d, pairs).chosen == pytest.approx(expected, abs=0.06)


def test_softmax_is_that_of_the_library_on_other_pairs():
    generator = torch.Generator().manual_seed(9)
    result = compute(d=8)
    for pairs in (64, 512):
        expected = recall_accuracy("exp", 8, pairs, length=2.0, sets=8, generator=generator)
        assert result.softmax[PAIRS.index(pairs)] == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize("d", WIDTHS)
def test_curves_begin_at_one_and_fall(d):
    result = compute(d=d)
    assert result.accuracy.shape == (len(ORDERS), len(PAIRS))
    curves = np.vstack([result.accuracy, result.softmax])
    assert (curves[:, 0] == 1).all() and (curves > 0).all()
    assert (np.diff(curves) < 0.03).all()  # up to noise
    # two orders more hold at least as many
    assert (result.accuracy[2:] - result.accuracy[:-2] > -0.04).all()


@pytest.mark.parametrize(("order", "d", "pairs"), STATES)
def test_sizes_are_those_of_state_and_cache(order, d, pairs):
    result = compute(order, d, pairs)
    if result.state_floats < 1e7:
        state = init_state(Polynomial((0,) * order + (1,)), d=d, e=32)
        assert result.state_floats == state.sums.numel()
    keys, values = torch.empty(pairs, d), torch.empty(pairs, 32)
    assert result.cache_floats == keys.numel() + values.numel()


@pytest.mark.parametrize("order", ORDERS)
def test_weights_of_other_keys_are_the_power_of_their_cosine(order):
    result = compute(order, 8, 32)
    assert result.weights.sum() == pytest.approx(1, abs=1e-3)
    centers = np.linspace(-0.975, 0.975, 40)
    exact = np.prod([(2 * j + 1) / (8 + 2 * j) for j in range(order)])  # E[cos^(2n)]
    assert (result.weights * centers**2).sum() == pytest.approx(exact, rel=0.15, abs=1e-3)
    assert (result.weights[:19].sum() > 0) == (order % 2 == 1)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"order": 0}, r"order must be one of \(1, 2, 3, 4, 5, 6\), got 0"),
        ({"order": 7}, "got 7"),
        ({"d": 5}, r"d must be one of \(4, 8, 16, 32\), got 5"),
        ({"pairs": 3}, "pairs must be one of .*, got 3"),
    ],
)
def test_other_values_are_refused_by_name(values, named):
    with pytest.raises(ValueError, match=named):
        compute(**values)


def test_drawing_in_place_gives_the_figure_anew_and_no_two_states_say_the_same():
    in_place, seen = None, set()
    for state in STATES:
        result = compute(*state)
        figure = draw(result)
        in_place = draw(result, in_place)
        assert isinstance(figure, go.Figure) and in_place == figure
        numbers = np.concatenate([np.asarray(trace.y, dtype=float) for trace in figure.data])
        assert np.isfinite(numbers).all()
        seen.add((figure.layout.title.subtitle.text, read_out(result)))
        # On one line, or the plot would jump.
        assert "<br>" not in figure.layout.title.subtitle.text
    assert len(seen) == len(STATES)


def test_figure_marks_the_chosen_order_and_point():
    result = compute(3, 16, 512)
    *orders, softmax, point, weights = draw(result).data
    assert [trace.name for trace in orders] == [f"order {n}" for n in ORDERS]
    assert [n for n, trace in zip(ORDERS, orders, strict=True) if trace.line.width > 2] == [3]
    assert len({(t.line.color, t.line.dash) for t in [*orders, softmax]}) == 7
    np.testing.assert_allclose(orders[2].y, result.accuracy[2], rtol=1e-5)
    np.testing.assert_allclose(softmax.y, result.softmax, rtol=1e-5)
    assert point.x == (512,) and point.y[0] == orders[2].y[PAIRS.index(512)]
    np.testing.assert_allclose(weights.y, result.weights, rtol=1e-5)


def test_read_out_says_the_numbers():
    text = read_out(compute(2, 8, 32))
    assert "36 rows of 33 sums, <b>1,188 floats</b>" in text
    assert "KV cache of 32 pairs has <b>1,280 floats</b>" in text
    assert f"reads back <b>{compute(2, 8, 32).chosen:.1%}</b>" in text
    assert "KV cache of 1 pair has" in read_out(compute(2, 8, 1))


@pytest.fixture
def widget():
    return mount()


def test_every_control_at_both_ends_shows_what_it_says(widget):
    for name, ends in {"order": (1, 6), "d": (4, 32), "pairs": (1, 1024)}.items():
        for value in ends:
            before = widget.figure.to_json(), widget.read_out.value
            getattr(widget, name).value = value
            values = {n: getattr(widget, n).value for n in ("order", "d", "pairs")}
            fresh = draw(compute(**values))
            for live, new in zip(widget.figure.data, fresh.data, strict=True):
                np.testing.assert_array_equal(live.y, new.y)
                assert live.line.width == new.line.width if live.type == "scatter" else True
            assert widget.figure.layout == fresh.layout
            assert widget.read_out.value == read_out(compute(**values)) != before[1]
            assert widget.figure.to_json() != before[0]
    assert (widget.order.min, widget.order.max) == (1, 6)
    assert widget.d.options == WIDTHS and widget.pairs.options == PAIRS
    assert widget.error is None


def test_a_width_takes_less_than_half_a_second_and_then_nothing(widget):
    """The processor's time, which other programs on the machine do not change."""
    recall_capacity._measured.cache_clear()
    seconds = []
    for name, value in (("d", 16), ("order", 4), ("pairs", 64), ("order", 1)):
        start = time.process_time()
        getattr(widget, name).value = value
        seconds.append(time.process_time() - start)
    print("recall_capacity:", [f"{1000 * s:.0f} ms" for s in seconds])
    assert seconds[0] < 0.5 and max(seconds[1:]) < 0.1


def test_an_order_it_does_not_have_shows_its_error(widget):
    before = widget.figure.to_json()
    widget.order.max = 7
    with pytest.raises(ValueError, match="got 7"):
        widget.order.value = 7
    assert "order must be one of" in widget.error_box.value
    assert widget.figure.to_json() == before


def pairs_at(accuracy, order, d):
    """Where the curve of an order falls to this accuracy; inf if it does not."""
    curve = compute(order, d).accuracy[order - 1]
    return np.exp2(np.interp(-accuracy, -curve, np.log2(PAIRS), right=np.inf))


@pytest.mark.parametrize(
    ("order", "growth", "d"), [(1, 2, 4), (1, 2, 8), (1, 2, 16), (2, 4, 4), (2, 4, 8)]
)
def test_the_answer_is_true_twice_the_width_holds_more(order, growth, d):
    ratio = pairs_at(0.7, order, 2 * d) / pairs_at(0.7, order, d)
    assert ratio == pytest.approx(growth, rel=0.3)


def test_the_answer_is_true_a_full_state_is_about_as_large_as_a_cache():
    held = {(n, d): pairs_at(0.9, n, d) for n in ORDERS for d in WIDTHS}
    filled = {key: pairs for key, pairs in held.items() if pairs < np.inf}
    assert len(filled) > 12 and (6, 32) not in filled
    for (order, d), pairs in filled.items():
        assert 0.2 < compute(order, d).state_floats / (pairs * (d + 32)) < 3, (order, d)


@pytest.mark.parametrize("order", [3, 4, 5, 6])
def test_the_answer_is_true_two_orders_more_make_other_weights_smaller(order):
    def near_zero(n):
        return compute(n, 8).weights[18:22].sum()  # within 0.1 of 0

    assert near_zero(order) > near_zero(order - 2)


def test_what_is_kept_for_the_next_call_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        compute().accuracy[:] = 0
