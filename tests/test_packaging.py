"""The front door: dependencies, pins, environment.yml, the Makefile, .ci/run, cost of import."""

import ast
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]


# Dependencies: what is declared is what is used


def declared(*extras):
    """Requirements of the package with these extras, by name."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return {canonicalize_name(r.name): r for r in map(Requirement, lines)}


ALL = declared(*PROJECT["optional-dependencies"])
# Where the name that is imported is another:
DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "PIL": "pillow",
    "fla": "flash-linear-attention",
    "mathjax": "django-static-mathjax",
}
OURS = {"softattn_lib", "benchmarks", "tools", "tests"}
FOLDERS = ["softattn_lib", "benchmarks", "notebooks", "tools", "tests"]
USED_WITHOUT_IMPORT = {
    "jupyterlab": "`make lab` starts it",
    "gguf": "transformers reads the file of the small model with it",
    "nbval": "plugin of pytest",
    "ruff": "`make lint` runs it",
    "furo": "theme of the site, named in its settings",
    "myst-nb": "extension of Sphinx, named in the settings of the site",
}


def imported(paths):
    """Names of the distributions that these files import, the standard library and ours apart."""
    modules = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {name.name.split(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules.add(node.module.split(".")[0])
    modules -= sys.stdlib_module_names | OURS
    return {canonicalize_name(DISTRIBUTIONS.get(module, module)) for module in modules}


def files(*folders):
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")]


def test_what_is_imported_is_declared():
    learner = [*files("softattn_lib"), *(ROOT / "notebooks").glob("[0-9]*.py")]
    assert imported(learner) <= declared("lab", "data").keys()
    assert imported(files(*FOLDERS)) <= ALL.keys()


def test_what_is_declared_is_used():
    used = imported(files(*FOLDERS))
    assert ALL.keys() - used == USED_WITHOUT_IMPORT.keys()


# Pins


def test_pins_name_one_public_version_each():
    for pin in PINS:
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(pin.specifier)), pin
        assert not pin.url, pin
    assert "torch==2.13.0" in map(str, PINS)
    assert len(PINS) == len({canonicalize_name(pin.name) for pin in PINS})


def test_pins_cover_what_is_declared():
    pinned = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in PINS}
    for name, requirement in ALL.items():
        assert requirement.specifier.contains(pinned[name]), requirement


def test_conda_environment_agrees_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, from_pip = environment["dependencies"]
    name, version = python.split("=")
    assert (name, pip) == ("python", "pip")
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)
    constraint, project = from_pip["pip"]
    assert constraint == "-c constraints.txt"
    extras = re.fullmatch(r"-e \.\[(.*)\]", project)[1].split(",")
    assert set(extras) < PROJECT["optional-dependencies"].keys()
    assert project.removeprefix("-e ") in (ROOT / "Makefile").read_text()


def test_the_version_to_cite_is_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["preferred-citation"]["identifiers"][0]["value"] == "arXiv:2507.23632"


# The Makefile and .ci/run, in a copy of the project whose installation is pretended


FIRST_NOTEBOOK = "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def copy(tmp_path):
    """The front door with no test, no notebook and no library behind it, installed already."""
    for name in ["Makefile", "pyproject.toml", "constraints.txt", ".ci/run", "tests/sanitize.cfg"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ["softattn_lib", "notebooks"]:
        (tmp_path / name).mkdir()
    script(tmp_path / ".venv/bin/python", f'exec "{sys.executable}" "$@"')
    script(tmp_path / ".venv/bin/softattn", "exit 0")
    script(tmp_path / ".venv/bin/jupyter-lab", 'echo "opened $@"')
    for stamp in ["", "-site", "-browser"]:
        (tmp_path / f".venv/.installed{stamp}").touch()
    script(tmp_path / "tools/browser.py", "")
    return tmp_path


def run(folder, *command):
    """Run a command in a folder, as if no make were around it."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def targets():
    (line,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return line.split()


def test_help_lists_every_target(copy):
    shown = run(copy, "make").stdout
    assert {"lab", "test", "check", "bench", "lint", "notebooks", "clean"} <= set(targets())
    for target in targets():
        assert re.search(rf"^  make {target}  +\w", shown, re.MULTILINE), target
    for variable in ["PYTHON=", "ARGS=", "TORCH_ARGS="]:
        assert variable in shown


def test_a_new_clone_is_installed_with_the_pins(copy):
    (copy / ".venv/.installed").unlink()
    shown = run(copy, "make", "-n", "lab", "TORCH_ARGS=--index-url there").stdout
    torch = shown.index("pip install --index-url there torch==2.13.0\n")
    assert torch < shown.index("pip install -c constraints.txt -e '.[lab,test]'\n")
    assert '"fetchNews": "false"' in shown
    assert shown.count("pip install --index-url") == 1
    assert "torch==" not in run(copy, "make", "-n", "lab").stdout


def test_a_second_start_installs_nothing_and_opens_the_first_notebook(copy):
    shown = run(copy, "make", "lab", "ARGS=--port=9999 --no-browser")
    assert f"opened {FIRST_NOTEBOOK} --port=9999 --no-browser\n" in shown.stdout
    assert "install" not in shown.stdout
    assert shown.returncode == 0


def test_an_install_is_not_repeated_unless_it_broke_off(copy):
    (copy / ".venv/.installed").unlink()
    script(copy / "python3", f'test "$1" = -m || exec "{sys.executable}" "$@"')  # venv is there
    for status in [1, 0]:
        script(copy / ".venv/bin/python", f'echo "$@"; exit {status}')
        first = run(copy, "make", "check", "PYTHON=./python3")
        assert first.returncode == (2 if status else 0)
        assert "\n-m pip install --upgrade pip\n" in first.stdout
    assert "\n-m pip install -c constraints.txt -e .[lab,test]\n" in first.stdout
    settings = json.loads((copy / ".venv/share/jupyter/lab/settings/overrides.json").read_text())
    news = settings["@jupyterlab/apputils-extension:notification"]
    assert news == {"fetchNews": "false", "checkForUpdates": False}
    second = run(copy, "make", "check", "PYTHON=./python3")
    assert "pip install" not in second.stdout
    assert "-m pytest" in second.stdout


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_dependencies_are_installed(copy, changed):
    later = (copy / ".venv/.installed").stat().st_mtime + 1
    os.utime(copy / changed, (later, later))
    for target in ["lab", "test", "check", "bench", "lint", "notebooks", "model", "doctor"]:
        assert "pip install -c constraints.txt" in run(copy, "make", "-n", target).stdout, target


def test_the_lab_opens_without_the_model(copy):
    script(copy / ".venv/bin/softattn", "echo no network; exit 1")
    shown = run(copy, "make", "lab")
    assert re.search(rf"^no network\n.*\nopened {FIRST_NOTEBOOK}", shown.stdout)
    assert shown.returncode == 0


def test_an_old_python_is_refused_in_one_line(copy):
    (copy / ".venv/.installed").unlink()
    pretend = "import sys; sys.version_info = (3, 9); exec(sys.argv[2])"
    script(copy / "python3.9", f"""exec "{sys.executable}" -c '{pretend}' "$@" """)
    shown = run(copy, "make", "test", "PYTHON=./python3.9")
    assert shown.stdout.startswith("This needs Python 3.11 or newer and ./python3.9 is 3.9: try ")
    assert shown.returncode != 0


def test_ci_runs_documented_targets_and_all_the_tests_last():
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert "set -euo pipefail" in lines
    steps = lines[lines.index('cd "$(dirname "$0")/.."') + 1 :]
    assert all(re.fullmatch(r"make \w+", step) for step in steps)
    assert {step.split()[1] for step in steps} <= set(targets())
    assert steps[-1] == "make test"


@pytest.mark.slow
def test_ci_fails_when_no_test_or_no_notebook_is_collected(copy):
    empty = run(copy, ".ci/run")
    assert empty.returncode != 0
    assert "no tests ran" in empty.stdout

    (copy / "tests/test_one.py").write_text("def test_one():\n    assert True\n")
    no_notebook = run(copy, ".ci/run")
    assert no_notebook.returncode != 0
    assert "1 passed" in no_notebook.stdout
    assert "no tests ran" in no_notebook.stdout

    cell = nbformat.v4.new_code_cell("1 + 1", execution_count=1)
    cell.outputs = [
        nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=1)
    ]
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.write(notebook, copy / "notebooks/00_start_here.ipynb")
    full = run(copy, ".ci/run")
    assert full.stdout.count("1 passed") == 2
    assert full.returncode == 0


# The cost of import


def in_new_python(code):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("module", ["softattn_lib", "softattn_lib.cli"])
def test_import_loads_no_front_end_and_asks_no_network(module):
    code = f"""
import sys
asked = []
sys.addaudithook(lambda event, _: asked.append(event) if event.startswith("socket.") else None)
import {module}
print(asked, {{"transformers", "plotly", "ipywidgets", "IPython"}} & sys.modules.keys())
"""
    assert in_new_python(code) == "[] set()\n"


@pytest.mark.slow
@pytest.mark.parametrize("module", ["softattn_lib", "softattn_lib.cli"])
def test_import_adds_little_to_importing_torch(module):
    # Seconds of this process alone: on a busy machine the clock counts the others too.
    code = f"""
import time, torch
start = time.process_time()
import {module}
print(time.process_time() - start)
"""
    added = statistics.median(float(in_new_python(code)) for _ in range(3))
    print(f"import {module}: {added:.3f} s more than import torch")
    assert added <= 0.3
