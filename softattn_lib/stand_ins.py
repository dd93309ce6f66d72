"""What stands in for ipywidgets and anywidget where they are missing: parts that keep their values.

    if missing("ipywidgets"):
        ipywidgets = stand_ins

Here is what this library uses of the two, and no more. Nobody can move or press it, but a value
that is assigned reaches those who observe it, so that the cells after a widget run all the same.
"""

from importlib import import_module

from traitlets import Any, HasTraits
from traitlets import link as link


def missing(*names: str) -> list[str]:
    """Those of these packages that cannot be imported, for whatever reason.

    Example:
        >>> missing("json", "a_package_that_is_not_there")
        ['a_package_that_is_not_there']
    """
    found = []
    for name in names:
        try:
            import_module(name)
        except Exception:  # a broken install raises anything
            found.append(name)
    return found


class Part(HasTraits):
    """Keeps what it is given, its value above all.

    Example:
        >>> part = Part(value=2, description="order N")
        >>> part.observe(lambda change: print(part.description, change.new), "value")
        >>> part.value = 4
        order N 4
    """

    value = Any()
    description = ""

    def __init__(self, **given):
        super().__init__()
        for name, x in given.items():
            setattr(self, name, x)


class Slider(Part):
    """A number between two ends.

    Example:
        >>> order = IntSlider(2, 0, 8, description="order N")
        >>> order.value, order.max, order.step
        (2, 8, 1)
    """

    def __init__(self, value, min, max, step=1, **given):
        super().__init__(value=value, min=min, max=max, step=step, **given)


class Choice(Part):
    """One of a few values, the first one unless another is given.

    Args:
        options: {label: value}, or a list of values or of (label, value).

    Example:
        >>> gates = Dropdown(options={"no gate": None, "output gate": "output"})
        >>> gates.value, SelectionSlider(options=(8, 16), value=16).value
        (None, 16)
    """

    def __init__(self, options, **given):
        pairs = options.items() if isinstance(options, dict) else options
        pairs = [pair if isinstance(pair, tuple) else (str(pair), pair) for pair in pairs]
        super().__init__(options=options, _options_full=pairs, **{"value": pairs[0][1], **given})


class HTML(Part):
    """A text."""

    def __init__(self, value=""):
        super().__init__(value=value)


class Button(Part):
    """Nobody can press it."""

    def on_click(self, handler):
        pass


class Box(Part):
    """Parts beside or below one another."""

    def __init__(self, children, layout=None):
        super().__init__(children=tuple(children))

    def add_class(self, name):
        pass

    def _repr_mimebundle_(self, **kwargs):
        return {}


IntSlider = FloatSlider = Play = Slider
Dropdown = RadioButtons = SelectionSlider = ToggleButtons = Choice
HBox = VBox = Box
AnyWidget = Part
Layout = dict
