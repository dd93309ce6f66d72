"""The widget of fitted polynomials: its numbers against the library, its words, its controls."""

import json

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib import num_features, taylor
from softattn_lib.calibration import FAMILIES, Calibration, LayerCalibration, fit_head
from softattn_lib.families import ChebyshevPolynomial
from softattn_lib.fitting import observe
from softattn_lib.llama import CapturedAttention, LayerAttention
from softattn_lib.scores import misplaced_weight, series_weights
from softattn_lib.widgets.base import PLOTLY, Explorer
from softattn_lib.widgets.fitted_polynomial import (
    BINS,
    ORDERS,
    SMALLEST,
    compute,
    draw,
    mount,
    read_out,
)
from tests.live_figures import assert_shows

LAYERS, QUERY_HEADS, KEY_HEADS, T, D = (2, 7), 4, 2, 23, 5
LIVE = [family for family in FAMILIES if family != "sum_of_squares"]
CONTROLS = ("layer", "head", "family", "order")


def random_layer(index, generator):
    """Scores as in a trained head: some queries are far more decided than others."""
    q, k, v = (
        torch.randn(n, T, D, generator=generator) for n in (QUERY_HEADS, KEY_HEADS, KEY_HEADS)
    )
    size = torch.linspace(0.3, 4, T).unsqueeze(-1)
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    return LayerAttention(index, size * q, k + 1, v, scale=D**-0.5, visible=visible)


def random_text():
    generator = torch.Generator().manual_seed(0)
    tokens = tuple(["<s>", " ", "a&b"] + [f" w{n}" for n in range(T - 3)])
    return CapturedAttention(tokens, {n: random_layer(n, generator) for n in LAYERS})


CAPTURED = random_text()


