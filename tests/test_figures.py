"""The plain figures and the house style: what they hold, and that everybody can read them."""

import numpy as np
import plotly.graph_objects as go
import pytest
import torch

from softattn_lib import figures, theme

X = [0.0, 1.0, 2.0]


def luminance(color):
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", ["#FFFFFF", "#111111"])
def test_text_and_first_curves_stand_out_in_light_and_dark(background):
    assert contrast(theme.NEUTRAL, background) > 4.2
    for color in theme.COLORS[:3]:
        assert contrast(color, background) > 3


def test_curves_differ_in_more_than_colour():
    count = len(theme.COLORS)
    looks = [theme.style(n) for n in range(count)]
    for key, part in (("dash", "line"), ("symbol", "marker"), ("color", "line")):
        assert len({look[part][key] for look in looks}) == count
    assert theme.style(count) == theme.style(0)


def test_every_figure_is_transparent_and_in_the_house_style():
    made = [
        figures.lines_figure(X, {"a": X}, title="a"),
        figures.bars_figure("abc", {"a": X}, title="a"),
        figures.histogram_figure({"a": X}, title="a"),
        figures.heatmap_figure([X], title="a"),
        figures.weights_figure([[1.0, 0.0]], title="a"),
    ]
    for figure in made:
        assert isinstance(figure, go.Figure)
        assert figure.layout.template.layout.paper_bgcolor == "rgba(0, 0, 0, 0)"
        assert figure.layout.template.layout.font.color == theme.NEUTRAL
        assert figure.layout.height == 420 and figure.layout.width is None
        assert len(figure.to_json()) < 5_000


def test_compact_keeps_six_digits_of_tensors_of_any_kind():
    x = torch.tensor([1 / 3, 1e-30, -123456.789, 0.0], dtype=torch.float64, requires_grad=True)
    assert theme.compact(x).tolist() == [0.333333, 1e-30, -123457.0, 0.0]
    assert theme.compact(torch.tensor([[1.5]], dtype=torch.bfloat16)).tolist() == [[1.5]]
    assert theme.compact([[np.nan, np.inf]], digits=2).shape == (1, 2)


def test_titles_fit_and_captions_are_broken_to_fit():
    with pytest.raises(ValueError, match="title must have at most 44 characters"):
        theme.headline("x" * 45)
    layout = theme.headline("x" * 44, "word " * 40)
    lines = layout["title"]["subtitle"]["text"].split("<br>")
    assert len(lines) > 1 and max(map(len, lines)) <= 56
    assert "".join(lines).replace(" ", "") == "word" * 40
    assert layout["margin"]["t"] > theme.headline("x")["margin"]["t"]


def test_lines():
    curves = {"one": torch.tensor([1.0, 10.0, 100.0]), "two": [2, 4, 8]}
    figure = figures.lines_figure(
        X, curves, title="t", x_title="score", y_title="weight", log_x=True, log_y=True
    )
    assert [trace.name for trace in figure.data] == ["one", "two"]
    assert figure.data[0].y.tolist() == [1, 10, 100] and figure.data[1].x.tolist() == X
    assert figure.data[0].line.dash != figure.data[1].line.dash
    assert figure.data[0].mode == "lines+markers"
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert figure.layout.xaxis.title.text == "score"
    assert figure.layout.yaxis.title.text == "weight"
    assert figure.layout.showlegend
    many = figures.lines_figure(range(100), {"one": range(100)}, title="t")
    assert many.data[0].mode == "lines" and not many.layout.showlegend
    assert many.layout.yaxis.type == "linear"


def test_bars():
    figure = figures.bars_figure(["<s>", "a", "a"], {"p": X, "q": X}, title="t", log_y=True)
    assert figure.layout.xaxis.ticktext == ("&lt;s&gt;", "a", "a")  # equal labels stay apart
    assert figure.data[1].x == (0, 1, 2) and figure.data[1].y.tolist() == X
    assert figure.data[0].marker.pattern.shape != figure.data[1].marker.pattern.shape
    assert figure.layout.yaxis.type == "log"


def test_points_stand_in_the_row_of_their_name():
    groups = {"b": [3.0, 1.0], "<a>": torch.tensor([2.0]), "c": [1.0, np.nan, 5.0]}
    figure = figures.points_figure(groups, title="t", x_title="loss", reference="<a>")
    points, means = figure.data
    assert points.y == (0, 0, 1, 2, 2, 2)
    np.testing.assert_array_equal(points.x, [3, 1, 2, 1, np.nan, 5])
    np.testing.assert_array_equal(means.x, [2, 2, np.nan])
    assert figure.layout.yaxis.ticktext == ("b", "&lt;a&gt;", "c (1 of 3 NaN)")
    top, bottom = reversed(figure.layout.yaxis.range)
    assert top < 0 and bottom > 2  # the first row is on top
    (line,) = figure.layout.shapes
    assert line.x0 == line.x1 == 2
    few = figures.points_figure(groups, title="t").layout
    assert not few.shapes and few.height == 420
    many = figures.points_figure({str(n): [1.0] for n in range(30)}, title="t")
    assert many.layout.height > 600


