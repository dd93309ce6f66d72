"""Training to watch: the loss of a small Llama, drawn while it learns, one curve a variant."""

import html
import math
from functools import partial

import plotly.graph_objects as go
import torch

from ..tasks.presets import preset
from ..tasks.text import corpus_for
from ..theme import NEUTRAL, TEMPLATE, compact, headline, style
from ..variants import variant
from .base import WIDE, Fit, Widget, alert, ipywidgets, live_figure

CHOICES = (
    "softmax", "l2", "gate", "no_denominator", "linear_relu", "linear_elu", "cosine",
    "taylor_1", "taylor_2", "taylor_3", "taylor_4", "power_2", "power_2_decay",
)  # fmt: skip
STEPS_A_POINT = 10


def levels(ids: torch.Tensor, size: int) -> dict[str, float]:
    """What a text costs, in nats a token, those who know little of it.

    Args:
        ids: (N,) integers below `size`, the text.
        size: how many tokens there are.

    Returns:
        {what is known: loss} for nothing, for how often each token occurs, and for how often it
        comes after the token before it: the best that a model can do which looks at one token.

    Example:
        >>> levels(torch.tensor([0, 1, 0, 1, 0, 1, 0]), size=4)
        {'nothing known': 1.386, 'frequencies known': 0.693, 'one token seen': 0.0}
    """
    pairs = torch.zeros(size, size, dtype=torch.float64)
    pairs.index_put_((ids[:-1], ids[1:]), torch.ones((), dtype=torch.float64), accumulate=True)
    of_pairs, of_first, of_next = _entropy(pairs), _entropy(pairs.sum(1)), _entropy(pairs.sum(0))
    named = {
        "nothing known": math.log(size),
        "frequencies known": of_next,
        "one token seen": of_pairs - of_first,
    }
    return {name: round(value, 3) + 0.0 for name, value in named.items()}


def _entropy(counts: torch.Tensor) -> float:
    share = counts / counts.sum()
    return -torch.xlogy(share, share).sum().item()


def points(losses) -> tuple[list[int], list[float]]:
    """Steps and mean losses of every ten steps of a run.

    Example:
        >>> points([3.0] * 10 + [2.0] * 5)
        ([10, 15], [3.0, 2.0])
    """
    starts = range(0, len(losses), STEPS_A_POINT)
    parts = [losses[start : start + STEPS_A_POINT] for start in starts]
    means = compact([sum(part) / len(part) for part in parts], digits=4).tolist()
    return [start + len(part) for start, part in zip(starts, parts, strict=True)], means


def draw(steps: int, known: dict[str, float], curves: int) -> go.Figure:
    """The figure before anything is trained: a line for each level, and hidden ones for curves.

    They are there from the start because a line that is added to a live figure later does not
    reach every page.

    Args:
        steps: of a run.
        known: what `levels` returns.
        curves: how many variants can be drawn.
    """
    figure = go.Figure()
    for name, loss in known.items():
        figure.add_scatter(
            x=[0, steps],
            y=[loss, loss],
            name=name,
            mode="lines+text",
            text=["", f"{name}: {loss:.2f}"],
            textposition="top left",
            line={"color": NEUTRAL, "dash": "dot", "width": 1},
            showlegend=False,
        )
    for n in range(curves):
        figure.add_scatter(x=[], y=[], mode="lines+markers", visible=False, **style(n))
    figure.update_layout(
        template=TEMPLATE,
        height=420,
        showlegend=True,
        **headline("Loss while training", "Mean training loss of every ten steps, by variant."),
    )
    figure.update_xaxes(title_text="step", range=[0, steps])
    figure.update_yaxes(title_text="training loss (nats)", range=[0.9, 1.05 * max(known.values())])
    return figure


def read_out(history, steps: int, tokens_per_step: int) -> str:
    """How far a run is: its last loss, and how fast it goes.

    Example:
        >>> from softattn_lib.tasks.training import History
        >>> read_out(History([4.0, 3.0], [1.0, 1.0], seconds=0.5), steps=10, tokens_per_step=64)
        'Step 2 of 10: loss <b>3.00</b> nats, 256 tokens a second.'
    """
    speed = history.step * tokens_per_step / max(history.seconds, 1e-9)
    words = f"Step {history.step} of {steps}: loss <b>{history.losses[-1]:.2f}</b> nats"
    return f"{words}, {speed:,.0f} tokens a second."


