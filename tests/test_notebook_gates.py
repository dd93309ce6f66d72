"""The checks of the notebooks turn red when they should: shown on altered copies."""

import base64
import copy
import re
import shutil
import subprocess
import sys
from io import BytesIO

import nbformat
import pytest

from tools import notebooks

# The options of `make test`.
MAKEFILE = (notebooks.ROOT / "Makefile").read_text().replace("\\\n", "")
NBVAL = re.search(r"^NBVAL := .*?(--nbval .*)$", MAKEFILE, re.MULTILINE)[1].split()

TEXT = """\
# %% [markdown]
# # A small notebook
#
# **Minutes:** 1
#
# **Goals:** after this notebook you can
#
# - tell a green check from a red one
#
# **Before:** nothing

# %%
import sys

import ipywidgets
import plotly.graph_objects as go

doctor = type("Doctor", (), {"check": lambda self: print("all is well")})()
doctor.check()

# %% [markdown]
# **Predict:** a number, what else? And then an object with an address, and a warning.

# %%
print(f"{1 / 3:.4f}")

# %%
print("careful", file=sys.stderr)
object(), 2**10

# %% [markdown]
# A figure.

# %% tags=["nbval-ignore-output"]
figure = go.Figure(go.Scatter(y=[1, 2, 4]))
figure

# %% [markdown]
# A widget with a picture for pages that are not live.

# %% tags=["nbval-ignore-output"]
slider = ipywidgets.IntSlider(3)
picture = {"application/vnd.plotly.v1+json": figure.to_plotly_json()}
bundle = slider._repr_mimebundle_() | picture
twin = type("Twin", (), {"_repr_mimebundle_": lambda self, **_: bundle})
twin()

# %%
slider.value = 5
print(slider.value)
"""


FIRST_PRINT, FIGURE, WIDGET = 3, 6, 8  # positions of cells above


def draw_dots(figures):
    """Stands in for the browser that draws pictures, which authors alone have."""
    return ["iVBORw0KGgo="] * len(figures)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the project's settings and hooks, and the notebook as our tool stores it."""
    root = tmp_path_factory.mktemp("gates")
    folder = root / "notebooks"
    folder.mkdir()
    shutil.copy(notebooks.ROOT / "pyproject.toml", root)
    shutil.copy(notebooks.FOLDER / "conftest.py", folder)
    (folder / "0_good.py").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebooks, "draw", draw_dots)
        notebooks.run("0_good", folder)
    return folder


@pytest.fixture
def good(folder):
    return nbformat.read(folder / "0_good.ipynb", as_version=4)


