"""Build static pages of the notebooks and of the library's reference, which need no kernel.

    python -m tools.site             build/site/index.html and the pages around it

Everything that Sphinx shall read is first put into build/site-source: the notebooks with their
stored outputs, a few other pages, and one page for each module. Of notebooks with a widget the
cells are run again, up to the last widget, so that its figure gets a slider; build/site-cache keeps
such figures until the notebook or the library changes.
"""

import ast
import html
import importlib
import json
import os
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType

import jupytext
import mathjax
import nbformat
import plotly

from . import notebooks

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "site"
STAGE = ROOT / "build" / "site-source"
TARGET = ROOT / "build" / "site"
CACHE = ROOT / "build" / "site-cache"

PLOTLY, PNG = notebooks.PLOTLY, notebooks.PNG
PACKAGE = "softattn_lib"
# Pages beside the notebooks, with their names in the list of contents.
PAGES = {
    "notebooks/your_own_kernel.md": "A kernel of your own",
    "claims.md": "The paper's claims, one by one",
    "experiments/README.md": "The experiments and their tables",
    "benchmarks/results/README.md": "What was measured for speed",
    "benchmarks/results/amd-epyc-2-cores.md": "Speed on one machine",
    "benchmarks/results/profile-amd-epyc-2-cores.md": "Where the time goes",
    "CHANGELOG.md": "Changes",
}
COURSE = ("notebooks/your_own_kernel.md",)  # of these, what the course ends with
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


# What there is


def notebook_paths(folder="."):
    """The notebooks of a folder below notebooks/, as paths from the root without suffix."""
    found = {p.with_suffix("") for p in (ROOT / "notebooks" / folder).glob("[0-9]*.*")}
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def all_notebooks():
    return [path for folder in (".", "exercises", "solutions") for path in notebook_paths(folder)]


def read(path):
    """A notebook with its stored outputs, or without any where none are stored."""
    stored = ROOT / f"{path}.ipynb"
    if stored.exists():
        return nbformat.read(stored, as_version=4)
    notebook = jupytext.read(ROOT / f"{path}.py")
    notebook.metadata = nbformat.from_dict(notebooks.METADATA)
    return notebook


def title(path):
    """Number and title: `01 Softmax attention, by hand`."""
    heading = re.search(r"^# (.+)$", read(path).cells[0].source, re.MULTILINE)[1]
    return f"{Path(path).name[:2]} {heading}"


def modules():
    """Names of the package and of all its public modules."""
    package = importlib.import_module(PACKAGE)
    found = pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")
    return [PACKAGE, *(m.name for m in found if not m.name.rpartition(".")[2].startswith("_"))]


# Which notebook uses what


def code(notebook):
    return "\n".join(cell.source for _, cell in notebooks.code_cells(notebook))


def used(source):
    """Full names of the modules, functions and classes of the library that a source text uses.

    An imported module counts with what is taken from it: `doctor.check()` uses `doctor.check`.
    """
    tree = ast.parse(source)
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname and name.name.split(".")[0] == PACKAGE:
                    bound[name.asname] = importlib.import_module(name.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE:
            for name in node.names:
                bound[name.asname or name.name] = member(node.module, name.name)
    found = {full_name(thing) for thing in bound.values()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = bound.get(node.value.id)
            if isinstance(owner, ModuleType):
                found.add(full_name(getattr(owner, node.attr)))
    return found - {None}


def member(module, name):
    try:
        return importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), name)


def full_name(thing):
    """Where the reference describes it; None for what is no module, function or class of ours."""
    if isinstance(thing, ModuleType):
        return thing.__name__
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    ours = module and name and module.split(".")[0] == PACKAGE
    return f"{module}.{name}" if ours else None


def uses():
    """{full name: [notebooks that use it]}; a module is used by whoever uses a part of it."""
    users = {}
    for path in all_notebooks():
        names = used(code(read(path)))
        for name in names | {module_of(name) for name in names}:
            users.setdefault(name, []).append(path)
    return users


def module_of(name):
    """The module of a full name, by the convention that modules are in lower case."""
    while name not in sys.modules:
        name = name.rpartition(".")[0]
    return name


def used_in(name, users):
    """One line of reStructuredText: links to the notebooks that use a name."""
    links = [f":doc:`{short(path)} </{path}>`" for path in users.get(name, ())]
    return f"Used in {', '.join(links)}" if links else ""


def short(path):
    """How a notebook is called in a list: `05`, `exercises 05`."""
    *_, folder, name = path.split("/")
    return f"{name[:2]}" if folder == "notebooks" else f"{folder} {name[:2]}"


# Pages


def page(path, frames):
    """A notebook as Sphinx shall read it: figures as HTML, and at the end what it uses."""
    notebook = read(path)
    number = 0
    for i, output in notebooks.outputs(notebook):
        data = output.get("data", {})
        if PLOTLY in data:
            number += 1
            figure = frames.get(i, data[PLOTLY])
            name = f"{path.replace('/', '-')}-{number}"
            output.data = nbformat.from_dict({"text/html": figure_html(figure, name)})
    notebook.cells.append(nbformat.v4.new_markdown_cell(list_of_names(used(code(notebook)))))
    notebook.cells[-1].id = "used"
    return nbformat.writes(notebook)


