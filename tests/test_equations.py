"""Every equation of the derivation resolves and holds, on sizes that are all different."""

import json
from pathlib import Path

import pytest

from softattn_lib import equations
from softattn_lib.equations import EQUATIONS, SIZES

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def test_the_sizes_are_all_different():
    assert len(set(SIZES.values())) == len(SIZES) and min(SIZES.values()) > 1


@pytest.mark.parametrize("number", EQUATIONS)
def test_equation_holds(number):
    assert number in equations.check(number)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("number", EQUATIONS)
def test_equation_holds_on_other_inputs(number, seed):
    difference = EQUATIONS[number].measure(equations.random_inputs(seed))
    print(f"equation {number}: sides differ by {difference:.1e}")
    assert difference < equations.TOLERANCE


@pytest.mark.parametrize("number", EQUATIONS)
def test_function_resolves(number):
    assert callable(EQUATIONS[number].resolve())


@pytest.mark.parametrize("number", EQUATIONS)
def test_a_notebook_states_the_equation_and_checks_it_within_two_cells(number):
    equation = EQUATIONS[number]
    cells = json.loads((NOTEBOOKS / f"{equation.notebook}.ipynb").read_text())["cells"]
    stated = [i for i, c in enumerate(cells) if rf"\tag{{{number}}}" in "".join(c["source"])]
    checked = [i for i, c in enumerate(cells) if equation.tag in c["metadata"].get("tags", [])]
    assert len(checked) == 1, f"one cell of {equation.notebook} has the tag {equation.tag}"
    assert stated and 0 < checked[0] - stated[0] <= 2


def test_test_ids_exist(request):
    here = {item.nodeid for item in request.session.items}
    for equation in EQUATIONS.values():
        if len(here) > len(EQUATIONS):  # not when a single test was asked for
            assert equation.test_id in here


def test_a_wrong_equation_is_found(monkeypatch):
    monkeypatch.setattr("softattn_lib.features.kronecker_power", lambda x, n: x.repeat(1, 1, 1, n))
    with pytest.raises((AssertionError, RuntimeError)):
        equations.check("3.1")


def test_an_unknown_number_names_the_known_ones():
    with pytest.raises(KeyError, match=r"5\.2"):
        equations.check("9.9")
