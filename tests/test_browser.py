"""A reader's JupyterLab in a real browser: run all, move a slider, commit a guess, offline."""

import json
from contextlib import contextmanager

import nbformat
import pytest

from softattn_lib import small_model
from tools.browser import WIDGETS, LabPage, lab
from tools.course import FORMULA, read_course
from tools.notebooks import FOLDER

pytestmark = pytest.mark.slow

# notebook, its first slider's name, and the key that moves it from where it starts
SLIDERS = [
    ("00_start_here", "order N", "ArrowRight"),
    ("02_exp_as_a_series", "order N", "ArrowRight"),
    ("05_softmax_attention_is_a_sum_of_rnns", "token", "ArrowLeft"),
]
SHOWN = """widget => {
  const figure = widget.querySelector(".js-plotly-plot");
  const numbers = figure.data.map(({ x, y, z, text }) => [x, y, z, text]);
  const drawn = figure.querySelector(".main-svg").innerHTML.replace(/[0-9a-f]{6}/g, "");
  const words = [...widget.querySelectorAll(".widget-html-content")].map(e => e.textContent);
  return [JSON.stringify(numbers), drawn, words.join(" ")];
}"""


COURSE, _ = read_course()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def address(folder, browser):
    with lab(folder) as address:
        yield address


@contextmanager
def run(browser, address, name):
    """A notebook that has run in JupyterLab, no cell with an error."""
    if COURSE[name]["needs_model"] and not small_model.is_ready():
        pytest.skip("the small model is not there: `make model` fetches it")
    notebook = LabPage(browser, address, name)
    notebook.run_all()
    yield notebook
    assert notebook.errors() == []
    notebook.page.close()


def formulas(name):
    cells = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells
    return sum(len(FORMULA.findall(c.source)) for c in cells if c.cell_type == "markdown")


@pytest.mark.parametrize("name, slider, key", SLIDERS)
def test_formulas_are_typeset_and_a_slider_moves_the_figure(browser, address, name, slider, key):
    with run(browser, address, name) as notebook:
        page = notebook.page
        assert page.locator("mjx-container").count() >= formulas(name) > 20
        assert page.locator("[data-mml-node=merror]").count() == 0

        widget = page.locator(".softattn", has_text=slider).filter(has=page.locator(".main-svg"))
        before = widget.evaluate(SHOWN)
        handle = widget.get_by_role("slider").first
        handle.press(key)
        page.wait_for_function(
            f"([widget, before]) => ({SHOWN})(widget).every((now, i) => now != before[i])",
            arg=[widget.element_handle(), before],
        )
        assert notebook.complaints == []


def test_a_guess_is_committed_by_keyboard_and_judged(browser, address, folder):
    with run(browser, address, "01_softmax_attention") as notebook:
        page = notebook.page
        question = page.locator(".softattn", has_text="Predict:").first
        question.get_by_role("radio").first.press("Space")
        question.locator("button:enabled", has_text="Commit").press("Enter")
        question.get_by_text("Committed:").wait_for()
        (guess,) = json.loads((folder / "predictions.json").read_text()).values()
        assert guess["guess"]
        assert notebook.complaints == []


def test_without_the_widget_extension_the_figure_is_there(browser, tmp_path):
    with (
        lab(tmp_path, disabled=WIDGETS) as address,
        run(browser, address, "02_exp_as_a_series") as notebook,
    ):
        assert notebook.page.locator(".softattn").count() == 0
        cell = notebook.page.locator(".jp-CodeCell", has_text="approximation_error.mount()")
        title = cell.locator(".jp-RenderedPlotly .gtitle")
        title.wait_for(state="attached")
        assert title.text_content() == "The series fails first at negative scores"
