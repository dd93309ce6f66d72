"""What all widgets share: a question, a few controls, one figure, a read-out, a sentence to finish.

A widget is three functions: compute(**values of the controls) -> result, draw(result) -> figure,
read_out(result) -> HTML. They know nothing of widgets, so that tests and notebooks can use them
alone; `Explorer` is the thin rest.
"""

import html
import json

import anywidget
import ipywidgets
import plotly.graph_objects as go

from . import frames

WIDE = {"description_width": "initial"}  # of a control: its description is never cut off
STYLE = """
<style>
.softattn .widget-html-content { line-height: 1.5; }
.softattn .infolayer text, .softattn .xaxislayer-above text, .softattn .yaxislayer-above text {
  fill: var(--jp-content-font-color1, #7A7A7A) !important;
}
</style>
"""  # text of the page's own colour, in the live figure too
PLOTLY = "application/vnd.plotly.v1+json"


class Explorer(ipywidgets.VBox):
    """Controls that recompute one figure in place.

    Each control is an attribute by its name (`explorer.order.value = 4`), as are `figure`, the live
    figure, `read_out`, `reset_button` and `error_box`. Displayed, it also carries the figure of
    the controls' first values as plain plotly data, for readers without a kernel.

    A value that cannot be computed shows its error in the widget and raises it; `error` holds it
    until the next value that can.

    Args:
        question: HTML above; what to find out by moving the controls.
        controls: {name: widget with a value}, at most four. The first values are the defaults.
        compute: called with the controls' values by name.
        draw: called as draw(result), makes the figure of a result; as draw(result, figure), changes
            that figure in place, so that the live one gets a single message with what changed.
        read_out: makes the HTML below the figure from a result.
        conclusion: HTML below; a sentence for the reader to finish.
        answer: HTML, one way to finish it, folded.
        slide: (name of a control, its values or None for all) of the slider that the figure gets on
            a page without a kernel (`softattn_lib.widgets.frames`); None takes the first control.

    Example:
        >>> def draw_bar(square, figure=None):
        ...     figure = go.Figure(go.Bar()) if figure is None else figure
        ...     figure.data[0].y = [square]
        ...     return figure
        >>> explorer = Explorer(
        ...     question="What is the square?",
        ...     controls={"x": ipywidgets.IntSlider(2, 0, 9, description="x")},
        ...     compute=lambda x: x * x,
        ...     draw=draw_bar,
        ...     read_out=lambda square: f"{square}",
        ...     conclusion="The square of 3 is ...",
        ...     answer="9.",
        ... )
        >>> explorer.x.value = 3
        >>> explorer.figure.data[0].y, explorer.read_out.value
        ((9,), '9')
    """

    def __init__(
        self, *, question, controls, compute, draw, read_out, conclusion, answer, slide=None
    ):
        self._compute, self._draw, self._read_out = compute, draw, read_out
        self._controls, self._defaults = controls, {n: c.value for n, c in controls.items()}
        self.slide = slide or (next(iter(controls)), None)
        self.error = None
        for name, control in controls.items():
            setattr(self, name, control)
        result = compute(**self._defaults)
        self._static = draw(result)
        self.figure = live_figure(self._static)
        self.read_out = ipywidgets.HTML(read_out(result))
        self.error_box = ipywidgets.HTML()
        self.reset_button = ipywidgets.Button(
            description="Reset", icon="undo", tooltip="Back to the first picture"
        )
        self.reset_button.on_click(lambda _: self.reset())
        self.control_row = ipywidgets.HBox(
            [*controls.values(), self.reset_button],
            layout=ipywidgets.Layout(flex_flow="row wrap"),
        )
        super().__init__(
            [
                ipywidgets.HTML(f"{STYLE}<b>{question}</b>"),
                self.control_row,
                self.figure,
                Fit(),
                self.error_box,
                self.read_out,
                ipywidgets.HTML(
                    f"<i>Finish the sentence:</i> {conclusion}"
                    f"<details><summary>One way to finish it</summary>{answer}</details>"
                ),
            ],
            layout=ipywidgets.Layout(max_width="800px"),
        )
        self.add_class("softattn")
        self._watch()

    def reset(self):
        """Put every control back to its first value, in one update."""
        for control in self._controls.values():
            control.unobserve(self._update, "value")
        for name, value in self._defaults.items():
            self._controls[name].value = value
        self._watch()
        self._update()

    def _watch(self):
        for control in self._controls.values():
            control.observe(self._update, "value")

    def _update(self, _change=None):
        try:
            result = self._compute(**{n: c.value for n, c in self._controls.items()})
            with self.figure.batch_update():
                self._draw(result, self.figure)
            self.read_out.value = self._read_out(result)
        except Exception as error:
            self.error = error
            self.error_box.value = alert(
                error, "<br>The figure still shows the last values that could be computed."
            )
            raise
        self.error, self.error_box.value = None, ""

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        figure = frames.with_slider(self) if frames.wanted() else self._static
        return {**bundle, PLOTLY: json.loads(figure.to_json())}


def alert(error: Exception, advice: str = "") -> str:
    """An error as HTML, followed by HTML of one's own.

    Example:
        >>> "<b>ValueError:</b> x &lt; 0" in alert(ValueError("x < 0"))
        True
    """
    return (
        '<div role="alert" style="border-left: 4px solid #D55E00; padding-left: 8px">'
        f"<b>{type(error).__name__}:</b> {html.escape(str(error))}{advice}</div>"
    )


def live_figure(figure: go.Figure) -> go.FigureWidget:
    """A figure as a widget, as wide as the page where `Fit` stands beside it."""
    live = _LiveFigure(figure)
    live._config = {"responsive": True, "displayModeBar": False}
    live.open()
    return live


class _LiveFigure(go.FigureWidget):
    """A live figure that goes to the page whole, by a call of `open` after it is made.

    plotly's own goes there empty and has its traces sent after, so that a slow page can draw it
    before they come, and then shows empty axes.
    """

    def open(self):
        if self._widget_data:  # not yet within the constructor
            super().open()


class Fit(anywidget.AnyWidget):
    """Tells responsive figures to take the width of the page.

    A live figure is drawn before it stands on the page, at a width of its own; plotly redraws it
    when the window is resized, so this announces a resize when the width becomes known or changes.
    """

    _esm = """
    export default {
      render({ el }) {
        const observer = new ResizeObserver(() => window.dispatchEvent(new Event("resize")));
        observer.observe(el);
        return () => observer.disconnect();
      }
    }
    """
