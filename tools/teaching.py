"""Write notebooks/TEACHING.md: `python -m tools.teaching`.

The words are in tools/teaching.md.j2. The bank of questions is read from the predictions in the
notebooks and their stored results, the mistakes from the exercises, so that neither can differ from
the course.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import jinja2
import nbformat

from softattn_lib.exercises import EXERCISES
from tools.notebooks import FOLDER, code_cells, names

PAGE = FOLDER / "TEACHING.md"
TEMPLATE = Path(__file__).with_name("teaching.md.j2")
CALL = re.compile(r"\b(predict|reveal)\(\s*\"([^\"]+)\"")
RESULT = re.compile(r"No guess recorded\. Result: (.*?)\.\nBecause (.*)", re.DOTALL)


@dataclass(frozen=True)
class Question:
    """A prediction of the course with its answer.

    Attributes:
        name: as in `predict`, "02-odd-orders".
        notebook: the notebook that asks it.
        text, choices: what is asked, and between what.
        result, reason: what came out, and why.
    """

    name: str
    notebook: str
    text: str
    choices: tuple[str, ...]
    result: str
    reason: str


def questions(folder: Path = FOLDER) -> list[Question]:
    """All predictions of the notebooks in a folder, in reading order, from their stored outputs.

    Raises:
        ValueError: a prediction without a stored result.
    """
    return [question for name in names(folder) for question in _in(folder / f"{name}.ipynb")]


def _in(path: Path) -> list[Question]:
    asked, answered = {}, {}
    for _, cell in code_cells(nbformat.read(path, as_version=4)):
        for kind, name in CALL.findall(cell.source):
            if kind == "predict":
                first, *choices = _text(cell).removeprefix("Predict: ").splitlines()
                asked[name] = first, tuple(choice.removeprefix("- ") for choice in choices)
            else:
                result, reason = RESULT.search(_text(cell)).groups()
                answered[name] = result, " ".join(reason.split())
    if missing := asked.keys() ^ answered.keys():
        raise ValueError(f"{path.name}: predictions without question or result: {missing}")
    return [Question(name, path.stem, *asked[name], *answered[name]) for name in asked]


def _text(cell) -> str:
    """What a cell printed, or the plain text of what it showed."""
    texts = [output.get("text") or output["data"]["text/plain"] for output in cell.outputs]
    return "\n".join(texts)


def page() -> str:
    """TEACHING.md as it should be."""
    environment = jinja2.Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(questions=questions(), exercises=EXERCISES)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
