"""Predict, then run: a guess that is committed before a cell runs, and held against its result.

    predict("02-odd-orders", "Which weight is negative?", ["order 1", "order 3"])   the cell before
    reveal("02-odd-orders", "order 1", "1 + x is negative below -1.")               the cell itself
    summary()                                                                       all guesses

Guesses are kept in one small file on this machine, `predictions.json` among the learner's files
(see `softattn_lib.learner`). Delete it to begin anew.
"""

import html
import math
import textwrap
from dataclasses import dataclass
from itertools import groupby

from . import learner, stand_ins

if stand_ins.missing("ipywidgets"):
    ipywidgets = stand_ins
else:
    import ipywidgets

WIDTH = 96  # characters of a printed line
STYLE = "<style>.softattn .widget-html-content { line-height: 1.5; }</style>"  # of lines that wrap
NOTHING = ("not chosen yet", "")  # label and value of the slider's first place
FILE = "predictions.json"
_asked = {}  # by name, what was asked in this session


def predict(
    name: str,
    question: str,
    choices=None,
    *,
    low: float | None = None,
    high: float | None = None,
    step: float | None = None,
    unit: str = "",
    log: bool = False,
) -> "Prediction":
    """Ask for a guess: one of a few choices, or a number on a slider.

    Args:
        name: number of the notebook and a few words, "02-odd-orders"; unique.
        question: plain text.
        choices: texts, one of which the result will be. Without them a number is asked for.
        low, high: the ends of the slider.
        step: from one place of the slider to the next: a summand, or a factor if `log`. A guess is
            right if it is at most one step from the result.
        unit: of the number, as in "tokens".
        log: whether the places of the slider are low, low * step, low * step ** 2, ...

    Returns:
        The widget, to be the last line of a cell. A guess of an earlier session is still in it.

    Raises:
        ValueError: a name without the number of a notebook, fewer than two choices or the same one
            twice, choices and a slider at once, or a slider without places.

    Example:
        >>> widget = predict("02-largest-term", "Which term of exp(3) is the largest?",
        ...                  low=0, high=12, step=1, unit="(order)")
        >>> [label for label, _ in widget.control.options][:3]
        ['not chosen yet', '0 (order)', '1 (order)']
    """
    if not (name[:2].isdigit() and name[2:3] == "-" and name[3:]):
        raise ValueError(f"name must be like '02-odd-orders', got {name!r}")
    slider = {"low": low, "high": high, "step": step}
    if choices is not None:
        if given := [option for option, value in slider.items() if value is not None]:
            raise ValueError(f"choices or a slider, not both: got choices and {', '.join(given)}")
        _asked[name] = _Choice(name, question, tuple(choices))
    else:
        if missing := [option for option, value in slider.items() if value is None]:
            raise ValueError(f"without choices, {', '.join(missing)} must be given")
        _asked[name] = _Number(name, question, low, high, step, unit, log)
    return Prediction(_asked[name])


def reveal(name: str, result, because: str) -> None:
    """Print the guess, the result and the reason; without a guess, the result and the reason.

    Args:
        name: of the prediction.
        result: what came out, computed: one of the choices, or a number.
        because: the reason, one or two sentences that go on from "Because".

    Raises:
        ValueError: the result is none of the choices, or no finite number.

    Example:
        >>> widget = predict("02-sum", "Is the sum of the shares 1?", ["yes", "no"])
        >>> reveal("02-sum", "yes" if 0.25 + 0.75 == 1 else "no", "each is divided by their sum.")
        No guess recorded. Result: yes.
        Because each is divided by their sum.
    """
    shown, guess = _plain(result), None
    if question := _asked.get(name):
        result = question.check(result)
        shown, guess = question.label(result), _guess(question)
    if guess is None:
        print(f"No guess recorded. Result: {shown}.")
    else:
        right, verdict = question.judge(guess, result)
        _write(name, result=shown, right=right)
        text = f"Your guess: {question.label(guess)}. Result: {shown}. {verdict}"
        print(textwrap.fill(text, WIDTH))
    print(textwrap.fill(f"Because {because}", WIDTH))