def list_of_names(names):
    """Markdown: links to the reference, one line a module."""
    lines = ["## In the reference", ""]
    for module in sorted({module_of(name) for name in names}):
        inside = sorted(name for name in names - {module} if module_of(name) == module)
        links = ", ".join(f"{{py:obj}}`~{name}`" for name in inside)
        lines.append(f"- {{py:mod}}`{module}`" + (f": {links}" if links else ""))
    return "\n".join(lines)


def figure_html(figure, name):
    """A figure for figures.js to draw: its data, and in words what it shows."""
    layout = figure["layout"]
    data = json.dumps(figure, separators=(",", ":")).replace("</", "<\\/")
    return (
        f'<figure class="plot" id="{name}" aria-label="{html.escape(words(layout))}">'
        f'<div class="canvas" role="img" aria-label="{html.escape(words(layout))}"'
        f' style="height: {layout.get("height", 420)}px"></div>'
        f'<script type="application/json">{data}</script></figure>'
    )


def words(layout):
    """Title and caption of a figure as plain text."""
    heading = layout.get("title", {})
    parts = heading.get("text", ""), heading.get("subtitle", {}).get("text", "")
    plain = [html.unescape(re.sub(r"<[^>]+>", " ", part)) for part in parts]
    return ". ".join(" ".join(part.split()) for part in plain if part)


def reference(module, users):
    """The page of a module; that of the package lists where its names are."""
    parts = [
        f"{module}\n{'=' * len(module)}",
        used_in(module, users),
        f".. automodule:: {module}\n   :members:",
    ]
    if module == PACKAGE:
        exported = [full_name(thing) for thing in vars(sys.modules[module]).values()]
        parts += [f"* :py:obj:`{name}`" for name in sorted(filter(is_member, exported))]
    return "\n\n".join(filter(None, parts)) + "\n"


def is_member(name):
    return name is not None and name not in sys.modules


def escaped(lines):
    """A docstring's lines, with the signs escaped that are markup to reStructuredText alone.

    What stands in backticks and in examples stays as it is.
    """
    example = False
    for line in lines:
        example = line.strip() != "" and (example or line.lstrip().startswith(">>>"))
        if example:
            yield line
        else:
            parts = re.split(r"(`[^`]*`)", line)
            parts[::2] = (re.sub(r"([|*]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2])
            yield "".join(parts)


def anchor(heading):
    """The anchor of a heading as Jupyter makes it, so that links work here and there."""
    return heading.replace(" ", "-")


def contents(entries):
    return "\n".join(f"{text} <{target}>" for target, text in entries)


def index():
    """The first page, with the lists of contents filled in."""
    text = (SOURCES / "index.md").read_text(encoding="utf-8")
    course = [(path, title(path)) for path in notebook_paths()]
    course += [(strip(path), PAGES[path]) for path in COURSE]
    lists = {
        "course": course,
        "exercises": [(path, title(path)) for path in notebook_paths("exercises")],
        "solutions": [(path, title(path)) for path in notebook_paths("solutions")],
        "results": [(strip(path), PAGES[path]) for path in PAGES if path not in COURSE],
        "reference": [(f"reference/{name}", name) for name in modules()],
    }
    for name, entries in lists.items():
        text = text.replace(f"({name})", contents(entries))
    return text


def strip(path):
    return path.removesuffix(".md")


# Staging


class Stage:
    """Writes files that changed, and in the end takes away those that were not written."""

    def __init__(self, folder):
        self.folder, self.written = folder, set()

    def write(self, name, data):
        path = self.folder / name
        self.written.add(path)
        data = data.encode() if isinstance(data, str) else data
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def copy(self, path, name=None):
        self.write(name or path.relative_to(ROOT), path.read_bytes())

    def finish(self):
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()


def linked_files(path, text):
    """Files of the project that a page links to, pages apart."""
    for link in LINK.findall(text):
        target = (ROOT / path).parent.joinpath(link).resolve()
        if target.is_file() and target.suffix != ".ipynb":
            yield target


def stage():
    """Put together all that Sphinx reads."""
    files = Stage(STAGE)
    for path in SOURCES.iterdir():
        if path.is_file() and path.name != "index.md":
            files.copy(path, path.name if path.suffix == ".py" else f"_static/{path.name}")
    files.write("index.md", index())
    files.copy(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", "_static/plotly.js")
    files.copy(mathjax_file(), "_static/mathjax.js")
    for path in all_notebooks():
        files.write(f"{path}.ipynb", page(path, {}))
    for path in PAGES:
        text = (ROOT / path).read_text(encoding="utf-8")
        files.write(path, text)
        for target in linked_files(path, text):
            files.copy(target)
    users = uses()
    for module in modules():
        files.write(f"reference/{module}.rst", reference(module, users))
    files.finish()


def mathjax_file():
    """MathJax in one file that draws formulas as SVG: no fonts, nothing to load later."""
    return Path(mathjax.__file__).parent / "static" / "mathjax" / "es5" / "tex-svg.js"


def main():
    """Build the site; return 0 if Sphinx had nothing to warn of."""
    from sphinx.cmd.build import main as sphinx

    stage()
    doctrees = str(ROOT / "build" / "site-doctrees")
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", doctrees]
    status = sphinx([*options, str(STAGE), str(TARGET)])
    if not status:
        print(f"open {(TARGET / 'index.html').relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
