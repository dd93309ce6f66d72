"""Sphinx reads this, beside the pages that `python -m tools.site` puts together."""

import sys
from pathlib import Path

from docutils.nodes import Text, math_block

ROOT = next(p for p in Path(__file__).resolve().parents if (p / "pyproject.toml").exists())
sys.path.insert(0, str(ROOT))

from tools import site  # noqa: E402

project = "Softmax attention is a sum of recurrent networks"
copyright = "the authors; code under MIT, text and figures under CC BY 4.0"
html_title = "softattn_lib"
language = "en"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]

# Notebooks and other Markdown
nb_execution_mode = "off"
nb_merge_streams = True
nb_code_prompt_show = "Show the result"
nb_code_prompt_hide = "Hide the result"
myst_enable_extensions = ["dollarmath", "amsmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 4
myst_heading_slug_func = "tools.notebooks.anchor"

# The reference
default_role = "py:obj"  # `order` in a docstring is code, and a link where it names something
autodoc_default_options = {"ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
add_module_names = False
python_maximum_signature_line_length = 88

# Pages that load nothing from elsewhere
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_js_files = [("figures.js", {"defer": "defer"})]
html_copy_source = False
html_show_sphinx = False
html_show_search_summary = False  # it would be fetched, which a page opened as a file may not
mathjax_path = "mathjax.js"
templates_path = []
exclude_patterns = ["**/.ipynb_checkpoints"]


def add_users(app, what, name, obj, options, lines):
    """Below what is described, name the notebooks that use it."""
    line = "" if what == "module" else site.used_in(name, USERS)
    if line:
        lines += ["", ".. rst-class:: used", "", line]


def escape(app, what, name, obj, options, lines):
    """Docstrings are plain text: |x|, 2**n and *args are no markup."""
    lines[:] = site.escaped(lines)


def keep_tags(app, doctree):
    """Take formulas of several lines that have a number as they are: `split` allows no number."""
    for formula in doctree.findall(math_block):
        text = formula.astext()
        if r"\tag" in text and r"\\" in text:
            formula["no-wrap"] = formula["nowrap"] = True
            formula.children = [Text(rf"\[{text}\]")]


def find_exported(app, env, node, content):
    """Link names without their module where the package exports them, or from its root."""
    exported = site.exported()
    target = exported.get(node["reftarget"], f"{site.PACKAGE}.{node['reftarget']}")
    if node["refdomain"] == "py":
        where = env.docname, app.builder, "obj", target, node, content
        return env.get_domain("py").resolve_xref(env, *where)


def setup(app):
    app.connect("doctree-read", keep_tags)
    app.connect("missing-reference", find_exported)
    app.connect("autodoc-process-docstring", escape, priority=100)  # before napoleon
    app.connect("autodoc-process-docstring", add_users)


USERS = site.uses()