def summary(notebook: str = "") -> None:
    """Print a table of the guesses, by notebook, and how many were right.

    Args:
        notebook: the beginning of the names, as in "02"; all guesses without it.

    Example:
        >>> summary("98")
        No guess recorded yet.
    """
    known = {n: x for n, x in sorted(_load().items()) if n.startswith(notebook)}
    if not known:
        print("No guess recorded yet.")
        return
    rows = [
        (f"  {n[3:]}", x["guess"], x["result"] or "not run yet", _mark(x)) for n, x in known.items()
    ]
    heads = ("", "your guess", "result", "")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]

    def line(cells):
        return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()

    print(line(heads))
    for number, group in groupby(zip(known, rows, strict=True), key=lambda pair: pair[0][:2]):
        print(f"Notebook {number}")
        for _, row in group:
            print(line(row))
    results = [x["right"] for x in known.values() if x["result"]]
    print(f"{sum(results)} of {len(results)} right")


class Prediction(ipywidgets.VBox):
    """A question, radio buttons or a slider, and two buttons: commit, and change one's mind.

    Attributes: `control`, `commit_button`, `change_button` and `status`, the line that says what
    is committed. Without a kernel it shows the question and what there is to choose from.

    Example:
        >>> widget = predict("03-square", "What is (q . k) ** 2 for a score of 3?", ["6", "9"])
        >>> widget.control.value, widget.commit_button.disabled  # nothing is chosen at first
        (None, True)
    """

    def __init__(self, question):
        self._question = question
        self.control = question.control()
        self.commit_button, self.change_button = (
            ipywidgets.Button(description=text, icon=icon, layout=ipywidgets.Layout(width="auto"))
            for text, icon in (("Commit", "check"), ("Change my mind", "undo"))
        )
        self.status = ipywidgets.HTML()
        super().__init__(
            [
                ipywidgets.HTML(
                    f"{STYLE}<b>Predict:</b> {html.escape(question.text)} {question.rule}"
                ),
                self.control,
                ipywidgets.HBox([self.commit_button, self.change_button]),
                self.status,
            ],
            layout=ipywidgets.Layout(max_width="800px"),
        )
        self.add_class("softattn")
        self._committed = _guess(question)
        if self._committed is not None:
            self.control.value = self._committed
        self.control.observe(lambda _: self._show(), "value")
        self.commit_button.on_click(lambda _: self.commit())
        self.change_button.on_click(lambda _: self.change_mind())
        self._show()

    def commit(self):
        """Record what is chosen. Nothing happens if nothing is, or if a guess is committed."""
        if self._committed is None and self.control.value not in (None, ""):
            self._committed = self.control.value
            _write(
                self._question.name,
                guess=self._question.label(self._committed),
                result="",
                right=False,
            )
        self._show()

    def change_mind(self):
        """Take the guess back, and choose anew."""
        if self._committed is not None:
            self._committed = None
            _forget(self._question.name)
        self._show()

    def _show(self):
        is_committed = self._committed is not None
        if is_committed and self.control.value != self._committed:
            self.control.value = self._committed
        self.control.disabled = is_committed
        self.commit_button.disabled = is_committed or self.control.value in (None, "")
        self.change_button.disabled = not is_committed
        self.status.value = "Choose, commit, then run the next cell. (Or just run it.)"
        if is_committed:
            guess = html.escape(self._question.label(self._committed))
            self.status.value = f"Committed: <b>{guess}</b>. Now run the next cell."

    def _repr_mimebundle_(self, **kwargs):
        text, options = self._question.text, self._question.on_paper()
        still = f"<p><b>Predict:</b> {html.escape(text)}</p>\n<ul>\n"
        still += "".join(f"<li>{html.escape(option)}</li>\n" for option in options) + "</ul>"
        plain = "\n".join([f"Predict: {text}", *(f"- {option}" for option in options)])
        bundle = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": plain, "text/html": still}