def fit_of(order, shift=0.0, stretch=0.0):
    """Squares of exp's series for the scores of moved keys, in the form that calibrate gives."""
    half = taylor(order // 2)

    def polynomial(layer, head):
        attention = CAPTURED.layers[layer if layer in LAYERS else LAYERS[0]]
        key = attention.key[head // 2] - shift
        scores = (attention.query[head] @ key.mT * attention.scale)[attention.visible].double()
        ends = scores.min().item() - stretch - 1e-6, scores.max().item() + stretch + 1e-6
        nodes = np.polynomial.chebyshev.chebinterpolate(
            lambda t: half(((ends[0] + ends[1]) / 2 + (ends[1] - ends[0]) / 2 * t) / 2), order // 2
        )
        return ChebyshevPolynomial(*ends, (tuple(nodes),), is_squared=True)

    layers = [
        LayerCalibration(
            tuple(polynomial(layer, head) for head in range(QUERY_HEADS)),
            torch.full((KEY_HEADS, D), shift),
            torch.ones(QUERY_HEADS),
        )
        for layer in range(max(LAYERS) + 1)
    ]
    return Calibration("sum_of_squares", order, "output", "a model", {}, tuple(layers))


FITS = [fit_of(4, shift=0.5), fit_of(8, shift=0.5)]


def scores_of(layer, head):
    return CAPTURED.layers[layer].scores()[head].double()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("order", [1, 4, 12])
def test_series_about_0_misplaces_what_the_library_says(layer, order):
    fitted = compute(CAPTURED, FITS, layer, 3, "taylor", order)
    scores = scores_of(layer, 3)
    np.testing.assert_allclose(fitted.misplaced, misplaced_weight(scores, order), atol=1e-9)
    np.testing.assert_allclose(fitted.polynomial, series_weights(scores, order)[-1], atol=1e-9)
    np.testing.assert_allclose(fitted.softmax, scores.softmax(-1)[-1], atol=1e-12)
    weights = taylor(order)(scores.masked_fill(~scores.isfinite(), 0)).tril()
    assert fitted.not_positive == (weights.sum(-1) <= 0).sum()
    assert (fitted.not_positive > 0) == (order == 1)


@pytest.mark.parametrize("family", LIVE)
def test_a_live_fit_is_that_of_calibrate(family):
    fitted = compute(CAPTURED, (), 7, 1, family, 6)
    observed = observe(scores_of(7, 1))
    criterion = FAMILIES[family][0] if FAMILIES[family] else ""
    polynomial = fit_head(observed, 6, family, criterion)
    assert (fitted.scores[0], fitted.scores[-1]) == (observed.low, observed.high)
    unit = np.exp(-observed.high)
    np.testing.assert_allclose(fitted.values, polynomial(fitted.scores) * unit, rtol=1e-12)
    np.testing.assert_allclose(fitted.exact, np.exp(fitted.scores) * unit, rtol=1e-12)
    on_curve = np.abs(fitted.values - fitted.exact).max()
    assert on_curve <= fitted.worst * (1 + 1e-9) and on_curve > 0.9 * fitted.worst
    assert fitted.outside == 0
    assert fitted.features == num_features(D, 6)


def test_what_counts_is_where_the_weight_lies():
    fitted = compute(CAPTURED, (), 2, 0, "square", 4)
    scores = scores_of(2, 0)
    visible = scores.isfinite()
    assert len(fitted.edges) == BINS + 1
    for share in (fitted.pairs, fitted.weight):
        assert share.sum() == pytest.approx(1)
    middle = fitted.edges[BINS // 2]
    above = visible & (scores >= middle)
    assert fitted.pairs[BINS // 2 :].sum() == pytest.approx((above.sum() / visible.sum()).item())
    weight = scores.softmax(-1)[above].sum().item() / T
    assert fitted.weight[BINS // 2 :].sum() == pytest.approx(weight)
    assert weight > 1.2 * (above.sum() / visible.sum()).item()


@pytest.mark.parametrize("order", [4, 8])
def test_a_fit_that_is_handed_in_is_used_with_its_moved_keys(order):
    fitted = compute(CAPTURED, FITS, 7, 3, "sum_of_squares", order)
    attention, fit = CAPTURED.layers[7], FITS[order // 4 - 1].layers[7]
    moved = attention.query[3] @ (attention.key[1] - 0.5).mT * attention.scale
    weights = fit.polynomials[3](moved.double()).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    np.testing.assert_allclose(fitted.polynomial, weights[-1], atol=1e-6)
    softmax = scores_of(7, 3).softmax(-1)
    np.testing.assert_allclose(fitted.softmax, softmax[-1], atol=1e-6)
    misplaced = (weights - softmax).abs().sum(-1) / 2
    np.testing.assert_allclose(fitted.misplaced, misplaced, atol=1e-6)
    assert fitted.outside == 0 and "outside" not in read_out(fitted)


def test_scores_outside_of_the_fitted_interval_are_counted():
    fitted = compute(CAPTURED, [fit_of(4, stretch=-1.0)], 7, 3, "sum_of_squares", 4)
    low, high = fitted.scores[0] + 1, fitted.scores[-1] - 1
    scores = scores_of(7, 3)[scores_of(7, 3).isfinite()]
    outside = ((scores < low) | (scores > high)).double().mean().item()
    assert 0 < fitted.outside == pytest.approx(outside)
    assert "of them lie outside the fitted interval" in read_out(fitted)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"layer": 3}, r"layer must be one of 2, 7; got 3"),
        ({"head": 4}, r"head must be one of 0, 1, 2, 3; got 4"),
        ({"family": "cubic"}, "family must be one of taylor, .*; got 'cubic'"),
        ({"family": "square", "order": 3}, "order of a square must be even, got 3"),
        ({"family": "sum_of_squares", "order": 6}, "looked up, must be one of 4, 8; got 6"),
    ],
)
def test_other_values_are_refused_by_name(values, named):
    with pytest.raises(ValueError, match=named):
        compute(CAPTURED, FITS, **{"layer": 2, **values})


def test_without_fits_the_sum_of_squares_says_so():
    with pytest.raises(ValueError, match="must be one of those of the fits given, which are none"):
        compute(CAPTURED, (), 2, 0, "sum_of_squares", 4)
    least = [Calibration("least_squares", 4, "weight", "a model", {}, FITS[0].layers)]
    with pytest.raises(ValueError, match="which are none"):
        compute(CAPTURED, least, 2, 0, "sum_of_squares", 4)


def possible(family, order):
    even = order % 2 == 0
    return {"square": even, "sum_of_squares": order in (4, 8)}.get(family, True)


def test_drawing_in_place_gives_the_figure_anew():
    in_place = None
    for family in FAMILIES:
        for order in (ORDERS[0], 4, 8, ORDERS[-1]):
            if not possible(family, order):
                continue
            fitted = compute(CAPTURED, FITS, LAYERS[order > 4], order % 3, family, order)
            figure = draw(fitted)
            in_place = draw(fitted, in_place)
            assert isinstance(figure, go.Figure)
            assert in_place == figure
            assert "<br>" not in figure.layout.title.subtitle.text  # or the plot would jump
            words = figure.layout.title.subtitle.text + read_out(fitted)
            assert "nan" not in words and "inf" not in words


def test_figure_shows_the_curves_and_the_weights():
    fitted = compute(CAPTURED, (), 7, 2, "minimax", 3)
    exact, values, negative, pairs, weight, softmax, polynomial = draw(fitted).data
    np.testing.assert_allclose(exact.y, fitted.exact, rtol=1e-5)
    np.testing.assert_allclose(values.y, np.maximum(np.abs(fitted.values), SMALLEST), rtol=1e-5)
    shown = np.isfinite(negative.y)
    np.testing.assert_array_equal(shown, fitted.values < 0)
    assert 0 < shown.sum() < len(shown)
    np.testing.assert_allclose(negative.y[shown], -fitted.values[shown], rtol=1e-5)
    np.testing.assert_allclose(weight.y, fitted.weight, rtol=1e-5)
    np.testing.assert_allclose(pairs.y, fitted.pairs, rtol=1e-5)
    for trace, expected in ((softmax, fitted.softmax), (polynomial, fitted.polynomial)):
        np.testing.assert_allclose(trace.customdata, expected, rtol=1e-5)
        drawn = np.sign(trace.y) * 0.01 * (10 ** np.abs(trace.y) - 1)
        np.testing.assert_allclose(drawn, expected, rtol=1e-4)
        assert trace.hovertext[:3] == ("&lt;s&gt;", "' '", "a&amp;b")
    assert (fitted.polynomial < 0).any()


def test_axes_name_the_largest_weights_and_hold_where_the_weight_lies():
    fitted = compute(CAPTURED, (), 7, 2, "square", 6)
    figure = draw(fitted)
    names = figure.layout.xaxis3
    assert int(np.argmax(fitted.softmax)) in names.tickvals
    assert all(b - a > 1 for a, b in zip(names.tickvals, names.tickvals[1:], strict=False))
    assert names.ticktext == tuple(figure.data[5].hovertext[n] for n in names.tickvals)
    for head in range(QUERY_HEADS):
        fitted = compute(CAPTURED, (), 2, head, "square", 6)
        figure = draw(fitted)
        middles = (fitted.edges[1:] + fitted.edges[:-1]) / 2
        low = 10.0 ** figure.layout.yaxis.range[0]
        hidden = np.exp(middles - fitted.edges[-1]) < low
        assert fitted.weight[hidden].sum() < 0.001
        assert fitted.weight[np.exp(middles - fitted.edges[-1]) < 1000 * low].sum() > 0.001
    assert figure.layout.yaxis.range[1] > 0


def test_read_out_says_what_is_misplaced_and_the_price():
    fitted = compute(CAPTURED, (), 7, 2, "square", 4)
    words = read_out(fitted)
    assert f"<b>{100 * fitted.misplaced.mean():.2g} %</b> of a query's weight" in words
    assert f"mean of {T} queries; worst {100 * fitted.misplaced.max():.2g} %" in words
    assert f"the weights of <b>{fitted.not_positive}</b> queries" in words
    assert f"off from exp by at most {fitted.worst:.2g} of the largest exp" in words
    assert f"holds <b>{num_features(D, 4)}</b> features" in words
    exact = read_out(compute(CAPTURED, (), 7, 2, "least_squares", 32))
    assert "<b>under 0.1 %</b>" in exact and f"<b>{num_features(D, 32):,}</b>" in exact


def test_features_at_the_models_width_are_many():
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(1, 6, 64, generator=generator)
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    wide = CapturedAttention(tuple("abcdef"), {0: LayerAttention(0, q, q, q, 64**-0.5, visible)})
    fitted = compute(wide, order=8)
    assert fitted.features == num_features(64, 8) == 11_969_016_345
    assert "<b>1.2 · 10<sup>10</sup></b> features" in read_out(fitted)


@pytest.fixture
def widget():
    return mount(CAPTURED, FITS)


def moves(widget):
    """Every control to both of its ends, and back to where every family can be computed."""
    values = {"layer": LAYERS, "head": (3, 0), "family": (*reversed(FAMILIES),)}
    found = [(getattr(widget, name), value) for name in values for value in values[name]]
    return [*found, *((widget.order, n) for n in (ORDERS[-1], ORDERS[0], 4))]


def test_every_control_shows_what_it_says(widget):
    for control, value in moves(widget):
        control.value = value
        fitted = compute(CAPTURED, FITS, *(getattr(widget, name).value for name in CONTROLS))
        assert_shows(widget.figure, draw(fitted))
        assert widget.read_out.value == read_out(fitted)
        json.dumps(widget.figure.get_state(), allow_nan=False, default=lambda buffer: "bytes")
    assert widget.error is None


@pytest.mark.parametrize("family", LIVE)
def test_every_family_goes_to_both_ends_of_the_orders(widget, family):
    widget.order.value, widget.family.value = 2, family
    for order in (ORDERS[-1], 2 if family == "square" else ORDERS[0]):
        widget.order.value = order
        assert widget.error is None
        assert f"order {order}:" in widget.figure.layout.title.subtitle.text.lower()
        assert family.replace("_", " ") in widget.figure.layout.title.subtitle.text.lower()


@pytest.mark.parametrize(
    ("family", "named"), [("square", "must be even"), ("sum_of_squares", "must be one of 4, 8")]
)
def test_an_order_that_the_family_does_not_have_shows_its_error(widget, family, named):
    widget.family.value = family
    before = widget.figure.to_json()
    with pytest.raises(ValueError, match=named):
        widget.order.value = 3
    assert named in widget.error_box.value and isinstance(widget.error, ValueError)
    assert widget.figure.to_json() == before
    widget.order.value = 8
    assert widget.error is None and widget.error_box.value == ""


def test_form_and_static_figure(widget):
    assert isinstance(widget, Explorer)
    assert tuple(widget._controls) == CONTROLS
    assert all(isinstance(getattr(widget, name), ipywidgets.Widget) for name in CONTROLS)
    assert widget.layer.options == LAYERS and widget.order.options == ORDERS
    assert (widget.head.min, widget.head.max) == (0, QUERY_HEADS - 1)
    assert [value for _, value in widget.family.options] == list(FAMILIES)
    assert "?" in widget.children[0].value
    below = widget.children[-1].value
    assert "Finish the sentence" in below and "..." in below.split("<details>")[0]
    static = widget._repr_mimebundle_()[PLOTLY]
    assert static == json.loads(draw(compute(CAPTURED, FITS, 2, 0)).to_json())
    assert len(json.dumps(static)) < 60_000


def test_the_answer_is_true():
    for layer in LAYERS:
        for head in range(QUERY_HEADS):
            results = {f: compute(CAPTURED, FITS, layer, head, f, 8) for f in LIVE}
            worst = {f: result.worst for f, result in results.items()}
            assert min(worst, key=worst.get) == "minimax"
            misplaced = {f: result.misplaced.mean() for f, result in results.items()}
            assert misplaced["minimax"] > misplaced["least_squares"]
            assert results["square"].not_positive == 0
            minimax = results["minimax"]
            low = minimax.exact < minimax.worst
            assert (minimax.values[low] < 0).any()
            far_below = results["taylor"]
            if far_below.scores[0] < -8:
                assert far_below.values[0] > 100 * far_below.exact[0]
