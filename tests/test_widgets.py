"""The widgets: their numbers against the library, controls at their ends, how they behave."""

import json
import statistics
import subprocess
import sys
import time
from importlib import import_module
from itertools import pairwise, product
from pathlib import Path

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from plotly.basewidget import BaseFigureWidget

from softattn_lib import (
    PolynomialKernel,
    init_state,
    parallel_attention,
    softmax_attention,
    taylor,
    toy,
    weight_error_bound,
)
from softattn_lib import widgets as package
from softattn_lib.tasks.records import read_rows
from softattn_lib.widgets import (
    approximation_error,
    live_training,
    recurrence_stepper,
    state_growth,
)
from softattn_lib.widgets.base import PLOTLY, Explorer
from tests.live_figures import assert_shows, count_updates
from tests.test_widget_fitted_polynomial import CAPTURED, FITS

ROOT = Path(__file__).parent.parent
MODULES = [
    import_module(f"{package.__name__}.{path.stem}")
    for path in sorted(Path(package.__file__).parent.glob("[a-z]*.py"))
]
WIDGETS = {m.__name__.split(".")[-1]: m for m in MODULES if hasattr(m, "mount")}
EXPLORERS = [name for name, module in WIDGETS.items() if module is not live_training]
ARGUMENTS = {  # of mount, where it does not go without
    "crossover": (read_rows(ROOT / "benchmarks" / "crossovers.csv"),),
    "fitted_polynomial": (CAPTURED, FITS),
    "loss_curves": (read_rows(ROOT / "experiments" / "curves.csv"),),
    "order_explorer": ("abcd", torch.tensor([2.3, -1.8, 0.4, 1.1]), torch.eye(4)),
}
RECORDING = recurrence_stepper.record(toy.q, toy.k, toy.v)

each_widget = pytest.mark.parametrize("name", EXPLORERS)


def mount(name):
    return WIDGETS[name].mount(*ARGUMENTS.get(name, ()))


