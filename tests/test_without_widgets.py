"""Where ipywidgets or anywidget is missing: text and figures for widgets, and every cell runs."""

import json
import os
import subprocess
import sys

import nbformat
import pytest

from softattn_lib import small_model, widgets
from softattn_lib.widgets.base import PLOTLY
from tools import notebooks
from tools.course import read_course

BLOCK = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Missing())
"""
# Runs the example of each mount function, and shows what it mounts before it is moved.
MOUNT_ALL = """
import doctest, importlib, json, pkgutil
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output

InteractiveShell.instance()
from softattn_lib import predictions, widgets

def outputs(thing):
    with capture_output() as captured:
        display(thing)
    return [output.data for output in captured.outputs]

def examine(module):
    found = {}
    def mount(*arguments, **options):
        widget = module.mount(*arguments, **options)
        found["outputs"], found["read_out"] = outputs(widget), widget.read_out.value
        return widget
    names = vars(module) | {"mount": mount}
    (example,) = doctest.DocTestFinder(recurse=False).find(module.mount, globs=names)
    found["complaints"] = []
    doctest.DocTestRunner().run(example, out=found["complaints"].append)
    return found

all_modules = [importlib.import_module(info.name)
               for info in pkgutil.iter_modules(widgets.__path__, "softattn_lib.widgets.")]
mounted = {m.__name__: examine(m) for m in all_modules if hasattr(m, "mount")}

choice = predictions.predict("02-choice", "Which one?", ["this", "that"])
number = predictions.predict("02-number", "How many?", low=1, high=8, step=1)
asked = [outputs(choice), outputs(number)]
with capture_output() as unguessed:
    predictions.reveal("02-number", 3, "there are three.")
choice.control.value = "that"
choice.commit()
with capture_output() as guessed:
    predictions.reveal("02-choice", "that", "it is.")
    predictions.summary()
print(json.dumps([mounted, asked, unguessed.stdout, guessed.stdout]))
"""
PLAIN = ["live_training", "loss_curves"]  # nothing to slide; an example with a single group
CASES = [
    ("ipywidgets", "anywidget"),
    pytest.param(("ipywidgets",), marks=pytest.mark.slow),
    pytest.param(("anywidget",), marks=pytest.mark.slow),
]


def without(missing, folder):
    """The environment of a Python in which these packages cannot be imported."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(missing=missing))
    paths = [str(folder), str(notebooks.ROOT), os.environ.get("PYTHONPATH")]
    path = os.pathsep.join(filter(None, paths))
    return notebooks.new_learner(folder) | {"PYTHONPATH": path}


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request, tmp_path_factory):
    """What is missing, and what MOUNT_ALL says of it."""
    env = os.environ | without(request.param, tmp_path_factory.mktemp("without"))
    command = [sys.executable, "-c", MOUNT_ALL]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return request.param, json.loads(done.stdout.splitlines()[-1])


def test_each_widget_shows_its_question_a_figure_and_what_is_missing(case):
    missing, (mounted, *_) = case
    assert {name.rpartition(".")[2] for name in mounted} == set(widgets.__all__) - {"Explorer"}
    for name, found in mounted.items():
        above, *_, figure, below = found["outputs"]
        assert "?</b>" in above["text/html"], name
        assert figure[PLOTLY]["data"], name
        assert found["read_out"] in below["text/html"], name
        command = below["text/html"].split("<code>%pip install ")[1].split("</code>")[0]
        assert set(missing) <= set(command.split()), name  # anywidget needs ipywidgets


def test_the_figure_has_a_slider_where_all_its_values_can_be_computed(case):
    _, (mounted, *_) = case
    for name, found in mounted.items():
        figure = found["outputs"][-2][PLOTLY]
        if name.rpartition(".")[2] not in PLAIN:
            assert len(figure["frames"]) == len(figure["layout"]["sliders"][0]["steps"]) > 2, name
            assert figure["layout"]["meta"]["fixed"] in found["outputs"][-1]["text/html"]


def test_values_that_are_assigned_reach_the_figure(case):
    """The examples do so, and read the figure after it."""
    _, (mounted, *_) = case
    for name, found in mounted.items():
        assert found["complaints"] == [], name


def test_predictions_ask_on_paper_and_block_nothing(case):
    _, (_, (choice, number), unguessed, guessed) = case
    assert "<li>this</li>\n<li>that</li>" in choice[0]["text/html"]
    assert "a number from 1 to 8" in number[0]["text/html"]
    assert unguessed.startswith("No guess recorded. Result: 3.")
    assert guessed.startswith("Your guess: that. Result: that. Right.")
    assert guessed.endswith("1 of 1 right\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, missing",
    [
        ("00_start_here", ("anywidget",)),
        ("03_powers_of_an_inner_product", ("ipywidgets",)),
        ("10_training_the_ablations", ("ipywidgets", "anywidget")),
    ],
)
def test_a_notebook_runs_to_its_end_and_prints_the_same(name, missing, tmp_path):
    stored = nbformat.read(notebooks.FOLDER / f"{name}.ipynb", as_version=4)
    if read_course()[0][name]["needs_model"] and not small_model.is_ready():
        pytest.skip("the small model is not here")
    run = nbformat.from_dict(stored)
    notebooks.execute(run, **without(missing, tmp_path))
    (first, _), *others = zip(notebooks.code_cells(run), notebooks.code_cells(stored), strict=True)
    assert "runs, with figures for widgets" in notebooks.output_text(first[1])
    for (i, cell), (_, before) in others:
        if notebooks.mounts_widget(before):
            assert notebooks.shows_figure(cell) == notebooks.shows_figure(before), i
            assert "Predict:</b>" in text(cell) or "%pip install" in text(cell), i
        elif notebooks.is_compared(before):
            assert notebooks.mask(printed(cell)) == printed(before), i


def text(cell):
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)


def printed(cell):
    return "".join(o.text for o in cell.outputs if o.get("name") == "stdout")
