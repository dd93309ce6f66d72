"""Build static pages of the notebooks and of the library's reference, which need no kernel.

    python -m tools.site             build/site/index.html and the pages around it

Everything that Sphinx shall read is first put into build/site-source: the notebooks with their
stored outputs, a few other pages, and one page for each module. Of notebooks with a widget the
cells are run again, up to the last widget, so that its figure gets a slider; build/site-cache keeps
such figures until the notebook or the library changes.
"""

import ast
import functools
import hashlib
import html
import importlib
import json
import os
import pkgutil
import re
import shutil
import sys
import time
from pathlib import Path
from types import ModuleType

import nbformat
import plotly

from softattn_lib import small_model
from softattn_lib.widgets.frames import SWITCH

from . import notebooks
from .course import read_course
from .notebooks import PLOTLY, ROOT

SOURCES = ROOT / "site"
STAGE = ROOT / "build" / "site-source"
TARGET = ROOT / "build" / "site"
CACHE = ROOT / "build" / "site-cache"
DOCTREES = ROOT / "build" / "site-doctrees"

PACKAGE = "softattn_lib"
FOLDERS = ("notebooks", "notebooks/exercises", "notebooks/solutions")
# Pages beside the notebooks, with their names in the list of contents: the end of the course, and
# what was measured.
OWN_KERNEL = {"notebooks/your_own_kernel.md": "A kernel of your own"}
RESULTS = {
    "claims.md": "The paper's claims, one by one",
    "experiments/README.md": "The experiments and their tables",
    "benchmarks/results/README.md": "What was measured for speed",
    "benchmarks/results/amd-epyc-2-cores.md": "Speed on one machine",
    "benchmarks/results/profile-amd-epyc-2-cores.md": "Where the time goes",
    "CHANGELOG.md": "Changes",
}
LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)(?:#[^)\s]*)?\)")


# What there is


def notebook_paths(folder):
    """The notebooks of a folder, as paths from the root without suffix."""
    return [f"{folder}/{name}" for name in notebooks.names(ROOT / folder)]


def all_notebooks():
    return [path for folder in FOLDERS for path in notebook_paths(folder)]


def read(path):
    return nbformat.read(ROOT / f"{path}.ipynb", as_version=4)


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


# Figures with a slider


def frames(path):
    """{cell: figure with frames} of a notebook's widgets, computed if need be.

    None of a notebook that needs the small model where it is not there: its figures stay as stored.
    """
    notebook = read(path)
    live = [i for i, cell in notebooks.code_cells(notebook) if shows_widget(cell)]
    if not live:
        return {}
    kept = CACHE / f"{Path(path).name}-{fingerprint(path)}.json"
    if not kept.exists():
        if needs_model(path) and not small_model.is_ready():
            print(f"{path}: no sliders without the small model, which `softattn model` fetches")
            return {}
        start = time.perf_counter()
        found = run(path, notebook, last=live[-1])
        print(f"{path}: {len(found)} slider(s), {time.perf_counter() - start:.0f} s", flush=True)
        for old in CACHE.glob(f"{Path(path).name}-*.json"):
            old.unlink()
        CACHE.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    return {int(i): figure for i, figure in json.loads(kept.read_text()).items()}


def needs_model(path):
    course, _ = read_course()
    return course[Path(path).name]["needs_model"]


def run(path, notebook, last):
    """Run the cells up to the last one that shows a widget, and take their figures with frames."""
    notebook = notebook.copy()
    notebook.cells = notebook.cells[: last + 1]
    notebooks.execute(notebook, (ROOT / path).parent, **{SWITCH: "1"})
    figures = {i: o.data[PLOTLY] for i, o in notebooks.outputs(notebook) if is_figure(o)}
    return {
        i: notebooks.normalise_figure(figure)
        for i, figure in figures.items()
        if figure.get("frames")
    }


def shows_widget(cell):
    """Whether its output is a widget that has a figure."""
    return notebooks.mounts_widget(cell) and notebooks.shows_figure(cell)


def is_figure(output):
    return PLOTLY in output.get("data", {})


def fingerprint(path):
    """Changes with the notebook, with any module of the library and with any table it may read."""
    files = [*(ROOT / PACKAGE).rglob("*.py"), *ROOT.glob("experiments/*.csv")]
    files += ROOT.glob("benchmarks/results/*.json")
    digest = hashlib.sha256(code(read(path)).encode())
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


# Pages


def page(path, frames):
    """A notebook as Sphinx shall read it: figures as HTML, answers folded, what it uses."""
    notebook = read(path)
    for i, cell in notebooks.code_cells(notebook):
        if notebooks.answers(notebook, i) and not notebooks.shows_figure(cell):
            cell.metadata.tags = [*notebooks.tags(cell), "hide-output"]
    number = 0
    for i, output in notebooks.outputs(notebook):
        if is_figure(output):
            number += 1
            figure = frames.get(i, output.data[PLOTLY])
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
        f'<figure class="plot" id="{name}">'
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
    # Its functions name their users too; a comment, so that Sphinx sees when these change.
    inside = {name: paths for name, paths in users.items() if module_of(name) == module}
    parts.append(f".. {json.dumps(inside, sort_keys=True)}")
    if module == PACKAGE:
        parts.append("\n".join(f"* :py:obj:`{name}`" for name in sorted(exported().values())))
    return "\n\n".join(filter(None, parts)) + "\n"


@functools.cache
def exported():
    """{name: full name} of what `import softattn_lib` gives, modules apart."""
    given = {name: full_name(thing) for name, thing in vars(sys.modules[PACKAGE]).items()}
    return {name: full for name, full in given.items() if full and full not in sys.modules}


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


def contents(entries):
    return "\n".join(f"{text} <{target}>" for target, text in entries)


def index():
    """The first page, with the lists of contents filled in."""
    text = (SOURCES / "index.md").read_text(encoding="utf-8")
    course, exercises, solutions = (
        [(path, title(path)) for path in notebook_paths(folder)] for folder in FOLDERS
    )
    lists = {
        "course": course + without_suffix(OWN_KERNEL),
        "exercises": exercises,
        "solutions": solutions,
        "results": without_suffix(RESULTS),
        "reference": [(f"reference/{name}", name) for name in modules()],
    }
    for name, entries in lists.items():
        text = text.replace(f"({name})", contents(entries))
    return text


def without_suffix(pages):
    return [(path.removesuffix(".md"), name) for path, name in pages.items()]


# Staging


class Stage:
    """Writes files that changed, and in the end takes away those that were not written."""

    def __init__(self, folder):
        self.folder, self.written, self.changed = folder, set(), set()

    def write(self, name, data):
        path = self.folder / name
        self.written.add(path)
        data = data.encode() if isinstance(data, str) else data
        if not path.exists() or path.read_bytes() != data:
            self.changed.add(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def copy(self, path, name=None):
        self.write(name or path.relative_to(ROOT), path.read_bytes())

    def finish(self):
        """Return the names of what is gone."""
        there = [path for path in self.folder.rglob("*") if path.is_file()]
        gone = [path for path in there if path not in self.written]
        for path in gone:
            path.unlink()
        return [path.name for path in gone]


def linked_files(path, text):
    """Files of the project that a page links to, pages apart."""
    for link in LINK.findall(text):
        target = (ROOT / path).parent.joinpath(link).resolve()
        if target.is_file() and target.suffix != ".ipynb":
            yield target


def stage():
    """Put together all that Sphinx reads; return whether every page has to be made anew."""
    files = Stage(STAGE)
    for path in SOURCES.iterdir():
        if path.is_file() and path.name != "index.md":
            files.copy(path, path.name if path.suffix == ".py" else f"_static/{path.name}")
    files.write("index.md", index())
    files.copy(Path(plotly.__file__).parent / "package_data" / "plotly.min.js", "_static/plotly.js")
    files.copy(mathjax_file(), "_static/mathjax.js")
    for path in all_notebooks():
        files.write(f"{path}.ipynb", page(path, frames(path)))
    for path in OWN_KERNEL | RESULTS:
        text = (ROOT / path).read_text(encoding="utf-8")
        files.write(path, text)
        for target in linked_files(path, text):
            files.copy(target)
    users = uses()
    for module in modules():
        files.write(f"reference/{module}.rst", reference(module, users))
    gone = files.finish()
    # The list of contents stands on every page.
    return bool(gone) or bool({"conf.py", "index.md"} & files.changed)


def mathjax_file():
    """MathJax in one file that draws formulas as SVG: no fonts, nothing to load later."""
    import mathjax

    return Path(mathjax.__file__).parent / "static" / "mathjax" / "es5" / "tex-svg.js"


def main():
    """Build the site; return 0 if Sphinx had nothing to warn of."""
    from sphinx.cmd.build import main as sphinx

    if stage():
        forget()
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", str(DOCTREES)]
    status = sphinx([*options, str(STAGE), str(TARGET)])
    if status:
        forget()  # or the next build would not read, and not complain of, the same pages again
    else:
        print(f"open {(TARGET / 'index.html').relative_to(ROOT)}")
    return status


def forget():
    """Have the next build make every page anew."""
    for folder in (DOCTREES, TARGET):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