def run_nbval(folder, *options):
    """Run the command of `make test`; return the names of the red notebooks and what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *NBVAL, *options, str(folder)],
        cwd=notebooks.ROOT,
        capture_output=True,
        text=True,
    )
    red = set(re.findall(r"^(?:FAILED|ERROR) (?:.*/)?(\w+)\.ipynb", done.stdout, re.MULTILINE))
    assert done.returncode == bool(red), done.stdout + done.stderr
    return red, done.stdout


def alter_number(notebook):
    """Change the last digit in each line of the first output that holds a number."""
    for _, output in notebooks.outputs(notebook):
        for holder, key in ((output, "text"), (output.get("data", {}), "text/plain")):
            if re.search(r"\d", holder.get(key, "")) and "0x" not in holder[key]:
                holder[key] = re.sub(
                    r"(\d)(?!.*\d)", lambda m: str((int(m[1]) + 1) % 10), holder[key]
                )
                return
    raise AssertionError("no number is stored")


def make_raise(notebook):
    notebook.cells[FIRST_PRINT].source += "\nraise ValueError"


# What nbval says


@pytest.mark.slow
def test_nbval_finds_the_altered_number_and_the_raising_cell(folder, good, tmp_path):
    shutil.copy(folder / "conftest.py", tmp_path)
    nbformat.write(good, tmp_path / "1_untouched.ipynb")
    for name, change in (("2_number", alter_number), ("3_raising", make_raise)):
        altered = copy.deepcopy(good)
        change(altered)
        nbformat.write(altered, tmp_path / f"{name}.ipynb")
    red, text = run_nbval(tmp_path)
    assert red == {"2_number", "3_raising"}
    assert "0.3333" in text and "0.3334" in text
    assert re.search(r"^1_untouched.ipynb: \d+\.\d s$", text, re.MULTILINE)


@pytest.mark.slow
def test_nbval_finds_the_notebook_that_takes_too_long(folder):
    red, text = run_nbval(folder, "--notebook-seconds=0.1")
    assert red == {"0_good"}
    assert "0_good.ipynb takes more than 0.1 s" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.names()[1:2])
def test_nbval_finds_an_altered_number_in_a_notebook_of_ours(name, tmp_path):
    shutil.copy(notebooks.FOLDER / "conftest.py", tmp_path)
    shutil.copy(notebooks.FOLDER / f"{name}.ipynb", tmp_path / "1_untouched.ipynb")
    altered = nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)
    alter_number(altered)
    nbformat.write(altered, tmp_path / "2_number.ipynb")
    assert run_nbval(tmp_path)[0] == {"2_number"}


# What the tool stores


def test_untouched_notebook_has_no_problem(folder):
    assert notebooks.problems("0_good", folder) == []


def test_text_stays_as_it_was_written(folder):
    assert (folder / "0_good.py").read_text() == TEXT


@pytest.mark.slow
def test_second_run_changes_nothing_and_draws_nothing(folder, monkeypatch):
    monkeypatch.delattr(notebooks, "draw")
    before = {path.name: path.read_bytes() for path in folder.glob("0_good.*")}
    notebooks.run("0_good", folder)
    assert {path.name: path.read_bytes() for path in folder.glob("0_good.*")} == before


def test_of_widgets_and_figures_the_data_and_a_picture_are_stored(good):
    for position in (FIGURE, WIDGET):
        (output,) = good.cells[position].outputs
        assert set(output.data) == {notebooks.PLOTLY, notebooks.PNG}
    assert "widget" in good.cells[WIDGET].outputs[0].metadata


def test_what_changes_from_run_to_run_is_not_stored(good):
    kinds = [output.get("name", "") for _, output in notebooks.outputs(good)]
    assert "stdout" in kinds and "stderr" not in kinds
    assert "<object at 0xADDRESS>" in nbformat.writes(good)
    assert set(good.metadata) == {"kernelspec", "language_info"}
    hidden = {"jupyter": {"outputs_hidden": True}}
    kept = [cell.metadata for cell in good.cells]
    assert {key for metadata in kept for key in metadata} == {"jupyter", "tags"}
    assert [i for i, metadata in enumerate(kept) if metadata == hidden] == [FIRST_PRINT]


@pytest.mark.slow
def test_raising_cell_leaves_the_stored_notebook_alone(folder, tmp_path, capsys):
    shutil.copy(folder / "0_good.ipynb", tmp_path)
    (tmp_path / "0_good.py").write_text(TEXT.replace("1 / 3", "1 / 0"))
    assert notebooks.main(["0_good"], tmp_path) == 1
    assert "ZeroDivisionError" in capsys.readouterr().out
    stored = (folder / "0_good.ipynb").read_bytes()
    assert (tmp_path / "0_good.ipynb").read_bytes() == stored


def test_changed_figure_without_a_browser_is_a_clear_error(good, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", "/nowhere")
    with pytest.raises(SystemExit, match=r"1 figure\(s\) changed.*kaleido.*Chromium"):
        notebooks.draw([good.cells[FIGURE].outputs[0].data[notebooks.PLOTLY]])


@pytest.mark.slow
def test_a_picture_is_the_same_each_time_it_is_drawn(good):
    pytest.importorskip("kaleido")
    figure = good.cells[FIGURE].outputs[0].data[notebooks.PLOTLY]
    try:
        first, second = notebooks.draw([figure, figure])
    except SystemExit as error:
        pytest.skip(str(error))
    assert first == second
    assert base64.b64decode(first).startswith(b"\x89PNG")


def test_a_picture_with_fewer_colours_looks_the_same(good):
    image = pytest.importorskip("PIL.Image")
    noise = image.effect_noise((80, 60), 40).convert("RGB")
    noise.putalpha(200)
    png, picture = BytesIO(), noise.resize((400, 300))
    picture.save(png, "PNG")
    small = image.open(BytesIO(notebooks.shrink(png.getvalue())))
    assert small.size == picture.size and small.mode == "P"
    pairs = zip(picture.tobytes(), small.convert("RGBA").tobytes(), strict=True)
    assert max(abs(a - b) for a, b in pairs) < 32


# What the pair check and the rules say


def test_pair_check_finds_each_kind_of_difference(folder, tmp_path):
    text = (folder / "0_good.py").read_text()
    stored = tmp_path / "0_good.ipynb"
    shutil.copy(folder / "0_good.ipynb", stored)
    assert notebooks.pair_problems(stored) == ["0_good.py is missing"]
    changes = {
        "the same": text,
        "source": text.replace("2**10", "2**11"),
        "prose": text.replace("A figure.", "The figure."),
        "tags": text.replace(' tags=["nbval-ignore-output"]', "", 1),
        "type": text.replace("# %% [markdown]\n# A figure.", "# %%\n# A figure."),
        "one more": text + "\n# %%\nslider\n",
    }
    found = {}
    for kind, changed in changes.items():
        stored.with_suffix(".py").write_text(changed)
        found[kind] = len(notebooks.pair_problems(stored))
    assert found == {kind: int(kind != "the same") for kind in changes}


def test_command_compares_pairs(folder, tmp_path, capsys):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    assert notebooks.main(["--check"], tmp_path) == 0
    (tmp_path / "0_good.py").write_text(TEXT.replace("1 / 3", "1 / 7"))
    assert notebooks.main(["--check", "0_good"], tmp_path) == 1
    assert "differ from cell 3 on" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        notebooks.main(["0_other"], tmp_path)


def test_size_is_limited(folder, tmp_path):
    path = tmp_path / "0_big.ipynb"
    path.write_bytes(b" " * notebooks.MAX_BYTES)
    assert notebooks.size_problems(path) == ["500000 bytes; the limit is 500000"]
    assert notebooks.size_problems(folder / "0_good.ipynb") == []


def clear(notebook):
    for _, cell in notebooks.code_cells(notebook):
        cell.outputs = []


def store_error(notebook):
    error = nbformat.v4.new_output("error", ename="KeyError", evalue="", traceback=[])
    notebook.cells[FIRST_PRINT].outputs.append(error)


def set_source(position, source):
    return lambda notebook: notebook.cells[position].update(source=source)


def set_tags(position, *tags):
    return lambda notebook: notebook.cells[position].metadata.update(tags=list(tags))


def drop_from_header(text):
    return lambda notebook: notebook.cells[0].update(
        source=notebook.cells[0].source.replace(text, "")
    )


@pytest.mark.parametrize(
    ("check", "change", "says"),
    [
        ("run", store_error, "cell 3 stores an error: KeyError"),
        ("run", lambda n: n.cells[1].update(execution_count=None), "execution counts"),
        ("storage", lambda n: n.metadata.update(widgets={}), "widget state"),
        (
            "storage",
            lambda n: n.cells[WIDGET].outputs[0].data.update({notebooks.WIDGET: {}}),
            "cell 8 stores a widget view",
        ),
        ("storage", lambda n: n.cells[FIGURE].outputs[0].data.pop(notebooks.PNG), "picture"),
        ("storage", set_source(2, "See /home/someone/notes."), "/home/someone"),
        (
            "storage",
            lambda n: n.cells[FIRST_PRINT].outputs[0].update(text="0.3\n/tmp/x.py:3"),
            "/tmp/x.py",
        ),
        ("storage", set_source(FIRST_PRINT, r"open('C:\Users\me')"), r"C:\Users"),
        ("comparison", clear, "0 cells have output that is compared"),
        ("comparison", set_tags(FIRST_PRINT, notebooks.IGNORE), "no other has it"),
        ("comparison", set_tags(FIGURE), "a cell that draws has the tag"),
        ("comparison", set_tags(FIRST_PRINT, "nbval-skip"), "says nbval-skip"),
        ("comparison", set_tags(FIRST_PRINT, "raises-exception"), "says raises-exception"),
        ("comparison", set_source(FIRST_PRINT, "# NBVAL_IGNORE_OUTPUT\n1"), "NBVAL_IGNORE_OUTPUT"),
        (
            "comparison",
            lambda n: n.cells[FIGURE].outputs.append(nbformat.v4.new_output("stream", text="3")),
            "cell 6 draws and prints",
        ),
        ("comparison", lambda n: n.cells[-1].update(outputs=[]), "cell 8 mounts a widget"),
        ("style", set_source(FIRST_PRINT, "%time print(3)"), "not plain Python"),
        ("style", set_source(FIRST_PRINT, "!ls"), "not plain Python"),
        ("style", set_source(FIRST_PRINT, "interact(f, x=3)"), "interact("),
        ("style", set_source(FIRST_PRINT, "widgets.Output()"), "Output("),
        ("style", set_source(FIRST_PRINT, "clear_output()"), "clear_output"),
        ("style", set_source(FIRST_PRINT, "for i in tqdm(range(3)): i"), "tqdm"),
        ("style", set_source(FIRST_PRINT, "x = 1\n" * 16), "16 lines"),
        ("style", set_source(FIRST_PRINT, "x = 1  # " + "-" * 92), "a line of 101 characters"),
        (
            "style",
            lambda n: [cell.update(source="x\n" * 7) for _, cell in notebooks.code_cells(n)],
            "median",
        ),
        ("style", lambda n: n.cells.pop(5), "without prose"),
        ("header", drop_from_header("# A small notebook"), "a title"),
        ("header", drop_from_header("**Minutes:** 1"), "**Minutes:**"),
        ("header", drop_from_header("- tell"), "**Goals:**"),
        ("header", drop_from_header("**Before:** nothing"), "**Before:**"),
        ("header", set_source(1, "import sys"), "doctor.check()"),
    ],
)
def test_each_rule_can_turn_red(good, check, change, says):
    check = getattr(notebooks, f"{check}_problems")
    assert check(good) == []
    change(good)
    assert any(says in line for line in check(good)), check(good)
