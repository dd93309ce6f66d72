"""Curves of trained variants: the mean over the seeds as a line, the range of the seeds as a band.

Reads the table that `python -m tools.curves` makes: of every ten steps the mean training loss and
the largest gradient norm. Where a run has diverged the mean ends, and the read-out says so.
"""

import html
from dataclasses import dataclass
from functools import partial

import numpy as np
import plotly.graph_objects as go

from ..tasks.records import Summary
from ..theme import NEUTRAL, TEMPLATE, compact, headline, style
from .base import WIDE, Explorer, ipywidgets

REFERENCE = "softmax"
WITHOUT_NORM = ("gate", "gate_without_1_over_t", "1_over_t", "no_denominator")
CLAMPED = tuple(f"{name}_clamp5" for name in WITHOUT_NORM)
GROUPS = {  # name: (sweep, variants)
    "a norm in the denominator's place": ("small", (REFERENCE, "l2", "rms", "layer")),
    "a gate, 1/t, or nothing in its place": ("small", (REFERENCE, *WITHOUT_NORM)),
    "the same, scores clamped at 5": ("small", (REFERENCE, *CLAMPED)),
    "feature maps in the place of exp": (
        "small",
        (REFERENCE, "linear_relu", "linear_elu", "linear_cosine", "cosine"),
    ),
    "powers in the place of exp": ("small", (REFERENCE, "power_2", "power_4", "power_2_decay")),
    "even orders of the series": (
        "small",
        (REFERENCE, "taylor_2", "taylor_4", "taylor_6", "taylor_8", "taylor_10"),
    ),
    "odd orders of the series": ("small", (REFERENCE, "taylor_1", "taylor_3", "taylor_2")),
    "under stress": ("stability", (REFERENCE, "l2", *WITHOUT_NORM)),
    "under stress, scores clamped at 5": ("stability", (REFERENCE, "l2", *CLAMPED)),
}
LOSS, LOG, DIFFERENCE, NORM = "loss", "ln loss", "difference", "norm"
SHOWN = {
    "the loss, in nats": LOSS,
    "the logarithm of the loss, the paper's axis": LOG,
    "the loss minus softmax's": DIFFERENCE,
    "the gradient norm": NORM,
}
AXES = {
    LOSS: "training loss (nats)",
    LOG: "ln of the training loss",
    DIFFERENCE: "loss minus softmax's (nats)",
    NORM: "largest gradient norm of ten steps",
}
MAX_LINES = max(len(names) for _, names in GROUPS.values())
MAX_FROM_STEP = 300
LAST = 50  # steps that the read-out averages over
COLUMNS = ("sweep", "variant", "seed", "step", "train_loss", "largest_gradient_norm")


@dataclass(frozen=True)
class Curve:
    """One variant, all its seeds, the n points of the steps that are shown.

    Attributes:
        shown: (seeds, n) what is drawn; NaN from where a run has diverged.
        mean: (n,) over the seeds, NaN as soon as one of them is.
        lowest, highest: (n,) of the seeds that go on.
        last_losses: one a seed, the mean training loss of the last 50 steps, in nats.
        largest_norm: the largest gradient norm in the steps shown.
        diverged: {seed: the last step with a loss that is a number}.
    """

    shown: np.ndarray
    mean: np.ndarray
    lowest: np.ndarray
    highest: np.ndarray
    last_losses: Summary
    largest_norm: float
    diverged: dict[str, int]


@dataclass(frozen=True)
class Curves:
    """The curves of one group: {variant: curve}, and the variants that have no runs."""

    group: str
    show: str
    steps: np.ndarray  # (n,), the last one of each ten
    curves: dict[str, Curve]
    missing: tuple[str, ...]


