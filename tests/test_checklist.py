"""What a picky instructor can check by program; notebooks/CHECKLIST.md names where each item is."""

import ast
import inspect
import re
from itertools import pairwise

import nbformat
import pytest

import softattn_lib
from softattn_lib import small_model
from tools import course
from tools.notebooks import (
    FOLDER,
    ROOT,
    code_cells,
    execute,
    is_compared,
    names,
    normalise_output,
    output_text,
)

SOURCES = sorted((ROOT / "softattn_lib").rglob("*.py"))
COURSE, SYMBOLS = course.read_course()
each_notebook = pytest.mark.parametrize("name", names())


def stored(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


# The page itself


PAGE = (FOLDER / "CHECKLIST.md").read_text(encoding="utf-8")


def test_the_page_has_all_thirty_items_each_with_a_test_or_a_judgement():
    rows = re.findall(r"(?m)^\| (\d+) \| (.+) \| (.+) \|$", PAGE)
    assert [int(number) for number, _, _ in rows] == list(range(1, 31))
    assert all("`tests/" in where or "By hand:" in where for _, _, where in rows)


def test_every_test_on_the_page_exists():
    named = set(re.findall(r"`(tests/[^`]*)`", PAGE))
    assert len(named) > 30
    for test in named:
        file, _, function = test.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {getattr(node, "name", "") for node in tree.body}, test


# Items 2 and 4: a second run in the same kernel, and memory


PEAK = """\
import resource, sys
resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**30 if sys.platform == "darwin" else 2**20)
"""


# Their two runs take as long as those of all others together.
SLOWEST = {"10_training_the_ablations", "12_beyond_taylor"}


def run_twice(name):
    """The code cells of a notebook as two runs in one kernel leave them, and its peak in GiB."""
    cells = [cell for _, cell in code_cells(stored(name))]
    again = [nbformat.v4.new_code_cell(cell.source) for cell in cells]
    peak = nbformat.v4.new_code_cell(PEAK)
    execute(nbformat.v4.new_notebook(cells=[*cells, *again, peak]))
    return cells, again, float(peak.outputs[0].data["text/plain"])


def what_is_compared(cell):
    """The outputs of a cell, without what changes from run to run."""
    outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    for output in outputs:
        normalise_output(output)
        output.pop("execution_count", None)
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names() if name not in SLOWEST])
def test_a_second_run_in_the_same_kernel_says_the_same(name):
    if COURSE[name]["needs_model"] and not small_model.is_ready():
        pytest.skip(f"{name} needs the small model")
    cells, again, peak = run_twice(name)
    pairs = [pair for pair in zip(cells, again, strict=True) if is_compared(pair[0])]
    assert pairs
    for first, second in pairs:
        assert what_is_compared(first) == what_is_compared(second), first.source
    assert peak < 2, f"{peak:.1f} GiB"


# Item 13: numbers in the prose


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


@each_notebook
def test_every_number_in_the_prose_is_said_by_a_cell_or_given(name):
    notebook = stored(name)
    said, given = said_by_cells(notebook), GIVEN.get(name[:2], {})
    unsaid = [(i, x) for i, x in numbers_in_prose(notebook) if not repeats(x, said)]
    assert [(i, x) for i, x in unsaid if x not in given] == []
    assert given.keys() <= {x for _, x in unsaid}, "a number is given that a cell says"


# Item 15: no global seed, and no state of a module that a callback could change

CHANGES = {
    "append", "extend", "insert", "pop", "remove", "sort", "clear", "update", "setdefault", "add",
    "discard",
}  # fmt: skip