class LiveTraining(Widget):
    """Trains when `train` is called or the button is pressed, and draws as it goes.

    Attributes:
        variant: the control whose value is trained next.
        start_button, figure, read_out, error_box: its parts.
        results: {variant: the last `TrainingResult`}.
    """

    def __init__(self, variant_name: str, preset_name: str, seed: int, changes: dict):
        _, self.settings = preset(preset_name, **changes)
        self._preset_name, self._seed, self._changes = preset_name, seed, changes
        name = variant(variant_name).name
        self.results, self._numbers = {}, {}
        corpus = corpus_for(self.settings)
        self.levels = levels(corpus.train.ids, corpus.tokenizer.size)
        options = list(dict.fromkeys((name, *CHOICES)))
        self.figure = live_figure(draw(self.settings.steps, self.levels, len(options)))
        self.variant = ipywidgets.Dropdown(
            options=options, value=name, description="variant", style=WIDE
        )
        self.start_button = ipywidgets.Button(description="Train", icon="play")
        self.start_button.on_click(lambda _: self.train())
        self.read_out = ipywidgets.HTML("Nothing is trained yet.")
        self.error_box = ipywidgets.HTML()
        super().__init__(
            "How low does the loss get, and how fast?",
            [
                ipywidgets.HBox([self.variant, self.start_button]),
                self.figure,
                Fit(),
                self.error_box,
                self.read_out,
            ],
        )

    def train(self):
        """Train the chosen variant, and return its `softattn_lib.tasks.training.TrainingResult`.

        A variant that has been trained before starts anew, and its curve with it.
        """
        from ..tasks.training import train  # seconds, for transformers and accelerate

        name = self.variant.value
        self.start_button.disabled, self.error_box.value = True, ""
        self._clear(name)
        try:
            result = train(
                name,
                self._preset_name,
                seed=self._seed,
                on_progress=partial(self._follow, name),
                **self._changes,
            )
        except Exception as error:
            self.error_box.value = alert(error)
            raise
        finally:
            self.start_button.disabled = False
        self.results[name] = result
        if math.isnan(result.held_out_loss):
            self.read_out.value += f" It diverged within ten steps after step {self._reached}."
        else:
            self.read_out.value += (
                f" On text that was held out: <b>{result.held_out_loss:.2f}</b> nats."
            )
        return result

    def _clear(self, name: str):
        """Take an earlier curve of the variant away, and say what is trained now."""
        line, self._reached = self._line(name), 0
        line.x = line.y = []
        self.read_out.value = f"<b>{html.escape(name)}</b>."

    def _follow(self, name: str, history):
        """Bring curve and read-out up to where a run is."""
        line, self._reached = self._line(name), history.step
        with self.figure.batch_update():
            line.name, line.visible = name, True
            line.x, line.y = points(history.losses)
        progress = read_out(history, self.settings.steps, self.settings.tokens_per_step)
        self.read_out.value = f"<b>{html.escape(name)}</b>. {progress}"

    def _line(self, name: str):
        """The line of a variant: the one that it had before, or the next that is free."""
        # By number: the page gives lines without a name one of its own.
        number = self._numbers.setdefault(name, len(self.levels) + len(self._numbers))
        return self.figure.data[number]

    def twin(self) -> go.Figure:
        """The figure as it is now."""
        return go.Figure(self.figure)


def mount(
    variant_name: str = "softmax", preset_name: str = "mini", *, seed: int = 0, **changes
) -> LiveTraining:
    """The widget for runs on the text of the package, one at a time.

    Args:
        variant_name: what the control `variant` starts with; any name that `variants.variant`
            knows.
        preset_name, seed, changes: as in `softattn_lib.tasks.training.train`.

    Raises:
        KeyError, ValueError: an unknown variant or preset, or changes that do not fit.

    Example:
        >>> widget = mount("l2", steps=20, length=8, held_out_sequences=2)
        >>> result = widget.train()
        >>> widget.figure.data[3].name, widget.figure.data[3].x, result.history.step
        ('l2', (10, 20), 20)
    """
    return LiveTraining(variant_name, preset_name, seed, changes)
