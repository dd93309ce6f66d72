"""The static pages: complete, alone, linked, described; and in a browser, without a network."""

import json
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tools import site
from tools.browser import complaints_of

ROOT = Path(__file__).parent.parent
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
PHONE = {"width": 400, "height": 800}


# What goes into a page


def test_what_a_notebook_uses():
    source = """
from softattn_lib import doctor, taylor, VARIANTS
from softattn_lib.widgets import crossover as crossover_widget
doctor.check()
crossover_widget.mount([])
"""
    assert site.used(source) == {
        "softattn_lib.doctor",
        "softattn_lib.doctor.check",
        "softattn_lib.polynomials.taylor",
        "softattn_lib.widgets.crossover",
        "softattn_lib.widgets.crossover.mount",
    }


def test_markup_in_docstrings_is_text_but_in_code_and_examples():
    lines = ["at |x| of 2**n, a_ and `|x|`:", "    >>> 2**3", "    8 | 9", "", "* not a list"]
    assert list(site.escaped(lines)) == [
        r"at \|x\| of 2\*\*n, a\_ and `|x|`:",
        "    >>> 2**3",
        "    8 | 9",
        "",
        r"\* not a list",
    ]


def test_words_of_a_figure():
    layout = {"title": {"text": "Powers", "subtitle": {"text": "of k<sub>4</sub> &lt; 1<br>here"}}}
    assert site.words(layout) == "Powers. of k 4 < 1 here"


def test_what_is_no_longer_staged_goes(tmp_path):
    for name in ("kept", "gone"):
        (tmp_path / name).write_text("old")
    files = site.Stage(tmp_path)
    files.write("kept", "new")
    assert files.finish() == ["gone"]
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"kept": "new"}