def root(node):
    """The name at the left end of `name.attribute[index]`; None if there is none."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return getattr(node, "id", None)


def changed_globals(source):
    """The names of a module that its functions rebind, or change a part of."""
    tree = ast.parse(source)
    lines = [line for line in tree.body if isinstance(line, (ast.Assign, ast.AnnAssign))]
    top = {n.id for line in lines for n in ast.walk(line) if is_changed(n, ast.Name)}
    rebound = {name for n in ast.walk(tree) if isinstance(n, ast.Global) for name in n.names}
    changed = [n for n in ast.walk(tree) if is_changed(n, (ast.Attribute, ast.Subscript))]
    calls = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
    changed += [f for f in calls if isinstance(f, ast.Attribute) and f.attr in CHANGES]
    return rebound | {root(node) for node in changed} & top


def is_changed(node, kinds):
    return isinstance(node, kinds) and not isinstance(node.ctx, ast.Load)


@pytest.mark.parametrize(
    "change",
    [
        "global SEEN; SEEN = 3",
        "SEEN[0] = 3",
        "SEEN.x = 3",
        "SEEN[0] += 1",
        "del SEEN[0]",
        "SEEN.append(3)",
    ],
)
def test_a_changed_global_is_found(change):
    assert changed_globals(f"SEEN = []\ndef compute(x):\n    {change}\n") == {"SEEN"}
    assert changed_globals("SEEN = []\ndef compute(x):\n    x[0] = SEEN[0]\n") == set()


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.parent.name == "widgets"], ids=lambda p: p.stem
)
def test_no_function_of_a_widget_changes_a_global(path):
    assert changed_globals(path.read_text(encoding="utf-8")) == set()


@each_notebook
def test_notebooks_attach_no_callbacks_and_change_no_globals(name):
    source = "\n".join(cell.source for _, cell in code_cells(stored(name)))
    assert not re.findall(r"\.(?:observe|on_click|on_submit)\(|\bglobal\b", source)


def test_no_global_seed_is_set():
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    texts |= {name: "\n".join(c.source for _, c in code_cells(stored(name))) for name in names()}
    for where, text in texts.items():
        for before, line in pairwise(text.splitlines()):
            if re.search(r"\b(?:torch|random)\.(?:manual_)?seed\(", line):
                assert "fork_rng" in before, where  # it is set back at the end of the block


# Items 17 and 19: the toy, and beliefs that are tested


@pytest.mark.parametrize("name", [name for name in names() if "01" <= name < "06"])
def test_the_derivation_runs_on_the_toy(name):
    source = "\n".join(cell.source for _, cell in code_cells(stored(name)))
    assert {"toy.q", "toy.k", "toy.v"} <= set(re.findall(r"toy\.\w", source))


def test_beliefs_are_refuted_by_counter_examples():
    said = "".join(output_text(cell) for _, cell in code_cells(stored("13_looking_back")))
    assert said.count("Result: false.") >= 3


# Item 24: letters

# Words of each notebook that say what letters mean which the table of symbols does not have.
EXPLAINED = {
    "00": ["a query $q$ and a key $k$", "its value $v$"],
    "01": [r"$x^{\otimes n}$ | $n$-fold Kronecker power of a row"],
    "02": [
        "for every number $x$", "the polynomial $P_N$", "the radius $R$", "the maximum $m$",
    ],
    "03": [
        "a query $q$ and a key $k$", "products $x_i x_j$ of the entries of a row $x$",
        "two rows $a$ and $b$", "With two more rows, $x$ and $y$",
        r"$\alpha = (\alpha_1, \dots, \alpha_d)$ says how often each entry is a factor",
        "an element-wise weight $w$",
    ],
    "04": ["of a score $x$", "of a key $k$"],
    "05": ["for every number $x$", "for every query $q$ and key $k$", "any $c > 0$"],
    "06": [
        "a single score $x > 0$", "Let $p_s$ be the weights of order $N$ in a row and $w_s$ those",
        "one fixed vector $m$",
    ],
    "07": [
        "the layer's input $x_t$", "a learned column $w$ and number $b$", r"we write $\sigma_t$",
        "any row $y$", "any $c > 0$",
    ],
    "08": [
        r"$\kappa$, the **kernel**", r"$\sigma_t$ on the output", r"$\iota_s$ on the values",
        "a decay $a_{s..t}$", r"l = Q_t K_s^\top / \sqrt d", r"c = \min(l, 5)", "$v$ is $V_s$",
        "$g$ is the $x_t w + b$ of (7.2)", "$m$ a learned number", "$P_{79}$ has the orders",
        "a numerator $y$",
    ],
    "09": [
        "the weights $w$", "a key $k$", "the products $k_i k_j$ of two entries",
        "Draw $P$ random keys",
    ],
    "10": ["Near a loss $L$"],
    "12": [
        r"p(x) = \sum_{n=0}^{N} c_n\, x^n", r"l_{ts} = Q_t K_s^\top", r"\sum_{u \le t}",
        "A **square** $q(s)^2$", r"q_1 + i\, q_2", r"takes $(q \cdot k)^n$",
        "an $A$ that the model learns",
    ],
}  # fmt: skip


@each_notebook
def test_every_letter_is_in_the_table_of_symbols_or_explained_where_it_is_first_used(name):
    prose = [c.source for c in stored(name).cells[1:-1] if c.cell_type == "markdown"]
    used = course.letters("\n\n".join(prose)) - SYMBOLS.keys()
    explained = set()
    for words in EXPLAINED.get(name[:2], []):
        place = next(i for i, text in enumerate(prose) if words in text)
        formula = words if "$" in words else f"${words}$"
        new = course.letters(formula) - SYMBOLS.keys() - explained
        assert new, f"explained twice: {words}"
        earlier = course.letters("\n\n".join(prose[:place]))
        assert not new & earlier, f"used before they are explained: {new & earlier}"
        explained |= new
    assert used == explained


def test_the_table_of_symbols_has_shapes():
    prose = [cell.source for cell in stored("01_softmax_attention").cells]
    (table,) = (text for text in prose if text.startswith("## Symbols"))
    lines = [line for line in table.splitlines() if line.startswith("|")]
    title, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    assert title == ["symbol", "meaning", "shape", "in code"]
    for symbol, meaning, shape, code in rows:
        is_size_or_step = course.letters(symbol) <= {*"TtsdenND"}
        assert meaning and code and (shape or is_size_or_step), symbol


# Items 29 and 30: what is kept up


def test_every_function_that_the_package_exports_has_an_example():
    public = {n: f for n, f in vars(softattn_lib).items() if inspect.isfunction(f)}
    assert len(public) > 20
    assert [n for n, f in public.items() if ">>> " not in (inspect.getdoc(f) or "")] == []


@pytest.mark.parametrize(
    "path, words",
    [
        ("LICENSE", "MIT License"),
        ("LICENSE-PROSE", "Creative Commons"),
        ("CITATION.cff", "preferred-citation"),
        ("CHANGELOG.md", "## Unreleased"),
        (".github/ISSUE_TEMPLATE/problem.yml", "softattn doctor"),
    ],
)
def test_files_that_a_reader_looks_for(path, words):
    assert words in (ROOT / path).read_text(encoding="utf-8")
