"""What all widgets share: a question, a few controls, one figure, a read-out, a sentence to finish.

A widget is three functions: compute(**values of the controls) -> result, draw(result) -> figure,
read_out(result) -> HTML. They know nothing of widgets, so that tests and notebooks can use them
alone; `Explorer` is the thin rest.

Where ipywidgets or anywidget is missing, parts that only keep their values stand in for theirs
(`softattn_lib.stand_ins`), and a widget shows itself as text and a figure with one slider.
"""

import html
import json

import plotly.graph_objects as go

from .. import stand_ins
from . import frames

MISSING = stand_ins.missing("ipywidgets", "anywidget")
if MISSING:
    ipywidgets = anywidget = stand_ins
else:
    import anywidget
    import ipywidgets

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
HOW_TO_INSTALL = (
    f"<i>Here {' and '.join(MISSING)} cannot be imported, so the figure has one slider at most, "
    "and the lines below it are those of its first picture. For all controls run "
    f"<code>%pip install {' '.join(MISSING)}</code> in a cell, and restart the kernel.</i>"
)


class Widget(ipywidgets.VBox):
    """A question, and below it parts with one figure, of which `twin` is a copy to be stored.

    Displayed, it also carries the twin as plain plotly data, for readers without a kernel. Where
    ipywidgets or anywidget is missing, it shows the question, the twin and the texts below it.

    Args:
        question: HTML.
        parts: widgets, one below the other.
    """

    def __init__(self, question: str, parts: list):
        super().__init__(
            [ipywidgets.HTML(f"{STYLE}<b>{question}</b>"), *parts],
            layout=ipywidgets.Layout(max_width="800px"),
        )
        self.add_class("softattn")

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs)
        return {**bundle, PLOTLY: json.loads(self.twin().to_json())}

    if MISSING:

        def _ipython_display_(self):
            from IPython.display import HTML, display

            question, *below = (p.value for p in self.children if isinstance(p, ipywidgets.HTML))
            twin = self.twin()
            fixed = (twin.layout.meta or {}).get("fixed")
            display(HTML(question))
            twin.show(auto_play=False)
            display(HTML("<br>".join(filter(None, [fixed, *below, HOW_TO_INSTALL]))))


class Explorer(Widget):
    """Controls that recompute one figure in place.

    Each control is an attribute by its name (`explorer.order.value = 4`), as are `figure`, the live
    figure, `read_out`, `reset_button` and `error_box`. Its twin is the figure of the controls'
    first values. Where widgets are missing, the twin of an Explorer whose values were assigned is
    the figure of these values.

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
        self._controls = controls
        self._defaults = self._values()
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
            question,
            [
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
        )
        self._watch()

    def reset(self):
        """Put every control back to its first value, in one update."""
        for control in self._controls.values():
            control.unobserve(self._update, "value")
        for name, value in self._defaults.items():
            self._controls[name].value = value
        self._watch()
        self._update()

    def _values(self):
        return {name: control.value for name, control in self._controls.items()}

    def _watch(self):
        for control in self._controls.values():
            control.observe(self._update, "value")

    def _update(self, _change=None):
        try:
            result = self._compute(**self._values())
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

    def twin(self) -> go.Figure:
        """The figure of the first values; with a slider where it will be all that there is."""
        if not MISSING:
            return frames.with_slider(self) if frames.wanted() else self._static
        if self._values() != self._defaults:
            return self.figure
        try:
            return frames.with_slider(self)
        except ValueError:  # some other value cannot be computed, for want of data
            return self._static


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
    if MISSING:
        return go.Figure(figure)
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
