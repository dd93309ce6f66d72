"""Many runs from one YAML file, into one table; stopped, a sweep goes on where it was.

    task: text                      # or recall
    preset: small                   # text only
    variants: [softmax, taylor_4, linear_relu]
    seeds: [0, 1, 2]

What may be added: `settings`, fields of the preset or of `RecallSettings` that are to differ;
`results`, the table, by default the name of this file with the ending csv; and for text: `text`, a
file, or `dataset` and `column`, to train on; `folder`, where each run keeps checkpoints, curve and
model. Paths are relative to the file.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path

import yaml

from softattn_lib.tasks.presets import preset
from softattn_lib.tasks.recall import RecallSettings, recall
from softattn_lib.tasks.records import append_row, read_rows
from softattn_lib.tasks.settings import changed, check_choice, label
from softattn_lib.tasks.text import load_table, text_name
from softattn_lib.variants import VariantUnavailableError, variant

TASKS = ("recall", "text")
TEXT_ONLY = ("text", "dataset", "column", "folder")


@dataclass(frozen=True)
class Plan:
    """A sweep as its file describes it; see the module."""

    task: str
    variants: list[str]
    seeds: list[int]
    results: Path
    preset: str = "recall"
    settings: dict = field(default_factory=dict)
    text: Path | None = None
    dataset: str | None = None
    column: str = "text"
    folder: Path | None = None


def read_plan(file: str | Path) -> Plan:
    """Read a sweep's file, and check all of it before anything runs.

    Raises:
        FileNotFoundError: no such file.
        ValueError, KeyError, VariantUnavailableError: what is wrong in it, named.
    """
    file = Path(file)
    if not file.is_file():
        raise FileNotFoundError(f"file is {str(file)!r}, and there is no such file")
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file} must hold names and values, as in `task: recall`")
    _check_names(file, content)
    for name in ("results", "text", "folder"):
        if name in content:
            content[name] = file.parent / content[name]
    plan = Plan(**{"results": file.with_suffix(".csv")} | content)
    _preset_name(plan)
    for name in plan.variants:
        if chosen := variant(name).unavailable:
            raise VariantUnavailableError(f"variant {name!r} cannot be built: {chosen}")
    return plan


def sweep(file: str | Path, report=None) -> Path:
    """Do the runs of a sweep that its table does not hold yet.

    All variants with the first seed come first, then those with the second. A run that is in the
    table, by variant, settings, text and seed, is left as it is, one that diverged too.

    Args:
        file: see the module and `read_plan`.
        report: called with a line of text before and after each run.

    Returns:
        The path of the table.
    """
    plan, report = read_plan(file), report or (lambda line: None)
    source = load_table(plan.dataset) if plan.dataset else plan.text
    runs = [(name, seed) for seed in plan.seeds for name in plan.variants]
    done = {_key(row) for row in read_rows(plan.results)}
    keys = {run: _key(_expected_row(plan, source, *run)) for run in runs}
    for number, run in enumerate(runs, start=1):
        news = f"[{number}/{len(runs)}] {run[0]} seed {run[1]}"
        if keys[run] in done:
            report(f"{news}: done before")
            continue
        row = _run(plan, source, *run)
        report(f"{news}: held-out loss {row['held_out_loss']}, {row['seconds']} s")
    return plan.results


def _run(plan: Plan, source, name: str, seed: int) -> dict:
    if plan.task == "recall":
        row = recall(name, seed=seed, **plan.settings).row()
        append_row(plan.results, row)
        return row
    from softattn_lib.tasks.training import train

    return train(
        name,
        plan.preset,
        text=source,
        column=plan.column,
        seed=seed,
        folder=plan.folder / f"{name}-seed{seed}" if plan.folder else None,
        results=plan.results,
        **plan.settings,
    ).row()


def _key(row: dict) -> tuple:
    return tuple(str(row.get(name)) for name in ("task", "variant", "preset", "text", "seed"))


def _expected_row(plan: Plan, source, name: str, seed: int) -> dict:
    """The columns by which a run is known in the table."""
    row = {"task": plan.task, "variant": name, "preset": _preset_name(plan), "seed": seed}
    return row | ({"text": text_name(source)} if plan.task == "text" else {})


def _preset_name(plan: Plan) -> str:
    if plan.task == "text":
        return preset(plan.preset, **plan.settings)[0]
    return label("recall", changed(RecallSettings(), plan.settings), RecallSettings())


def _check_names(file: Path, content: dict) -> None:
    legal = [f.name for f in fields(Plan)]
    for name in content:
        if name not in legal:
            raise ValueError(f"{file} has {name!r}; legal are {', '.join(legal)}")
    for name in ("task", "variants", "seeds"):
        if not content.get(name):
            raise ValueError(f"{file} lacks {name!r}")
    check_choice("task", content["task"], TASKS)
    needless = [n for n in (*TEXT_ONLY, "preset") if n in content]
    if content["task"] == "recall" and needless:
        raise ValueError(f"{file} has {needless[0]!r}, which belongs to the task text")
    if content["task"] == "text" and "preset" not in content:
        raise ValueError(f"{file} lacks 'preset'")
    for name, kind in (("variants", str), ("seeds", int)):
        if not isinstance(content[name], list) or not all(
            isinstance(x, kind) for x in content[name]
        ):
            raise ValueError(f"{name} must be a list of {kind.__name__}, got {content[name]!r}")