def test_without_the_small_model_figures_stay_as_stored(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(site, "CACHE", tmp_path)
    monkeypatch.setattr(site.small_model, "is_ready", lambda: False)
    assert site.frames("notebooks/00_start_here") == {}
    assert "00_start_here: no sliders without the small model" in capsys.readouterr().out
    assert '<figure class=\\"plot\\"' in site.page("notebooks/00_start_here", {})


def test_answers_are_folded_away_and_figures_are_not():
    cells = json.loads(site.page("notebooks/00_start_here", {}))["cells"]
    folded = ["".join(c["source"]) for c in cells if "hide-output" in c["metadata"].get("tags", [])]
    assert len(folded) == 2 and all("reveal(" in source for source in folded)


# The pages as files


class Page(HTMLParser):
    """Tags of a page with their attributes, and all ids."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.ids = [], set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self.ids.add(attributes.get("id"))

    def values(self, tag, attribute):
        return [a[attribute] for name, a in self.tags if name == tag and a.get(attribute)]


parse = cache(Page)


@pytest.fixture(scope="module")
def pages():
    """All pages, built by `make site`'s own command, which fails on any warning of Sphinx."""
    for needed in ("sphinx", "mathjax", "myst_nb", "furo"):
        pytest.importorskip(needed, reason="the extra `site` is missing: `make site` installs it")
    command = [sys.executable, "-m", "tools.site"]
    subprocess.run(command, cwd=ROOT, check=True)
    return sorted(site.TARGET.rglob("*.html"))


@pytest.mark.slow
def test_every_notebook_and_every_module_has_a_page(pages):
    expected = {f"{path}.html" for path in site.all_notebooks()}
    expected |= {f"reference/{module}.html" for module in site.modules()}
    assert len(site.all_notebooks()) >= 12 and len(site.modules()) > 40
    assert expected <= {page.relative_to(site.TARGET).as_posix() for page in pages}


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(pages):
    for page in pages:
        for tag, attribute in LOADED.items():
            for url in parse(page).values(tag, attribute):
                assert not urlsplit(url).netloc and urlsplit(url).scheme in ("", "data"), (
                    page,
                    url,
                )
    for sheet in site.TARGET.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert not re.search(r"(@import|url\()[\s'\"(]*(https?:)?//", text), sheet


@pytest.mark.slow
def test_every_link_inside_leads_somewhere(pages):
    for page in pages:
        for url in parse(page).values("a", "href"):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert target.is_file(), (page, url)
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in parse(target).ids, (page, url)


@pytest.mark.slow
def test_every_figure_says_what_is_seen(pages):
    figures = 0
    for page in pages:
        for tag, attributes in parse(page).tags:
            if tag == "img":
                assert attributes.get("alt", "").strip(), (page, attributes)
            if "canvas" in attributes.get("class", "").split():
                assert attributes["role"] == "img"
                assert len(attributes["aria-label"]) > 40, (page, attributes)
                figures += 1
    assert figures > 20


@pytest.mark.slow
def test_notebooks_and_reference_are_linked_both_ways(pages):
    notebook = "notebooks/02_exp_as_a_series"
    links = parse(site.TARGET / f"{notebook}.html").values("a", "href")
    assert "../reference/softattn_lib.polynomials.html#softattn_lib.polynomials.taylor" in links
    links = parse(site.TARGET / "reference/softattn_lib.polynomials.html").values("a", "href")
    assert f"../{notebook}.html" in links


@pytest.mark.slow
def test_every_widget_with_controls_has_frames(pages):
    with_slider = [path for path in site.all_notebooks() if site.frames(path)]
    widgets = {
        name
        for path in site.all_notebooks()
        for name in site.used(site.code(site.read(path)))
        if re.fullmatch(r"softattn_lib\.widgets\.\w+", name)
        and hasattr(sys.modules[name], "draw")
        and name != "softattn_lib.widgets.live_training"  # a curve that is drawn while it trains
    }
    for path in with_slider:
        (figure,) = site.frames(path).values()
        assert 3 < len(figure["frames"]) <= 13
        assert len(figure["layout"]["meta"]["read_outs"]) == len(figure["frames"])
        assert len(json.dumps(figure)) < 300_000
    if site.small_model.is_ready():
        assert len(with_slider) == len(widgets)


# The pages in a browser


def visit(browser, path, **options):
    """A page opened as a file with its formulas typeset, and a list that its complaints go to."""
    tab = browser.new_page(**options)
    complaints = complaints_of(tab, "file:", "data:")
    tab.goto(path.as_uri())
    tab.wait_for_function("() => !window.MathJax || window.MathJax.startup?.promise")
    tab.evaluate("() => window.MathJax?.startup.promise")
    return tab, complaints


@pytest.mark.slow
def test_formulas_are_typeset_and_nothing_is_wider_than_a_phone(pages, browser):
    formulas = 0
    for page in pages:
        tab, complaints = visit(browser, page, viewport=PHONE)
        written, typeset, wrong = tab.evaluate(
            "() => ['.math', 'mjx-container', '[data-mml-node=merror]']"
            ".map(found => document.querySelectorAll(found).length)"
        )
        assert typeset >= written and not wrong, page
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= PHONE["width"], page
        assert not complaints, (page, complaints)
        formulas += typeset
        tab.close()
    assert formulas > 500


FIGURES = """async () => {
  const figures = [...document.querySelectorAll("figure.plot")];
  for (const figure of figures) {
    figure.scrollIntoView();
    while (!figure.classList.contains("drawn")) await new Promise(done => setTimeout(done, 20));
  }
  return figures.map(figure => figure.querySelector(".canvas").getBoundingClientRect().width);
}"""
SHOWN = """figure => {
  const { data, layout } = figure.querySelector(".canvas");
  const numbers = data.map(trace => ["x", "y", "z"].map(axis => JSON.stringify(trace[axis])));
  const drawn = figure.querySelector(".canvas").innerHTML;
  return [JSON.stringify(numbers), layout.title.subtitle.text, drawn.replace(/[0-9a-f]{6}/g, "")];
}"""


@pytest.mark.slow
def test_figures_are_drawn_and_their_sliders_move_them_by_keyboard(pages, browser):
    sliders = 0
    for path in site.all_notebooks():
        tab, complaints = visit(browser, site.TARGET / f"{path}.html", viewport=PHONE)
        assert all(250 < width <= PHONE["width"] for width in tab.evaluate(FIGURES)), path
        for figure in tab.query_selector_all("figure.plot:has(input)"):
            frames = json.loads(figure.query_selector("script").inner_text())["frames"]
            handle = figure.query_selector("input")
            handle.focus()
            tab.keyboard.press("Home")
            tab.wait_for_timeout(300)
            first = figure.evaluate(SHOWN)
            tab.keyboard.press("ArrowRight")
            tab.wait_for_timeout(300)
            second = figure.evaluate(SHOWN)
            assert first[2] != second[2], path
            assert second[1] == frames[1]["layout"]["title"]["subtitle"]["text"] != first[1], path
            assert handle.get_attribute("aria-valuetext") == frames[1]["name"]
            sliders += 1
        assert not complaints, (path, complaints)
        tab.close()
    assert sliders >= 8


CONTRAST = """elements => {
  const paint = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = colour => {
    paint.clearRect(0, 0, 1, 1);
    paint.fillStyle = colour;
    paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data];
  };
  const linear = c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255)
    + 0.0722 * linear(b / 255);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = rgb(getComputedStyle(element).backgroundColor);
      if (colour[3] > 200) return colour;
    }
    return [255, 255, 255];
  };
  return elements.filter(element => element.textContent.trim()).map(element => {
    const style = getComputedStyle(element);
    const svg = element instanceof SVGElement;
    const [a, b] = [light(rgb(svg ? style.fill : style.color)), light(behind(element))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), element.textContent.slice(0, 40)];
  });
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(pages, browser, scheme):
    page = site.TARGET / "notebooks" / "02_exp_as_a_series.html"
    tab, _ = visit(browser, page, viewport=PHONE, color_scheme=scheme)
    tab.evaluate(FIGURES)
    backgrounds = tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (backgrounds == "rgb(255, 255, 255)") == (scheme == "light")
    for part, least in {
        "article p:not(.fixed)": 7,
        "article h2": 7,
        "mjx-container": 7,
        ".cell_output pre": 7,
        ".cell_input pre": 7,
        ".cell_input pre span": 4.5,
        ".plot .infolayer text": 7,
        ".plot .xtick text": 7,
        ".plot .read-out": 7,
        ".plot .fixed": 4.5,
    }.items():
        found = tab.eval_on_selector_all(part, CONTRAST)
        assert found, part
        assert min(found)[0] >= least, (part, min(found))
    tab.close()