@dataclass(frozen=True)
class _Choice:
    """A question with a few answers."""

    name: str
    text: str
    values: tuple[str, ...]
    rule = ""

    def __post_init__(self):
        if len(self.values) < 2 or len(set(self.values)) < len(self.values):
            raise ValueError(f"choices must be at least two, all different; got {self.values}")
        if not all(isinstance(choice, str) and choice for choice in self.values):
            raise ValueError(f"choices must be texts, got {self.values}")

    def label(self, value):
        return value

    def on_paper(self):
        return self.values

    def control(self):
        layout = ipywidgets.Layout(width="max-content", max_width="100%")
        return ipywidgets.RadioButtons(options=self.values, value=None, layout=layout)

    def check(self, result):
        if not (isinstance(result, str) and result in self.values):
            choices = ", ".join(map(repr, self.values))
            raise ValueError(f"the result of {self.name} must be one of {choices}; got {result!r}")
        return result

    def judge(self, guess, result):
        return guess == result, "Right." if guess == result else "Not this time."


@dataclass(frozen=True)
class _Number:
    """A question whose answer is a number."""

    name: str
    text: str
    low: float
    high: float
    step: float
    unit: str
    log: bool

    def __post_init__(self):
        if not self.low < self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}")
        if self.log and not (self.low > 0 and self.step > 1):
            raise ValueError(f"log needs low > 0 and step > 1, got {self.low} and {self.step}")
        if not self.step > 0:
            raise ValueError(f"step must be > 0, got {self.step}")

    @property
    def values(self):
        if self.log:
            count = math.log(self.high / self.low, self.step)
            return tuple(self.low * self.step**n for n in range(math.floor(count + 1e-9) + 1))
        count = (self.high - self.low) / self.step
        return tuple(self.low + self.step * n for n in range(math.floor(count + 1e-9) + 1))

    @property
    def margin(self):
        return f"a factor of {_plain(self.step)}" if self.log else _plain(self.step)

    @property
    def rule(self):
        return f"({self.margin[0].upper()}{self.margin[1:]} more or less counts as right.)"

    def label(self, value):
        return f"{_plain(value)} {self.unit}".rstrip()

    def on_paper(self):
        first, last = self.values[0], self.values[-1]
        return [f"a number from {_plain(first)} to {self.label(last)}, to within {self.margin}"]

    def control(self):
        return ipywidgets.SelectionSlider(
            options=[NOTHING, *((self.label(value), value) for value in self.values)],
            layout=ipywidgets.Layout(width="100%", max_width="600px"),
        )

    def check(self, result):
        try:
            number = float(result)
        except (TypeError, ValueError):
            number = math.nan
        if isinstance(result, str) or not math.isfinite(number):
            raise ValueError(f"the result of {self.name} must be a finite number, got {result!r}")
        return number

    def judge(self, guess, result):
        if self.log and result <= 0:
            return False, "Not this time."
        off = max(guess / result, result / guess) if self.log else abs(guess - result)
        if off <= self.step * (1 + 1e-9):
            return True, f"Right, to within {self.margin}."
        return False, f"Off by {'a factor of ' * self.log}{_plain(off)}."


def _plain(value):
    """A number as one writes it; anything else as a text."""
    try:
        x = float(value)
    except (TypeError, ValueError):
        return str(value)
    if isinstance(value, str) or not math.isfinite(x):
        return str(value)
    return f"{x:,.0f}" if x == round(x) or abs(x) >= 100 else f"{x:.3g}"


def _mark(known):
    return {True: "right", False: "not right"}[known["right"]] if known["result"] else ""


# The file


def _guess(question):
    """The value that is on record for a question, or None."""
    label = _load().get(question.name, {}).get("guess")
    return next((value for value in question.values if question.label(value) == label), None)


def _write(name, **changes):
    known = _load()
    learner.save(FILE, known | {name: known.get(name, {}) | changes})


def _forget(name):
    learner.save(FILE, {n: x for n, x in _load().items() if n != name})


def _load():
    """{name: {"guess", "result": texts, "right": bool}}; what is broken is left out."""
    return {
        name: {key: _text(x.get(key)) for key in ("guess", "result")}
        | {"right": x.get("right") is True}
        for name, x in learner.load(FILE).items()
        if isinstance(x, dict) and isinstance(x.get("guess"), str)
    }


def _text(x):
    return x if isinstance(x, str) else ""