def legal_values(control):
    """Every option of a choice; the ends and the middle of a slider."""
    if isinstance(control, ipywidgets.SelectionSlider):
        options = control.options
        return [options[0], options[len(options) // 2 - 1], options[-1]]
    if hasattr(control, "options"):
        return [value for _, value in control._options_full]
    middle = type(control.min)(round((control.min + control.max) / 2))
    return [control.min, middle, control.max]


def controls(widget):
    return {name: getattr(widget, name) for name in widget._controls}


def another_value(control):
    return next(v for v in legal_values(control) if v != control.value)


def moves(widget):
    """Each control to each legal value, from the first picture on."""
    for control in controls(widget).values():
        for value in legal_values(control):
            widget.reset()
            yield control, value


def states(widget):
    """The product of the controls' legal values, as arguments of compute."""
    found = controls(widget)
    for values in product(*(legal_values(control) for control in found.values())):
        yield dict(zip(found, values, strict=True))


def compute(name, **values):
    if name == "recurrence_stepper":
        values["recording"] = RECORDING
    return WIDGETS[name].compute(**values)


def all_numbers(figure):
    """Everything that the traces of a figure hold, as one array."""
    arrays = [trace[key] for trace in figure.data for key in ("x", "y", "z") if key in trace]
    return np.concatenate([np.asarray(a, dtype=float).ravel() for a in arrays if a is not None])


def spoken(figure):
    return figure.layout.title.text + figure.layout.title.subtitle.text


# All widgets


def test_every_widget_that_the_library_has_is_tested():
    assert {m.__name__.split(".")[-1] for m in MODULES} - WIDGETS.keys() == {"base", "frames"}
    assert WIDGETS.keys() | {"Explorer"} == set(package.__all__)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["state_growth", "approximation_error", "recurrence_stepper", "recall_capacity"]
)
def test_every_combination_gives_a_figure_and_words(name):
    module, seen = WIDGETS[name], set()
    in_place = None
    combinations = list(states(mount(name)))
    for values in combinations:
        result = compute(name, **values)
        figure, words = module.draw(result), module.read_out(result)
        in_place = module.draw(result, in_place)
        assert isinstance(figure, go.Figure)
        assert in_place == figure, f"changed in place, the figure differs at {values}"
        numbers = all_numbers(figure)
        assert not np.isinf(numbers).any() and np.isfinite(numbers).mean() > 0.5
        seen.add((spoken(figure), words))
        assert "nan" not in words + spoken(figure)
    assert len(seen) == len(combinations)  # no two states say the same


@each_widget
def test_every_control_at_its_ends_and_options_shows_what_it_says(name):
    widget = mount(name)
    for control, value in moves(widget):
        control.value = value
        result = widget._compute(**{n: c.value for n, c in controls(widget).items()})
        assert_shows(widget.figure, widget._draw(result))
        assert widget.read_out.value == widget._read_out(result)
        assert widget.error is None and widget.error_box.value == ""
        # NaN in a matrix is no JSON, and Jupyter warns of it above the figure.
        json.dumps(widget.figure.get_state(), allow_nan=False, default=lambda buffer: "bytes")


@pytest.mark.slow
@each_widget
def test_real_controls_change_the_picture(name):
    """By assignment, as a notebook does, and by message, as the browser does."""
    for control in controls(mount(name)):
        for how in ("assignment", "message"):
            widget = mount(name)
            moved = getattr(widget, control)
            before, value = widget.figure.to_json(), another_value(moved)
            if how == "assignment":
                moved.value = value
            elif "index" in moved.keys:  # what the browser sends for a choice
                index = [v for _, v in moved._options_full].index(value)
                moved.set_state({"index": index})
            else:
                moved.set_state({"value": value})
            assert moved.value == value
            assert widget.figure.to_json() != before, (control, how)


@each_widget
def test_a_move_is_one_message_also_after_resets(name, monkeypatch):
    widget = mount(name)
    widget.reset()
    widget.reset()
    messages = count_updates(monkeypatch)
    for other in ("_send_restyle_msg", "_send_relayout_msg", "_send_addTraces_msg"):
        monkeypatch.setattr(BaseFigureWidget, other, lambda *a, **k: pytest.fail("not batched"))
    for control in controls(widget).values():
        control.value = another_value(control)
    assert len(messages) == len(controls(widget))
    widget.reset()
    assert len(messages) == len(controls(widget)) + 1


@each_widget
def test_the_figure_goes_to_the_page_whole(name, monkeypatch):
    """Else a slow page can draw it before its traces come."""
    opened, really_open = [], ipywidgets.Widget.open

    def watch(part):
        if isinstance(part, go.FigureWidget):
            opened.append((len(part._widget_data), bool(part._widget_layout), part._config))
        really_open(part)

    monkeypatch.setattr(ipywidgets.Widget, "open", watch)
    figure = mount(name).figure
    assert opened == [(len(figure.data), True, figure._config)]
    assert figure._config["responsive"] and figure.comm is not None


@each_widget
def test_reset_brings_the_first_picture_back(name):
    widget = mount(name)
    first = widget.figure.to_json(), widget.read_out.value
    defaults = {n: c.value for n, c in controls(widget).items()}
    for control in controls(widget).values():
        control.value = another_value(control)
    assert (widget.figure.to_json(), widget.read_out.value) != first
    widget.reset_button.click()
    assert widget.error is None
    assert {n: c.value for n, c in controls(widget).items()} == defaults
    assert (widget.figure.to_json(), widget.read_out.value) == first


@each_widget
def test_two_widgets_are_independent(name):
    one, other = mount(name), mount(name)
    before = other.figure.to_json(), other.read_out.value
    for control in controls(one).values():
        control.value = another_value(control)
    assert (other.figure.to_json(), other.read_out.value) == before


@each_widget
def test_static_twin_is_the_default_figure_and_small(name):
    widget = mount(name)
    defaults = {n: c.value for n, c in controls(widget).items()}
    twin = widget._draw(widget._compute(**defaults)).to_json()
    assert len(twin) < 60_000
    control = next(iter(controls(widget).values()))
    control.value = another_value(control)  # the twin stays what it was
    bundle = widget._repr_mimebundle_()
    assert bundle[PLOTLY] == json.loads(twin)
    assert "application/vnd.jupyter.widget-view+json" in bundle


@each_widget
def test_an_error_shows_and_is_raised_and_goes_away(name):
    widget = mount(name)
    before, control = widget.figure.to_json(), next(iter(controls(widget).values()))
    compute_well, first = widget._compute, control.value

    def fail(**values):
        raise ValueError("order must be <even>")

    widget._compute = fail
    with pytest.raises(ValueError, match="even"):
        control.value = another_value(control)
    assert isinstance(widget.error, ValueError)
    assert "ValueError" in widget.error_box.value and "&lt;even&gt;" in widget.error_box.value
    assert widget.error_box in widget.children
    assert widget.figure.to_json() == before
    widget._compute = compute_well
    control.value = first
    assert widget.error is None and widget.error_box.value == ""
    widget._compute = fail
    widget.reset_button.click()  # ipywidgets swallows what a click raises; the widget does not
    assert isinstance(widget.error, ValueError) and "ValueError" in widget.error_box.value


@pytest.mark.slow
@each_widget
def test_every_move_is_recomputed_within_200_ms_and_most_within_50(name):
    """The processor's time, which other programs on the machine do not change; median of three."""
    widget, seconds = mount(name), {}
    for _ in range(3):
        for control, value in moves(widget):
            start = time.process_time()
            control.value = value
            moved = time.process_time() - start
            seconds.setdefault((control.description, value), []).append(moved)
    medians = {move: statistics.median(times) for move, times in seconds.items()}
    print(f"{name}: {1000 * max(medians.values()):.0f} ms at most")
    assert max(medians.values()) < 0.2, medians
    assert statistics.median(medians.values()) < 0.05, medians


@each_widget
def test_form(name):
    """A question above, at most four controls and a reset, a sentence to finish below."""
    widget = mount(name)
    assert isinstance(widget, Explorer) and isinstance(widget, ipywidgets.VBox)
    assert "?" in widget.children[0].value
    assert 1 <= len(controls(widget)) <= 4
    assert all(c.description or c.tooltips for c in controls(widget).values())
    assert widget.reset_button in every_part(widget)
    below = widget.children[-1].value
    assert "Finish the sentence" in below and "..." in below.split("<details>")[0]
    kinds = {type(w) for w in every_part(widget)}
    assert (
        ipywidgets.Output not in kinds and sum(issubclass(k, go.FigureWidget) for k in kinds) == 1
    )


def every_part(widget):
    return [widget, *(p for c in getattr(widget, "children", ()) for p in every_part(c))]


@pytest.mark.slow
def test_importing_is_light():
    """The library does not load plotly, and live figures do not load the slow import."""
    code = (
        "import sys, softattn_lib; assert 'plotly' not in sys.modules;"
        "from softattn_lib.widgets import state_growth; state_growth.mount();"
        "assert sys.modules['rfc3987_syntax'] is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# State growth

BREAK_EVEN = {
    8: (6, 26, 93, 279),
    16: (10, 82, 515, 2_574),
    64: (34, 1_090, 24_327, 413_555),
}


@pytest.mark.parametrize("d", BREAK_EVEN)
def test_break_even_tokens(d):
    assert BREAK_EVEN[d] == tuple(state_growth.compute(d, n).break_even for n in (1, 2, 3, 4))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("d, order", [(4, 0), (4, 3), (8, 2), (16, 2)])
def test_state_floats_are_those_of_the_state(d, order, packed):
    growth = state_growth.compute(d, order, packed)
    state = init_state(PolynomialKernel(taylor(order), packed), d=d, e=d)
    assert growth.state_floats == state.sums.numel()
    chosen = growth.packed_features if packed else growth.full_features
    assert growth.features == state.num_features == chosen[: order + 1].sum()
    last_smaller, first_as_large = (2 * d * (growth.break_even - n) for n in (1, 0))
    assert last_smaller < growth.state_floats <= first_as_large


def test_growth_figure():
    figure = None
    for values in states(mount("state_growth")):
        growth = state_growth.compute(**values)
        figure = state_growth.draw(growth, figure)
        cache, state, break_even, packed, full = figure.data
        np.testing.assert_allclose(cache.y, 2 * growth.d * cache.x, rtol=1e-5)
        np.testing.assert_allclose(state.y, growth.state_floats, rtol=1e-5)
        assert (break_even.x, break_even.y) == ((growth.break_even,), (growth.state_floats,))
        assert f"{growth.break_even:,} token" in break_even.text[0]
        assert cache.x[0] <= growth.break_even <= cache.x[-1]
        np.testing.assert_allclose(packed.y, growth.packed_features, rtol=1e-5)
        np.testing.assert_allclose(full.y, growth.full_features, rtol=1e-5)
        chosen, other = (packed, full) if growth.packed else (full, packed)
        assert chosen.marker.symbol.count("circle") == growth.order + 1
        assert "circle" not in other.marker.symbol


# Approximation error


@pytest.mark.parametrize("radius", [0.5, 2.0, 4.0])
def test_worst_errors_are_the_bound(radius):
    error = approximation_error.compute(radius=radius)
    for order in range(9):
        bound = weight_error_bound(order, radius)
        if bound > 1e-9:  # else rounding is the larger part
            assert error.worst64[order] == pytest.approx(bound, rel=1e-6)


@pytest.mark.parametrize("order, center", [(4, 0.0), (5, 0.0), (30, 0.0), (7, -2.0), (12, 3.0)])
def test_weights_are_what_the_library_computes_in_both_precisions(order, center):
    error = approximation_error.compute(order, 8.0, center)
    scores, polynomial = torch.from_numpy(error.scores), taylor(order, center)
    np.testing.assert_array_equal(error.weights, polynomial(scores).numpy())
    assert torch.equal(scores.float().double(), scores)  # float32 holds the scores exactly
    exact = scores.exp()
    for found, weights in (
        (error.error64, polynomial(scores)),
        (error.error32, polynomial(scores.float())),
    ):
        expected = (weights.double() / exact - 1).abs().clamp(min=approximation_error.SMALLEST)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-15)


def test_only_odd_orders_go_negative_and_the_figure_marks_it():
    figure = None
    for order, radius in product(range(8), (1.0, 4.0, 12.0)):
        error = approximation_error.compute(order, radius)
        figure = approximation_error.draw(error, figure)
        exact, polynomial, negative = figure.data[:3]
        is_negative = error.weights < 0
        assert is_negative.any() == (taylor(order).minimum_on(radius) < 0)
        assert order % 2 or not is_negative.any()
        np.testing.assert_array_equal(np.isfinite(negative.y), is_negative)
        np.testing.assert_array_equal(polynomial.y < 0, is_negative)
        np.testing.assert_array_equal(negative.y[is_negative], polynomial.y[is_negative])
        np.testing.assert_allclose(polynomial.customdata, error.weights, rtol=1e-5)
        np.testing.assert_allclose(exact.customdata, np.exp(error.scores), rtol=1e-5)
        assert (np.diff(exact.y) >= 0).all()


def test_float32_cannot_sum_the_series_at_minus_8():
    error = approximation_error.compute(order=40, radius=8.0)
    assert error.worst32.min() > 0.01
    assert error.worst64.min() < 1e-6
    assert error.error32[0] > 1e5 * error.error64[0] and error.error32[-1] < 1e-5
    worst64, worst32 = approximation_error.draw(error).data[5:7]
    np.testing.assert_allclose(worst64.y, error.worst64, rtol=1e-5)
    np.testing.assert_allclose(worst32.y, error.worst32, rtol=1e-5)


def test_chosen_order_is_marked_on_both_curves():
    widget = approximation_error.mount()
    widget.order.value, widget.radius.value, widget.center.value = 20, 8.0, -1.5
    worst64, worst32, chosen = widget.figure.data[5:8]
    assert chosen.x == (20, 20)
    assert tuple(chosen.y) == (worst64.y[20], worst32.y[20])


def test_caption_says_which_side_is_worse():
    for center, side in ((0.0, "negative"), (-8.0, "positive")):
        figure = approximation_error.draw(approximation_error.compute(5, 4.0, center))
        assert side in figure.layout.title.text


@pytest.mark.parametrize("values, name", [({"order": 49}, "order"), ({"radius": 0.0}, "radius")])
def test_wrong_arguments_of_the_error_are_named(values, name):
    with pytest.raises(ValueError, match=f"{name} must be .*, got {values[name]}"):
        approximation_error.compute(**values)


# Recurrence stepper


@pytest.fixture
def inputs():
    """Unequal sizes: T = 5, d = 3, e = 2."""
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    return {"q": q, "k": k, "v": torch.randn(5, 2, generator=generator, dtype=torch.float64)}


@pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_steps_agree_with_the_parallel_form(inputs, order, scale):
    exact = softmax_attention(**inputs, scale=scale)
    kernel = PolynomialKernel(taylor(order), packed=False)
    out, final = parallel_attention(**inputs, kernel=kernel, scale=scale)
    recording = recurrence_stepper.record(**inputs, scale=scale)
    steps = [recurrence_stepper.compute(token, order, recording) for token in range(1, 6)]
    close = {"rtol": 0, "atol": 1e-12}
    np.testing.assert_allclose(steps[-1].state, final.sums, **close)
    np.testing.assert_allclose(np.stack([s.output for s in steps]), out, **close)
    np.testing.assert_allclose(np.stack([s.softmax for s in steps]), exact, **close)
    for step in steps:
        np.testing.assert_allclose(step.distance[order], (out - exact).norm(dim=-1), **close)
        total = step.readout.sum(0)
        np.testing.assert_allclose(total[:-1] / total[-1], step.output, **close)
        np.testing.assert_allclose(step.query_powers @ step.state, total, **close)
        assert step.largest >= np.abs(step.state).max()
    for before, after in pairwise(steps):
        np.testing.assert_allclose(after.state - before.state, after.written, **close)


def test_features_are_named_by_what_they_multiply(inputs):
    step = recurrence_stepper.compute(2, 2, recurrence_stepper.record(**inputs))
    entries = dict(zip("₁₂₃", inputs["k"][1].tolist(), strict=True))
    expected = [np.prod([entries[c] for c in name if c in entries]) for name in step.names]
    np.testing.assert_allclose(step.key_powers, expected)
    assert step.names[:4] == ["1", "k₁", "k₂", "k₃"] and len(step.names) == 13
    with_one = np.append(inputs["v"][1], 1)
    np.testing.assert_allclose(step.written, np.outer(step.key_powers, with_one))


def test_stepper_figure():
    figure = None
    for values in states(mount("recurrence_stepper")):
        step = compute("recurrence_stepper", **values)
        figure = recurrence_stepper.draw(step, figure)
        key, written, state, query, readout, *distances = figure.data
        gaps = step.order  # a row of NaN between two orders
        for trace, matrix in (
            (key, step.key_powers[:, None]),
            (written, step.written),
            (state, step.state),
            (query, step.query_powers[:, None]),
        ):
            shown = np.array(trace.z, float)
            shown = shown[~np.isnan(shown).all(-1)]
            np.testing.assert_allclose(shown, matrix, rtol=1e-5)
            assert len(trace.z) == len(matrix) + gaps
            assert np.abs(matrix).max() <= figure.layout.coloraxis.cmax or trace is query
        labels = figure.layout.yaxis3.ticktext
        assert labels[0].endswith("1") and len(labels) == len(state.z)
        read = np.array(readout.z, float)
        np.testing.assert_allclose(read[: step.order + 1], step.readout, rtol=1e-5)
        np.testing.assert_allclose(read[-2, :-1], step.output, rtol=1e-5)
        np.testing.assert_allclose(read[-1, :-1], step.softmax, rtol=1e-5)
        assert figure.layout.yaxis5.ticktext[-3:] == ("sum", "output", "softmax")
        assert len(distances) == 4
        for n, trace in enumerate(distances):
            np.testing.assert_allclose(
                trace.y, step.distance[n, : step.token], rtol=1e-5, atol=1e-12
            )
            assert (trace.line.width > 2) == (n == step.order)


def test_higher_orders_come_closer_on_the_toy():
    step = compute("recurrence_stepper", token=4, order=2)
    assert step.distance[3].max() < step.distance[0].max() / 10
    assert step.distance[:, 0].max() < 1e-12  # the first token can only return its value


def test_play_moves_the_token():
    widget = recurrence_stepper.mount()
    widget.play.set_state({"value": 2})
    assert widget.token.value == 2 and len(widget.figure.data[5].y) == 2
    widget.token.value = 3
    assert widget.play.value == 3
    widget.reset()
    assert widget.play.value == 4
    assert (widget.play.min, widget.play.max) == (1, 4)


def test_stepper_takes_other_inputs(inputs):
    widget = recurrence_stepper.mount(**inputs, scale=0.5)
    assert (widget.token.max, widget.order.max) == (5, 2)
    for token, order in product((1, 5), (0, 2)):
        widget.token.value, widget.order.value = token, order
    out, _ = parallel_attention(**inputs, kernel=taylor(2), scale=0.5)
    distance = (out - softmax_attention(**inputs, scale=0.5)).norm(dim=-1)
    np.testing.assert_allclose(widget.figure.data[5 + 2].y, distance, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize(
    "values, name",
    [
        ({"token": 0}, "token"),
        ({"token": 5}, "token"),
        ({"order": 4}, "order"),
        ({"order": -1}, "order"),
    ],
)
def test_wrong_steps_are_named(values, name):
    with pytest.raises(ValueError, match=f"{name} must be an integer .*, got {values[name]}"):
        compute("recurrence_stepper", **{"token": 1, "order": 1, **values})


@pytest.mark.parametrize("tokens", [1, 9])
def test_too_few_or_many_tokens_are_refused(tokens):
    x = torch.ones(tokens, 2)
    with pytest.raises(ValueError, match=f"k must have 2 to 8 tokens, got {tokens}"):
        recurrence_stepper.mount(x, x, x)
