"""Write the first and the last cell of every notebook from one table.

    python -m tools.course            rewrite both files of each pair
    python -m tools.course --check    only say where they differ

The table is notebooks/course.toml: title, minutes, goals, what to know before, and the sections of
a short way for those who know most of it, in reading order.
The letters that a notebook's formulas use are looked up in its table of symbols. Nothing is run.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

import jupytext
import nbformat

from tools.notebooks import FOLDER, anchor

TABLE, ENDS = "course.toml", (".py", ".ipynb")
FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+)\$", re.DOTALL)
WORDS = re.compile(r"\\(?:mathrm|text|tag|begin|end|mathcal|mathbb|operatorname)\{[^}]*\}")
GREEK = (
    r"\\(?i:alpha|beta|gamma|delta|(?:var)?epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|pi|rho"
    r"|sigma|tau|upsilon|(?:var)?phi|chi|psi|omega)\b"
)
LETTER = re.compile(GREEK + r"|(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])")
COMMAND = re.compile(rf"(?!{GREEK})\\[A-Za-z]+")
WITH_MODEL = (
    " Needs the small model, which `make model` fetches once. Without it, read on: all outputs "
    "are stored."
)
WITHOUT_MODEL = " The small model is not needed."
ALL_SYMBOLS = "[all symbols](01_softmax_attention.ipynb#Symbols)"
ELSEWHERE = (
    '**On a hosted notebook** (Colab, Binder), first: `%pip install "softattn_lib[lab] @ '
    'git+ADDRESS"`, with the address of this repository.'
)
MISTAKE = (
    "**Found a mistake?** Open an issue with what `make doctor` prints, and the name of this "
    "notebook."
)


def read_course(folder: Path = FOLDER) -> tuple[dict, dict]:
    """{notebook: entry} in reading order, and {letter: meaning}."""
    course = tomllib.loads((folder / TABLE).read_text(encoding="utf-8"))
    symbols = course.pop("symbols")
    return course, symbols


def letters(text: str) -> set[str]:
    """The letters in the formulas of a text, without those of words and commands.

    >>> sorted(letters(r"with $\\phi(Q_t)$ and $$x^{\\otimes n} \\tag{3.1}$$"))
    ['Q', '\\\\phi', 'n', 't', 'x']
    """
    found = set()
    for display, inline in FORMULA.findall(text):
        formula = WORDS.sub(" ", display or inline).replace("_", " ").replace("^", " ")
        found |= set(LETTER.findall(COMMAND.sub(" ", formula)))
    return found


def first_cell(entry: dict, symbols: dict, used: set[str]) -> str:
    """Title, minutes, goals, what to know, a short way, the letters, how to install elsewhere."""
    notation = [f"${letter}$ {meaning}" for letter, meaning in symbols.items() if letter in used]
    parts = [
        f"# {entry['title']}",
        f"**Minutes:** {entry['minutes']}",
        "**Goals:** after this notebook you can",
        "\n".join(f"- {goal}" for goal in entry["goals"]),
        f"**Before:** {entry['before']}" + (WITH_MODEL if entry["needs_model"] else WITHOUT_MODEL),
    ]
    if "short_way" in entry:
        links = ", ".join(map(link_to_section, entry["short_way"]))
        end = link_to_section("What you saw")
        parts.append(f"**You know most of this?** Read {links}, then {end}.")
    if notation:
        parts.append(f"**Notation:** {'; '.join(notation)} ({ALL_SYMBOLS}).")
    return "\n\n".join([*parts, ELSEWHERE])


def last_cell(name: str, course: dict, folder: Path = FOLDER) -> str:
    """The way back and on, the exercises if there are any, and what to do about a mistake."""
    there = list(course)
    place = there.index(name)
    ways = []
    if place > 0:
        ways.append("Back to " + link(there[place - 1], course))
    if place + 1 < len(there):
        ways.append("On to " + link(there[place + 1], course))
    parts = [" · ".join(ways)]
    if (folder / "exercises" / f"{name}.ipynb").exists():
        parts.insert(0, f"**Exercises** to this notebook: [{name[:2]}](exercises/{name}.ipynb)")
    return "\n\n".join([*parts, MISTAKE])


def link_to_section(heading: str) -> str:
    return f"[{heading}](#{anchor(heading)})"


def link(name: str, course: dict) -> str:
    return f"[{name[:2]} {course[name]['short']}]({name}.ipynb)"


def written(name: str, cells: list, folder: Path = FOLDER) -> tuple[str, str]:
    """The first and the last cell that a notebook should have, by what is in those between."""
    course, symbols = read_course(folder)
    prose = "\n\n".join(cell.source for cell in cells[1:-1] if cell.cell_type == "markdown")
    first = first_cell(course[name], symbols, letters(prose))
    return first, last_cell(name, course, folder)


def differs(path: Path) -> bool:
    """Whether the first or the last cell of a file is not that of the table."""
    cells = jupytext.read(path).cells
    return (cells[0].source, cells[-1].source) != written(path.stem, cells, path.parent)


def update(path: Path) -> None:
    """Write the first and the last cell of a file, .py or .ipynb."""
    notebook = jupytext.read(path)
    cells = notebook.cells
    cells[0].source, cells[-1].source = written(path.stem, cells, path.parent)
    if path.suffix == ".ipynb":
        nbformat.write(notebook, path)
    else:
        jupytext.write(notebook, path, fmt="py:percent")


def main(arguments=None) -> int:
    """Rewrite or compare; return 1 if something was to be compared and differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tools.course", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    course, _ = read_course()
    paths = [FOLDER / f"{name}{end}" for name in course for end in ENDS]
    differ = [path for path in paths if differs(path)]
    if not options.check:
        for path in differ:
            update(path)
    print(*[path.name for path in differ] or ["all as the table says"], sep="\n")
    return int(options.check and bool(differ))


if __name__ == "__main__":
    sys.exit(main())
