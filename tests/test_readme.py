"""The README is true: its examples run, its tables name what there is, its commands exist."""

import ast
import doctest
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_examples_run():
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted > 5 and results.failed == 0


@pytest.mark.slow
def test_the_page_on_a_kernel_of_your_own_runs():
    page = ROOT / "notebooks" / "your_own_kernel.md"
    results = doctest.testfile(str(page), module_relative=False)
    assert results.attempted > 15 and results.failed == 0


def header_minutes(path):
    return int(re.search(r"\*\*Minutes:\*\* (\d+)", path.read_text(encoding="utf-8"))[1])


def test_the_tables_of_notebooks_list_each_with_its_minutes():
    there = sorted((ROOT / "notebooks").glob("[0-9]*.py"))
    expected = [(path.stem, str(header_minutes(path))) for path in there]
    row = r"\| \[\w+\]\(notebooks/(\w+)\.ipynb\) \| (\d+) \|"
    assert re.findall(row, README) == expected
    start = there[0].read_text(encoding="utf-8")
    assert re.findall(r"\| \[.+\]\((\w+)\.ipynb\) \| .+ \| (\d+) \|", start) == expected[1:]


def test_the_table_of_the_library_lists_each_module():
    listed = set(re.findall(r"^\| `([\w/.]+)` \|", README, re.MULTILINE))
    library = ROOT / "softattn_lib"
    modules = {path.name for path in library.glob("[a-z]*.py")}
    folders = {f"{path.parent.name}/" for path in library.glob("*/__init__.py")}
    assert listed == modules | folders


def test_every_module_says_what_it_is():
    for path in (ROOT / "softattn_lib").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):.*## ", makefile, re.MULTILINE))
    named = set(re.findall(r"`?make ([a-z]+)", README)) - {"and"}
    assert named and named <= targets


@pytest.mark.parametrize("page", ["README.md", "notebooks/your_own_kernel.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert links
    for link in links:
        assert ((ROOT / page).parent / link).exists(), link


def test_the_numbers_about_speed_are_those_of_the_table():
    results = json.loads((ROOT / "benchmarks" / "results" / "amd-epyc-2-cores.json").read_text())
    results = results["targets"]
    ratio = {(r["name"], r["threads"]): float(r["ratio"]) for r in results}
    reached = sum(r["verdict"] == "reached" for r in results)
    for text in (
        f"{ratio['forward-d16-o2-4k', 1]:.1f} times as fast as softmax",
        f"and {ratio['forward-d16-o2-16k', 1]:.1f} times at 16,384",
        f"at 4,096 is {ratio['training-d16-o2-4k', 1]:.1f} times as fast",
        f"Of its {len(results)} targets {reached} are reached",
    ):
        assert text in " ".join(README.split()), text
