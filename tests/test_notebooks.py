"""Every notebook: its pair, what it stores, what of it is compared, and its form."""

import nbformat
import pytest

from tools import notebooks

each_notebook = pytest.mark.parametrize("name", notebooks.names())


def test_there_are_notebooks():
    assert "00_start_here" in notebooks.names()


@each_notebook
def test_pair_holds_the_same_cells(name):
    assert notebooks.pair_problems(notebooks.FOLDER / f"{name}.ipynb") == []


@each_notebook
def test_file_is_small(name):
    assert notebooks.size_problems(notebooks.FOLDER / f"{name}.ipynb") == []


@each_notebook
@pytest.mark.parametrize("check", notebooks.CHECKS, ids=lambda check: check.__name__)
def test_notebook_keeps_the_rules(name, check):
    notebook = nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)
    assert check(notebook) == []
