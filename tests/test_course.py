"""The first and the last cell of every notebook are those of notebooks/course.toml."""

import re
import shutil
import statistics

import jupytext
import pytest

from tools import course
from tools.notebooks import FOLDER, IGNORE, names, tags

COURSE, SYMBOLS = course.read_course()
VERBS = {  # of what can be seen to be done, unlike understand or know
    "bound", "choose", "compute", "count", "decode", "derive", "explain", "fill", "get", "measure",
    "move", "name", "predict", "prove", "read", "rebuild", "recognise", "refute", "run", "say",
    "show", "tell", "throw", "train", "write",
}  # fmt: skip


def reading_minutes(cells):
    """200 words or 15 lines of code a minute; 1 a formula, ¾ a figure or box, ½ another guess."""
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    words = re.findall(
        r"[A-Za-z']{2,}|\d+", re.sub(r"\]\([^)]*\)|\$\$.*?\$\$", "", prose, flags=re.S)
    )
    code = [cell for cell in cells if cell.cell_type == "code"]
    lines = sum(bool(line.strip()) for cell in code for line in cell.source.splitlines())
    figures = sum(IGNORE in tags(cell) for cell in code)
    guesses = prose.count("**Predict")
    return len(words) / 200 + lines / 15 + prose.count("$$") / 2 + 0.75 * figures + 0.5 * guesses


def test_the_table_has_every_notebook_in_order():
    assert list(COURSE) == names()


def test_all_cells_are_as_the_table_says(capsys):
    assert course.main(["--check"]) == 0
    assert "all as the table says" in capsys.readouterr().out


@pytest.mark.parametrize("name", COURSE)
def test_minutes_are_about_what_reading_takes(name):
    measured = reading_minutes(jupytext.read(FOLDER / f"{name}.py").cells)
    assert abs(COURSE[name]["minutes"] - measured) <= 3


@pytest.mark.parametrize("name", COURSE)
def test_goals_are_few_and_can_be_checked(name):
    goals = COURSE[name]["goals"]
    assert 3 <= len(goals) <= 5
    assert {goal.split()[0] for goal in goals} <= VERBS


@pytest.mark.parametrize("name", list(COURSE)[1:-1])
def test_the_short_way_goes_by_sections_that_are_there(name):
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    sections = re.findall(r"^# ## (.+)$", text, re.MULTILINE)
    way = [*COURSE[name]["short_way"], "What you saw"]
    assert len(way) < len(sections) / 2 + 1
    assert [section for section in sections if section in way] == way


@pytest.mark.parametrize("name", COURSE)
def test_what_to_know_before_comes_before(name):
    linked = re.findall(r"\((\d\d_\w+)\.ipynb\)", COURSE[name]["before"])
    assert all(list(COURSE).index(other) < list(COURSE).index(name) for other in linked)


def test_the_symbols_are_those_of_the_table_in_notebook_01():
    cells = jupytext.read(FOLDER / "01_softmax_attention.py").cells
    (table,) = (cell.source for cell in cells if cell.source.startswith("## Symbols"))
    left = " ".join(re.findall(r"(?m)^\| (.*?) \|", table))
    assert set(SYMBOLS) == course.letters(left) - {"x"}  # any row


def test_letters_are_those_of_formulas():
    text = (
        r"$b_{cd}$, $\phi(Q_t)$, $\sigma_t$, $$x^{\otimes n} \tag{3.1}$$ of $\mathrm{softmax}$, `e`"
    )
    assert course.letters(text) == {"b", "Q", "t", "x", "n", r"\phi", r"\sigma"}


@pytest.mark.parametrize("end", course.ENDS)
@pytest.mark.parametrize("place", [0, -1])
def test_an_altered_cell_is_found_and_written_again(tmp_path, end, place):
    name = "03_powers_of_an_inner_product"
    shutil.copy(FOLDER / course.TABLE, tmp_path)
    (tmp_path / "exercises").mkdir()
    (tmp_path / "exercises" / f"{name}.ipynb").touch()
    path = tmp_path / f"{name}{end}"
    before = (FOLDER / path.name).read_text()
    notebook = jupytext.reads(before, fmt=end)
    notebook.cells[place].source += "\nSomething else."
    jupytext.write(notebook, path)
    assert course.differs(path)
    course.update(path)
    assert not course.differs(path)
    assert [cell.source for cell in jupytext.read(path).cells] == [
        cell.source for cell in jupytext.reads(before, fmt=end).cells
    ]


def test_most_notebooks_fit_into_half_an_hour():
    assert statistics.median(entry["minutes"] for entry in COURSE.values()) <= 30