def compute(rows, group: str = next(iter(GROUPS)), show: str = LOSS, from_step: int = 0) -> Curves:
    """The curves of a group of variants.

    Args:
        rows: of the table, as `softattn_lib.tasks.records.read_rows` gives them.
        group: one of `GROUPS`.
        show: one of the values of `SHOWN`.
        from_step: the step after which the curves begin.

    Raises:
        ValueError: no rows; columns missing; an unknown group or kind; no run of softmax, or none
            with the seed of another variant, to compare with; runs that end before `from_step`.

    Example:
        >>> row = {"sweep": "small", "seed": "0", "step": "10", "largest_gradient_norm": "1"}
        >>> rows = [{**row, "variant": "softmax", "train_loss": "3"}]
        >>> rows += [{**row, "variant": "l2", "train_loss": "4"}]
        >>> result = compute(rows, show="difference")
        >>> {name: curve.mean.tolist() for name, curve in result.curves.items()}
        {'softmax': [0.0], 'l2': [1.0]}
    """
    _check(rows, group, show)
    sweep, names = GROUPS[group]
    runs = {name: _runs(rows, sweep, name) for name in names}
    missing = tuple(name for name in names if not runs[name])
    if REFERENCE in missing:
        raise ValueError(f"rows have no run of {REFERENCE!r} in the sweep {sweep!r}")
    steps = np.array(sorted({n for seeds in runs.values() for run in seeds.values() for n in run}))
    if from_step >= steps[-1]:
        raise ValueError(f"from_step is {from_step}, and the runs end at step {steps[-1]}")
    curves = {
        name: _curve(name, runs[name], runs[REFERENCE], steps, show, from_step)
        for name in names
        if name not in missing
    }
    return Curves(group, show, steps[steps > from_step], curves, missing)


def _check(rows, group, show) -> None:
    if not rows:
        raise ValueError(
            "rows is empty; the table experiments/curves.csv is made by `python -m tools.curves` "
            "from the runs of `softattn sweep`"
        )
    if lacking := [name for name in COLUMNS if name not in rows[0]]:
        raise ValueError(f"rows lack the columns {', '.join(lacking)}")
    if group not in GROUPS:
        raise ValueError(f"group must be one of {', '.join(GROUPS)}; got {group!r}")
    if show not in AXES:
        raise ValueError(f"show must be one of {', '.join(AXES)}; got {show!r}")


def _runs(rows, sweep: str, name: str) -> dict[str, dict[int, tuple[float, float]]]:
    """{seed: {step: (loss, largest gradient norm)}} of one variant."""
    runs: dict[str, dict] = {}
    for row in rows:
        if row["sweep"] == sweep and row["variant"] == name:
            numbers = float(row["train_loss"]), float(row["largest_gradient_norm"])
            runs.setdefault(row["seed"], {})[int(row["step"])] = numbers
    return runs


def _curve(name, runs, reference, steps, show, from_step) -> Curve:
    losses, norms = _grid(runs, runs, steps)
    if show == DIFFERENCE:
        seeds = [seed for seed in runs if seed in reference]
        if not seeds:
            raise ValueError(f"rows have no seed that {name!r} and {REFERENCE!r} both ran with")
        shown = _grid(runs, seeds, steps)[0] - _grid(reference, seeds, steps)[0]
    else:
        shown = {LOSS: losses, LOG: np.log(losses), NORM: norms}[show]
    inside = steps > from_step
    shown = shown[:, inside]
    return Curve(
        shown=shown,
        mean=shown.mean(0),
        lowest=np.fmin.reduce(shown),  # of a NaN and a number, the number
        highest=np.fmax.reduce(shown),
        last_losses=Summary.of(losses[:, steps > steps[-1] - LAST].mean(-1).tolist()),
        largest_norm=np.fmax.reduce(norms[:, inside], axis=None),
        diverged={
            seed: int(steps[np.isfinite(loss)].max(initial=0))
            for seed, loss in zip(runs, losses, strict=True)
            if not np.isfinite([loss for loss, _ in runs[seed].values()]).all()
        },
    )


def _grid(runs, seeds, steps) -> tuple[np.ndarray, np.ndarray]:
    """Losses and norms, (seeds, steps) each; NaN where there is none, or one that is not finite."""
    nothing = (np.nan, np.nan)
    grid = np.array([[runs[seed].get(step, nothing) for step in steps.tolist()] for seed in seeds])
    grid[~np.isfinite(grid)] = np.nan
    return grid[..., 0], grid[..., 1]


def draw(result: Curves, figure=None) -> go.Figure:
    """A line and a band for each variant; softmax is grey.

    Traces: 2 n is the band of the n-th variant and 2 n + 1 its line. Those that the group does not
    need are hidden.

    Args:
        result: what to show.
        figure: an earlier figure of this function, changed in place; None makes a new one.
    """
    figure = _empty() if figure is None else figure
    curves = [*result.curves.items()] + [None] * (MAX_LINES - len(result.curves))
    for n, named in enumerate(curves):
        band, line = figure.data[2 * n : 2 * n + 2]
        band.visible = line.visible = named is not None
        if named is None:
            band.x = band.y = line.x = line.y = []
            line.name = ""
            continue
        name, curve = named
        there = ~np.isnan(curve.lowest)
        x = result.steps[there].tolist()
        band.x = x + x[::-1]
        band.y = compact(np.append(curve.lowest[there], curve.highest[there][::-1]))
        line.x, line.y, line.name = result.steps.tolist(), compact(curve.mean), name
    figure.update_yaxes(title_text=AXES[result.show])
    figure.update_yaxes(type="log" if result.show == NORM else "linear")
    figure.update_layout(headline("Training curves by variant", _caption(result)))
    return figure


