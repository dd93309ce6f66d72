"""Re-execute, normalise and check the paired notebooks.

    python -m tools.notebooks [NAME ...]    run the text files and write the .ipynb files
    python -m tools.notebooks --check       only compare the two files of each pair

The text file (py:percent) of a pair is the source. The .ipynb file holds the same cells and their
outputs, in a form that a second run of unchanged code reproduces byte for byte.

Each `*_problems` function returns one line of text for everything it finds wrong.
"""

import argparse
import ast
import asyncio
import base64
import json
import os
import re
import statistics
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "notebooks"
SANITIZE = ROOT / "tests" / "sanitize.cfg"

PLOTLY = "application/vnd.plotly.v1+json"
WIDGET = "application/vnd.jupyter.widget-view+json"
PNG = "image/png"
IGNORE = "nbval-ignore-output"
# Beyond what nbval leaves out by itself (pictures and widget views).
NOT_COMPARED = (PLOTLY, "text/html", "image/svg+xml", "stderr")

MAX_BYTES = 500_000
MIN_COMPARED = 3
MAX_LINES = 15
MAX_MEDIAN_LINES = 6
MAX_WIDTH = 100  # of a line of code, so that none has to be scrolled
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}

LOCAL_PATH = re.compile(r"(?<![\w.~])/(?:home|root|work|tmp|Users)/\S*|\b[CD]:\\+\w*")
FORBIDDEN = re.compile(r"\b(?:interact|interactive|interactive_output|Output)\(|clear_output|tqdm")
STEERS_NBVAL = re.compile(r"\bnbval[-_][\w-]+|\braises-exception\b", re.IGNORECASE)
HEADER = {
    "a title, `# Title`": r"\A# \S",
    "a line `**Minutes:** 10`": r"(?m)^\*\*Minutes:\*\* \d+$",
    "`**Goals:**` and a list below it": r"(?m)^\*\*Goals:\*\*.*\n+- \S",
    "a line `**Before:** what to know`": r"(?m)^\*\*Before:\*\* \S",
}


def names(folder=FOLDER):
    """Names, without suffix, of the numbered notebooks that have at least one file of the pair."""
    return sorted({p.stem for p in folder.glob("[0-9]*") if p.suffix in (".ipynb", ".py")})


def anchor(heading):
    """The anchor of a heading as Jupyter makes it."""
    return heading.replace(" ", "-")


def new_learner(folder):
    """The environment of a kernel in which nothing is guessed and no exercise is solved yet."""
    return {"SOFTATTN_LEARNER": str(folder)}


# Running and writing


def run(name, folder=FOLDER):
    """Execute the text file in a fresh kernel and write both files; a raising cell writes none."""
    from jupytext.cli import jupytext as jupytext_command

    notebook = jupytext.read(folder / f"{name}.py")
    target = folder / f"{name}.ipynb"
    old_pictures = pictures(nbformat.read(target, as_version=4)) if target.exists() else {}
    execute(notebook, folder)
    normalise(notebook)
    add_pictures(notebook, old_pictures)
    nbformat.write(notebook, target)
    jupytext_command(["--quiet", "--sync", str(target)])


def execute(notebook, folder=FOLDER, **variables):
    """Run a notebook in place, in a fresh kernel of a new learner, with more variables if given."""
    from nbclient import NotebookClient

    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
    )
    with tempfile.TemporaryDirectory() as empty:
        client.execute(env=os.environ | new_learner(empty) | variables)