def test_buttons_switch_points_to_another_axis():
    groups = {"a": [1.0, 4.0], "b": [2.0, np.nan]}
    figure = figures.points_figure(
        groups, title="t", x_title="loss", reference="a", other_axis=("ln loss", np.log)
    )
    plain = figures.points_figure(groups, title="t", x_title="loss", reference="a")
    logs = {name: np.log(points) for name, points in groups.items()}
    other = figures.points_figure(logs, title="t", x_title="ln loss", reference="a")
    assert [x.to_plotly_json() for x in figure.layout.shapes] == [
        x.to_plotly_json() for x in plain.layout.shapes
    ]
    np.testing.assert_array_equal(figure.data[0].x, plain.data[0].x)
    buttons = figure.layout.updatemenus[0].buttons
    assert [button.label for button in buttons] == ["loss", "ln loss"]
    for button, expected in zip(buttons, (plain, other), strict=True):
        pressed = figures.points_figure(groups, title="t", reference="a")
        data, layout = button.args
        pressed.plotly_restyle({"x": data["x"]})
        pressed.plotly_relayout(layout)
        for trace, wanted in zip(pressed.data, expected.data, strict=True):
            np.testing.assert_allclose(np.array(trace.x, float), np.array(wanted.x, float), 1e-5)
        assert pressed.layout.shapes[0].x0 == expected.layout.shapes[0].x0
        assert pressed.layout.xaxis.title.text == button.label


def test_histogram_counts_every_value_in_common_bins():
    generator = torch.Generator().manual_seed(0)
    samples = {"a": torch.randn(50, 2, generator=generator), "b": torch.ones(7)}
    figure = figures.histogram_figure(samples, title="t", bins=10)
    for trace, values in zip(figure.data, samples.values(), strict=True):
        share, edges = trace.y[:-1], trace.x
        assert share.sum() == pytest.approx(1, abs=1e-5) and trace.y[-1] == share[-1]
        inside = [((values >= a) & (values < b)).double().mean().item() for a, b in pairs(edges)]
        assert np.abs(share - inside).max() < 0.02  # the edges are rounded
        assert trace.line.shape == "hv"
    assert figure.data[0].x.tolist() == figure.data[1].x.tolist()


def pairs(edges):
    return zip(edges, [*edges[1:-1], np.inf], strict=False)


def test_heat_maps_are_shown_as_written():
    figure = figures.heatmap_figure(
        {"k": [[1.0, 2.0]], "k ⊗ k": [[1.0, 2.0, 2.0, 4.0]]}, title="t", rows=["<k>"], x_title="x"
    )
    assert figure.data[1].z.tolist() == [[1, 2, 2, 4]]
    assert [a.text for a in figure.layout.annotations] == ["k", "k ⊗ k"]
    assert figure.layout.yaxis.autorange == "reversed"
    assert figure.layout.yaxis.ticktext == ("&lt;k&gt;",)
    assert figure.layout.xaxis2.ticktext == ("0", "1", "2", "3")
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 4)
    first, second = figure.layout.xaxis.domain, figure.layout.xaxis2.domain
    assert (second[1] - second[0]) > (first[1] - first[0])


def test_numbers_are_shown_only_where_they_can_be_read():
    assert figures.heatmap(np.ones((12, 12))).texttemplate == "%{z:.2~f}"
    assert figures.heatmap(np.ones((13, 2))).texttemplate is None
    large = figures.heatmap_figure(np.ones((13, 2)), title="t")
    assert large.layout.yaxis.ticktext is None and large.layout.xaxis.ticktext == ("0", "1")


def test_weights_have_the_colours_of_zero_to_one():
    figure = figures.weights_figure(torch.eye(2) / 2, title="t", tokens=["a", "<b>"])
    axis = figure.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (0, 1)
    assert figure.layout.xaxis.ticktext == figure.layout.yaxis.ticktext == ("a", "&lt;b&gt;")
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("key", "query")
    one_row = figures.weights_figure([[0.5, 0.5]], title="t", tokens=["a", "b"])
    assert one_row.layout.yaxis.ticktext == ("0",)


def test_negative_weights_show_on_a_scale_of_both_signs():
    figure = figures.weights_figure({"order 1": [[1.2, -0.2]]}, title="t")
    axis = figure.layout.coloraxis
    assert (axis.cmin, axis.cmax) == (-1.2, 1.2)
    assert axis.colorscale[0][1] == theme.VERMILLION and axis.colorscale[-1][1] == theme.BLUE
