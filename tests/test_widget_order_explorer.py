"""The order explorer: its numbers against the library's attention, its control at every value."""

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib import SignedWeightsWarning, parallel_attention, softmax_attention, taylor
from softattn_lib.widgets import order_explorer
from softattn_lib.widgets.order_explorer import MAX_ORDER, compute, draw, mount, read_out

TOKENS = ("a", " b", "<c>", "d", ".")
T, E = 5, 3
ORDERS = range(MAX_ORDER + 1)


@pytest.fixture
def row():
    """(scores, values) of one row; scores low enough for negative weights at odd orders."""
    generator = torch.Generator().manual_seed(3)
    scores = torch.tensor([2.3, -1.8, 0.4, -2.5, 1.1])
    return scores, torch.randn(T, E, generator=generator)


def attention(scores, values, order=None):
    """The same row through the library: a query of 1, keys that are the scores."""
    q, k, v = torch.ones(1, 1).double(), scores[:, None].double(), values.double()
    if order is None:
        return softmax_attention(q, k, v, scale=1.0)[0]
    return parallel_attention(q, k, v, kernel=taylor(order), scale=1.0)[0][0]


@pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")
@pytest.mark.parametrize("order", ORDERS)
def test_weights_and_distance_are_those_of_attention(row, order):
    result = compute(TOKENS, *row, order)
    eye = torch.eye(T)
    weights = attention(row[0], eye, order).numpy()
    np.testing.assert_allclose(result.weights[order], weights, rtol=0, atol=1e-12)
    np.testing.assert_allclose(result.softmax, attention(row[0], eye).numpy(), rtol=0, atol=1e-12)
    exact = attention(*row)
    expected = (attention(*row, order) - exact).norm() / exact.norm()
    assert result.distance[order] == pytest.approx(expected.item(), abs=1e-12)


def test_order_zero_is_the_average_and_the_highest_is_softmax(row):
    result = compute(TOKENS, *row)
    np.testing.assert_allclose(result.weights[0], 1 / T)
    np.testing.assert_allclose(result.weights[-1], result.softmax, atol=1e-3)
    assert result.distance[0] > 0.1 > 0.001 > result.distance[-1]


def test_odd_orders_have_negative_weights_and_even_ones_do_not(row):
    result = compute(TOKENS, *row)
    assert (result.weights[1] < 0).any() and (result.weights[::2] > 0).all()
    with pytest.warns(SignedWeightsWarning):
        attention(*row, order=1)


@pytest.mark.parametrize("order", [-1, MAX_ORDER + 1])
def test_other_orders_are_refused_by_name(row, order):
    with pytest.raises(ValueError, match=f"order must be 0 to 12, got {order}"):
        compute(TOKENS, *row, order)


@pytest.mark.parametrize("order", ORDERS)
def test_figure_shows_the_order(row, order):
    result = compute(TOKENS, *row, order)
    figure = draw(result)
    assert isinstance(figure, go.Figure) and len(figure.data) == 4
    bars, softmax, distance, marker = figure.data
    np.testing.assert_allclose(bars.y, result.weights[order], rtol=1e-5)
    np.testing.assert_allclose(softmax.y, result.softmax, rtol=1e-5)
    np.testing.assert_allclose(distance.y, result.distance, rtol=1e-5)
    assert marker.x == (order,) and marker.y[0] == distance.y[order]
    assert figure.layout.xaxis.ticktext == ("a", " b", "&lt;c&gt;", "d", ".")
    low, high = figure.layout.yaxis.range
    assert low < min(result.weights.min(), 0) and high > result.weights.max()


def test_drawing_in_place_gives_the_figure_of_the_order(row):
    figure = draw(compute(TOKENS, *row, 5))
    for order in (0, 12, 3):
        result = compute(TOKENS, *row, order)
        assert draw(result, figure) is figure
        assert figure == draw(result)


def test_the_axis_stays_readable_where_weights_explode(row):
    figure = draw(compute(TOKENS, 8 * row[0], row[1], 1))
    low, high = figure.layout.yaxis.range
    assert low >= -1.1 and high <= 1.3


def test_captions_and_read_outs(row):
    texts = [read_out(compute(TOKENS, *row, order)) for order in ORDERS]
    assert "<b>1</b>" in texts[0] and "<b>1 + s + s²/2</b>" in texts[2]
    assert "s<sup>12</sup>/12!" in texts[12]
    assert "2 of the 5 weights are negative" in texts[1]
    assert "0 of the 5 weights are negative" in texts[2]
    captions = [draw(compute(TOKENS, *row, n)).layout.title.subtitle.text for n in ORDERS]
    assert "Order 0, a plain average" in captions[0]
    assert len(set(captions)) == len(captions)
    assert "<br>" not in "".join(captions)  # else the plot would jump from order to order


@pytest.fixture
def widget(row):
    return mount(TOKENS, *row)


def test_moving_the_slider_moves_the_bars(row, widget):
    before = np.array(widget.figure.data[0].y)
    for order in (0, MAX_ORDER, 1):
        widget.order.value = order
        expected = compute(TOKENS, *row, order)
        np.testing.assert_allclose(widget.figure.data[0].y, expected.weights[order], rtol=1e-5)
        assert widget.figure.data[3].x == (order,)
        assert widget.read_out.value == read_out(expected)
    assert not np.allclose(before, widget.figure.data[0].y)
    assert (widget.order.min, widget.order.max) == (0, MAX_ORDER)


def test_an_order_it_does_not_have_shows_its_error(widget):
    before = widget.figure.to_json()
    widget.order.max = MAX_ORDER + 1
    with pytest.raises(ValueError, match="got 13"):
        widget.order.value = MAX_ORDER + 1
    assert "order must be 0 to 12, got 13" in widget.error_box.value
    assert widget.figure.to_json() == before


@pytest.mark.parametrize("size, answer", [(0.1, "order 2"), (1, "order 7"), (9, "beyond 12")])
def test_the_answer_names_the_first_close_order(row, size, answer):
    result = compute(TOKENS, size * row[0], row[1])
    close = [n for n in ORDERS if result.distance[n] < 0.01]
    assert answer == (f"order {close[0]}" if close else "beyond 12")
    widget = order_explorer.mount(TOKENS, size * row[0], row[1])
    assert answer in widget.children[-1].value