def normalise(notebook):
    """Drop in place all that changes from run to run, or that only a live page can show."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number:03d}"
        cell.metadata = nbformat.from_dict({"tags": tags(cell)} if tags(cell) else {})
        if answers(notebook, number):
            cell.metadata["jupyter"] = {"outputs_hidden": True}  # until it runs
        if cell.cell_type == "code":
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
            for output in cell.outputs:
                normalise_output(output)


def normalise_output(output):
    """Mask random text; of a figure or a widget keep the plotly data alone."""
    if "text" in output:
        output.text = mask(output.text)
    data = output.get("data", {})
    if data.pop(WIDGET, None):
        output.metadata["widget"] = True  # remembered for the rule on the cell after a widget
    if PLOTLY in data:
        output.data = nbformat.from_dict({PLOTLY: normalise_figure(data[PLOTLY])})
    elif "text/plain" in data:
        data["text/plain"] = mask(data["text/plain"])


def normalise_figure(figure):
    """Drop random names, and the defaults of trace kinds that the figure does not have (20 kB)."""
    for trace in figure["data"]:
        trace.pop("uid", None)
    kinds = {trace.get("type", "scatter") for trace in figure["data"]}
    template = figure["layout"].get("template", {})
    if "data" in template:
        template["data"] = {k: v for k, v in template["data"].items() if k in kinds}
    return figure


def mask(text):
    """Apply the patterns that nbval applies when it compares."""
    patterns = re.findall(r"^regex: (.*)\nreplace: (.*)$", SANITIZE.read_text(), re.MULTILINE)
    for pattern, replacement in patterns:
        text = re.sub(pattern, replacement, text)
    return text


def pictures(notebook):
    """The stored pictures, by the figure that each one shows."""
    return {
        figure_key(output): output.data[PNG]
        for output in figure_outputs(notebook)
        if PNG in output.data
    }


def add_pictures(notebook, old):
    """Put a PNG beside each figure, the old one where the figure did not change."""
    outputs = figure_outputs(notebook)
    new = [output for output in outputs if figure_key(output) not in old]
    drawn = draw([output.data[PLOTLY] for output in new]) if new else []
    old = old | {figure_key(output): png for output, png in zip(new, drawn, strict=True)}
    for output in outputs:
        output.data[PNG] = old[figure_key(output)]


def figure_outputs(notebook):
    return [output for _, output in outputs(notebook) if PLOTLY in output.get("data", {})]


def figure_key(output):
    return json.dumps(output.data[PLOTLY], sort_keys=True)


def draw(figures):
    """PNG of each figure in base64, drawn in a headless Chromium."""
    try:
        return asyncio.run(draw_all(figures))
    except (ImportError, RuntimeError) as error:
        raise SystemExit(
            f"{len(figures)} figure(s) changed, and to draw their pictures you need kaleido "
            f"and pillow (the extra `author`) and a Chromium or Chrome: {error}"
        ) from error


async def draw_all(figures):
    from kaleido import Kaleido

    async with Kaleido(n=1, mathjax=False) as browser:
        drawn = [await draw_one(browser, figure) for figure in figures]
    return [base64.b64encode(shrink(png)).decode() for png in drawn]


async def draw_one(browser, figure):
    layout = figure["layout"]
    size = {"width": layout.get("width", 700), "height": layout.get("height", 420)}
    parts = {"data": figure["data"], "layout": layout}
    return await browser.calc_fig(parts, opts={"format": "png", "scale": 1, **size})


def shrink(png):
    """The same picture with 256 colours, a fifth of the size."""
    from PIL import Image

    small = BytesIO()
    picture = Image.open(BytesIO(png)).quantize(256, method=Image.Quantize.FASTOCTREE)
    picture.save(small, "PNG", optimize=True)
    return small.getvalue()


# Checking


def problems(name, folder=FOLDER):
    """Everything that is wrong with a notebook and its pair."""
    path = folder / f"{name}.ipynb"
    found = pair_problems(path)
    if path.exists():
        notebook = nbformat.read(path, as_version=4)
        found += size_problems(path) + [line for check in CHECKS for line in check(notebook)]
    return found


def pair_problems(path):
    """The two files of a pair hold the same cells: type, source and tags."""
    pair = (path, path.with_suffix(".py"))
    if missing := [f"{p.name} is missing" for p in pair if not p.exists()]:
        return missing
    stored, text = (
        [(c.cell_type, c.source, tags(c)) for c in jupytext.read(p).cells] for p in pair
    )
    if stored == text:
        return []
    same = [a == b for a, b in zip(stored, text, strict=False)]
    first = same.index(False) if False in same else len(same)
    return [f"{path.name} and its .py differ from cell {first} on: edit the .py, `make notebooks`"]


def size_problems(path):
    """The .ipynb file stays small enough to be shown on a web page."""
    size = path.stat().st_size
    return [f"{size} bytes; the limit is {MAX_BYTES}"] if size >= MAX_BYTES else []


def run_problems(notebook):
    """Every code cell ran once, in order, and none raised."""
    counts = [cell.execution_count for _, cell in code_cells(notebook)]
    found = [
        f"cell {i} stores an error: {output.ename}"
        for i, output in outputs(notebook)
        if output.output_type == "error"
    ]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"execution counts are {counts}, not 1 to {len(counts)}")
    return found


def storage_problems(notebook):
    """No widget state, no path of one machine, and a picture beside each figure."""
    found = ["the metadata hold widget state"] if "widgets" in notebook.metadata else []
    for i, output in outputs(notebook):
        data = output.get("data", {})
        if WIDGET in data:
            found.append(f"cell {i} stores a widget view")
        if PLOTLY in data and PNG not in data:
            found.append(f"cell {i} stores a figure without a picture beside it")
    for i, cell in enumerate(notebook.cells):
        for match in LOCAL_PATH.finditer(cell.source + "\n" + output_text(cell)):
            found.append(f"cell {i} holds a path of one machine: {match.group()}")
    return found


def comparison_problems(notebook):
    """Enough is compared, and no tag or comment keeps output from it that could be compared."""
    cells = code_cells(notebook)
    found = []
    number = sum(is_compared(cell) for _, cell in cells)
    if number < MIN_COMPARED:
        found.append(f"{number} cells have output that is compared; at least {MIN_COMPARED} must")
    following = [cell for _, cell in cells[1:]] + [None]
    for (i, cell), after in zip(cells, following, strict=True):
        tagged = IGNORE in tags(cell)
        if tagged != (shows_figure(cell) or mounts_widget(cell)):
            found.append(f"cell {i}: a cell that draws has the tag {IGNORE}, and no other has it")
        if tagged and any(output.output_type == "stream" for output in cell.outputs):
            found.append(f"cell {i} draws and prints: what it prints is not compared")
        if mounts_widget(cell) and not (after and is_compared(after)):
            found.append(f"cell {i} mounts a widget, and the next code cell compares nothing")
        others = [tag for tag in tags(cell) if tag != IGNORE]
        for word in STEERS_NBVAL.findall("\n".join([cell.source, *others])):
            found.append(f"cell {i} says {word}; only the tag {IGNORE} is allowed")
    return found


def style_problems(notebook):
    """Short cells of plain Python, prose between them, and no output that cannot be compared."""
    found = []
    lengths = []
    for i, cell in code_cells(notebook):
        lengths.append(sum(1 for line in cell.source.splitlines() if line.strip()))
        if lengths[-1] > MAX_LINES:
            found.append(f"cell {i} has {lengths[-1]} lines; at most {MAX_LINES}")
        if (width := max(map(len, cell.source.splitlines()), default=0)) > MAX_WIDTH:
            found.append(f"cell {i} has a line of {width} characters; at most {MAX_WIDTH}")
        for word in FORBIDDEN.findall(cell.source):
            found.append(f"cell {i} uses {word}")
        try:
            ast.parse(cell.source)
        except SyntaxError:
            found.append(f"cell {i} is not plain Python: no magics, no shell lines")
    if lengths and statistics.median(lengths) > MAX_MEDIAN_LINES:
        found.append(f"the median code cell has over {MAX_MEDIAN_LINES} lines")
    kinds = "".join(cell.cell_type[0] for cell in notebook.cells)
    for run_of_code in re.finditer("ccc+", kinds):
        found.append(f"cell {run_of_code.start()} starts more than 2 code cells without prose")
    return found


def header_problems(notebook):
    """The first cell says what to expect; the first code cell checks the installation."""
    first = notebook.cells[0]
    text = first.source if first.cell_type == "markdown" else ""
    found = [
        f"the first cell lacks {part}"
        for part, pattern in HEADER.items()
        if not re.search(pattern, text)
    ]
    if not any("doctor.check(" in cell.source for _, cell in code_cells(notebook)[:1]):
        found.append("the first code cell does not call doctor.check()")
    return found


CHECKS = (run_problems, storage_problems, comparison_problems, style_problems, header_problems)


# Looking into notebooks


def tags(cell):
    return list(cell.metadata.get("tags", []))


def answers(notebook, number):
    """Whether the output of a cell says what the reader was asked to predict."""
    cell, before = notebook.cells[number], notebook.cells[number - 1]
    asked = before.cell_type == "markdown" and "**Predict" in before.source
    return cell.cell_type == "code" and (asked or "reveal(" in cell.source)


def code_cells(notebook):
    """Pairs of a code cell's position and the cell."""
    return [(i, cell) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"]


def outputs(notebook):
    """Pairs of a cell's position and one output."""
    return [(i, output) for i, cell in code_cells(notebook) for output in cell.outputs]


def output_text(cell):
    """All that the outputs of a cell hold, pictures apart."""
    parts = []
    for output in cell.get("outputs", []):
        parts.append(output.get("text", ""))
        for kind, value in output.get("data", {}).items():
            if kind != PNG:
                parts.append(value if isinstance(value, str) else json.dumps(value))
    return "\n".join(parts)


def shows_figure(cell):
    return any(PLOTLY in output.get("data", {}) for output in cell.outputs)


def mounts_widget(cell):
    """Whether the last run showed a live widget (normalise_output leaves the mark)."""
    return any("widget" in output.get("metadata", {}) for output in cell.outputs)


def is_compared(cell):
    """Whether nbval compares something here that could differ."""
    return IGNORE not in tags(cell) and any(says_something(output) for output in cell.outputs)


def says_something(output):
    data = {
        kind: value
        for kind, value in output.get("data", {}).items()
        if kind not in (*NOT_COMPARED, PNG) and not str(value).startswith("<")  # <... object>
    }
    return output.get("name") == "stdout" or bool(data)


# Command line


def run_and_check(name, folder):
    from nbclient.exceptions import CellExecutionError

    try:
        run(name, folder)
    except CellExecutionError as error:
        return [f"a cell raised; nothing was written\n{error}"]
    return problems(name, folder)


def chosen(parser, given, there):
    """The notebooks that are given on a command line, with a folder or a suffix; else all."""
    stems = [Path(name).stem for name in given]
    for name in stems:
        if name not in there:
            parser.error(f"no notebook is named {name}; there are {', '.join(there)}")
    return stems or there


def main(arguments=None, folder=FOLDER):
    """Run or compare the notebooks; return 1 if anything is wrong, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.notebooks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("names", nargs="*", help="notebooks, as in 00_start_here (default: all)")
    parser.add_argument("--check", action="store_true", help="only compare the pairs")
    options = parser.parse_args(arguments)
    failed = False
    for name in chosen(parser, options.names, names(folder)):
        start = time.perf_counter()
        if options.check:
            found = pair_problems(folder / f"{name}.ipynb")
        else:
            found = run_and_check(name, folder)
        print(f"{name}: {time.perf_counter() - start:.1f} s", *found, sep="\n    ", flush=True)
        failed |= bool(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
