"""Every notebook: its pair, what it stores, what of it is compared, and its form."""

import nbformat
import pytest

from tools import notebooks

FOLDERS = [notebooks.FOLDER, notebooks.FOLDER / "solutions", notebooks.FOLDER / "exercises"]
each_notebook = pytest.mark.parametrize(
    "path",
    [folder / f"{name}.ipynb" for folder in FOLDERS for name in notebooks.names(folder)],
    ids=lambda path: str(path.relative_to(notebooks.FOLDER).with_suffix("")),
)


def test_there_are_notebooks():
    assert "00_start_here" in notebooks.names()


@each_notebook
def test_pair_holds_the_same_cells(path):
    assert notebooks.pair_problems(path) == []


@each_notebook
def test_file_is_small(path):
    assert notebooks.size_problems(path) == []


@each_notebook
@pytest.mark.parametrize("check", notebooks.CHECKS, ids=lambda check: check.__name__)
def test_notebook_keeps_the_rules(path, check):
    assert check(nbformat.read(path, as_version=4)) == []
