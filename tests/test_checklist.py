"""What a picky instructor can check by program; notebooks/CHECKLIST.md names where each item is."""

import re

import nbformat
import pytest

from tools.notebooks import FOLDER, code_cells, names, output_text

NOT_PROSE = re.compile(
    r"```.*?```|\$\$.*?\$\$|\$[^$]*\$|`[^`]*`"  # code and formulas
    r"|\]\([^)]*\)|\[\d\d\b[^]]*\]|\(\d+\.\d+\)"  # links, to notebooks and equations
    r"|(?m:^#+ .*$|^\d+\. )",  # headings and counters
    re.DOTALL,
)
NUMBER = re.compile(r"(?<![\w.,/-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w/])")

# Numbers that no cell computes, and where they come from.
GIVEN = {
    "00": {"2025": "the year of the paper"},
    "04": {"2020": "the year of a paper"},
    "08": {"10,000": "the paper's steps", "90,000": "the paper's steps"},
    "10": {
        "275": "the paper's parameters", "32,000": "the paper's vocabulary",
        "1024": "the paper's length", "100,000": "the paper's steps", "90,000": "the paper's steps",
        "60,000": "the paper's steps", "30,000": "the paper's steps",
    },
}  # fmt: skip


def numbers_in_prose(notebook):
    """(cell, number as written) of two digits or more, outside formulas, code, links, headings."""
    for i, cell in enumerate(notebook.cells[1:-1], start=1):
        if cell.cell_type == "markdown":
            text = NOT_PROSE.sub(" ", cell.source)
            for written in NUMBER.findall(text):
                if len(written.replace(".", "").replace(",", "").lstrip("0")) > 1:
                    yield i, written


def said_by_cells(notebook):
    """The numbers in the sources and the outputs of the code cells."""
    text = " ".join(cell.source + " " + output_text(cell) for _, cell in code_cells(notebook))
    return [float(x.replace(",", "")) for x in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?", text)]


def repeats(written, said):
    """Whether a number is one of those said, rounded to its digits."""
    value = float(written.replace(",", ""))
    step = 10.0 ** -len(written.partition(".")[2])
    return any(abs(x - value) <= step / 2 or x == value for x in said)


@pytest.mark.parametrize("name", names())
def test_every_number_in_the_prose_is_said_by_a_cell_or_given(name):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    said, given = said_by_cells(notebook), GIVEN.get(name[:2], {})
    unsaid = [(i, x) for i, x in numbers_in_prose(notebook) if not repeats(x, said)]
    assert [(i, x) for i, x in unsaid if x not in given] == []
    assert given.keys() <= {x for _, x in unsaid}, "a number is given that a cell says"