def _empty() -> go.Figure:
    """The figure without what the controls decide."""
    figure = go.Figure()
    for n in range(MAX_LINES):
        look = style(n - 1) if n else {"line": {"color": NEUTRAL, "dash": "solid", "width": 3}}
        figure.add_scatter(
            mode="lines",
            fill="toself",
            fillcolor=look["line"]["color"],
            opacity=0.2,
            line={"width": 0},
            showlegend=False,
            hoverinfo="skip",
        )
        figure.add_scatter(mode="lines", line=look["line"], showlegend=True)
    figure.update_layout(template=TEMPLATE, height=440)
    figure.update_xaxes(title_text="step")
    return figure


def _caption(result: Curves) -> str:
    counts = {len(curve.last_losses.values) for curve in result.curves.values()}
    number = " to ".join(map(str, sorted({min(counts), max(counts)})))
    number += " seed" if counts == {1} else " seeds"
    group = result.group[0].upper() + result.group[1:]
    return f"{group}: mean of {number}, band from the lowest to the highest."


def read_out(result: Curves) -> str:
    """A table: the last losses of each variant, its largest gradient norm, runs that diverged."""
    rows = [_table_row(name, curve) for name, curve in result.curves.items()]
    rows += [f"<td>{html.escape(name)}</td><td colspan=3>no runs</td>" for name in result.missing]
    return (
        f"<table><tr><th>variant</th><th>loss of the last {LAST} steps, mean</th>"
        "<th>lowest to highest</th><th>largest gradient norm shown</th></tr>"
        + "".join(f"<tr>{row}</tr>" for row in rows)
        + "</table>"
    )


def _table_row(name: str, curve: Curve) -> str:
    last, norm = curve.last_losses, curve.largest_norm
    mean, spread = f"{last.mean:.3f}", f"{last.lowest:.3f} to {last.highest:.3f}"
    if curve.diverged:
        mean = f"{len(curve.diverged)} of {len(last.values)} diverged"
        spread = ", ".join(f"seed {s} after step {step}" for s, step in curve.diverged.items())
    largest = "none" if np.isnan(norm) else f"{norm:,.3g}"
    cells = (html.escape(name), mean, html.escape(spread), largest)
    return "".join(f"<td>{cell}</td>" for cell in cells)


def mount(rows) -> Explorer:
    """The widget, with the controls `group`, `show` and `from_step`; rows as in `compute`.

    Example:
        >>> row = {"sweep": "small", "seed": "0", "train_loss": "3", "largest_gradient_norm": "1"}
        >>> rows = [{**row, "variant": "softmax", "step": step} for step in ("10", "20")]
        >>> widget = mount(rows)
        >>> widget.from_step.value = 10
        >>> widget.figure.data[1].x
        (20,)
    """
    return Explorer(
        question="Which variants end where softmax ends, and which only look as if they did?",
        controls={
            "group": ipywidgets.Dropdown(options=list(GROUPS), description="group", style=WIDE),
            "show": ipywidgets.Dropdown(options=SHOWN, value=LOSS, description="show", style=WIDE),
            "from_step": ipywidgets.IntSlider(
                0, 0, MAX_FROM_STEP, 10, description="from step", style=WIDE
            ),
        },
        compute=partial(compute, rows),
        draw=draw,
        read_out=read_out,
        conclusion="the bands of ... lie on softmax's at the end, those of ... do not; and on the "
        "logarithmic axis the gaps look ...",
        answer=_answer(rows),
    )


def _answer(rows) -> str:
    """Which variants cannot be told from softmax by the last 50 steps of this table."""
    last = {}
    for group, (sweep, _) in GROUPS.items():
        if sweep == "small":
            last |= {n: curve.last_losses for n, curve in compute(rows, group).curves.items()}
    reference = last.pop(REFERENCE)
    tied = [name for name, losses in last.items() if losses.overlaps(reference)]
    return (
        f"In this table the last losses of {', '.join(tied) or 'no other variant'} overlap with "
        "softmax's from seed to seed, and those of the others do not. Smaller: near a loss L the "
        "logarithm divides every gap by L, and the order stays."
    )
