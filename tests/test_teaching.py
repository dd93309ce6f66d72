"""TEACHING.md says what the notebooks and exercises say, and names nothing that is not there."""

import re

import nbformat
import pytest

from softattn_lib.exercises import EXERCISES
from tools import teaching
from tools.notebooks import FOLDER


@pytest.fixture(scope="module")
def page():
    return teaching.PAGE.read_text(encoding="utf-8")


def test_the_page_is_written_from_the_notebooks(page):
    assert page == teaching.page(), "run `python -m tools.teaching`"


def test_the_bank_has_thirty_questions_with_answers(page):
    bank = teaching.questions()
    assert len(bank) >= 30 and len({question.text for question in bank}) == len(bank)
    for question in bank:
        assert question.text in page and question.result and len(question.reason) > 20
        assert question.result in question.choices or len(question.choices) == 1  # a number


def test_every_exercise_is_there_with_its_mistakes(page):
    for name, exercise in EXERCISES.items():
        assert f"**`{name}`**" in page
        assert all(mistake.because in page for mistake in exercise.mistakes)


def test_links_and_exercises_that_are_named_exist(page):
    plans = page[: page.index("## Exercises")]
    assert all((FOLDER / link).exists() for link in re.findall(r"\]\(([^)]+)\)", plans))
    functions = set(re.findall(r"`([a-z_]+)`", plans))
    assert functions and functions <= EXERCISES.keys()


def test_a_prediction_without_a_result_is_found(tmp_path):
    notebook = nbformat.read(FOLDER / "13_looking_back.ipynb", as_version=4)
    notebook.cells = [c for c in notebook.cells if 'reveal("13-shift"' not in c.source]
    nbformat.write(notebook, tmp_path / "13_looking_back.ipynb")
    with pytest.raises(ValueError, match="13-shift"):
        teaching.questions(tmp_path)
