"""claims.md says what the tables say: written from them, and different where they differ."""

import math

import pytest

from tools import claims
from tools.claims import PAGE, Table, read_tables, verdict, verdicts


@pytest.fixture(scope="module")
def tables():
    return read_tables()


@pytest.mark.slow
def test_the_page_is_what_the_tables_give(tables):
    assert PAGE.read_text(encoding="utf-8") == claims.page(tables)


def test_every_variant_has_three_seeds(tables):
    for name in ("recall", "one_head", "small", "stress", "largest_norms", "cut_after"):
        for variant, summary in tables[name].summaries.items():
            assert len(summary.values) == 3, (name, variant)


def test_a_verdict_needs_all_facts_to_hold():
    assert verdict(True, True) == "holds"
    assert verdict(True, False) == "holds in part"
    assert verdict(False, False) == "does not show here"


def with_values(table: Table, **values) -> Table:
    """The table with other numbers for some variants."""
    rows = [
        {"variant": name, "seed": seed, "x": x}
        for name, summary in table.summaries.items()
        for seed, x in enumerate(values.get(name, summary.values))
    ]
    return Table(rows, "x")


@pytest.fixture(scope="module")
def agreeing(tables):
    """Tables changed so that they agree with every claim."""
    lower = {"rms": (1, 1, 1), "layer": (1, 1, 1), "no_denominator": (1.89, 1.89, 1.89)}
    small = with_values(tables["small"], **lower)
    norms = with_values(tables["largest_norms"], gate=(9, 9, 9))
    agreeing = tables | {"small": small, "largest_norms": norms}
    assert set(verdicts(**agreeing).values()) == {"holds"}
    return agreeing


@pytest.mark.parametrize(
    ("claim", "table", "values"),
    [
        ("C6", "small", {"l2": (9, 9, 9)}),
        ("C6", "small", {"layer": (math.nan, 1, 1)}),
        ("C8", "small", {"linear_relu": (0, 0, 0)}),
        ("C8", "small", {"taylor_2": (1.69, 1.69, 1.69)}),  # below order 4
        ("C8", "recall", {"linear_elu": (1, 1, 1)}),
        ("C9", "small", {"gate": (1.66, 1.66, 1.66)}),  # above l2 alone
        ("C9", "small", {"gate_clamp5": (0, 0, 0)}),
        ("C9", "small", {"l2": (1.7, 1.7, 1.7)}),  # above softmax, below the gate
        ("C10", "small", {"taylor_3": (0, 0, 0)}),
        ("C10", "recall", {"taylor_1": (1, 1, 1)}),
        ("C10", "recall", {"taylor_3": (1, 1, 1)}),
        ("C12", "small", {"1_over_t_clamp5": (9, 9, 9)}),
        ("C12", "small", {"1_over_t": (1, math.nan, 1)}),
        ("F1", "small", {"gate": (0, 0, 0)}),
        ("F1", "small", {"l2": (1.7, 1.7, 1.7)}),
        ("F2", "largest_norms", {"l2": (1e9, 1e9, 1e9)}),
        ("F4", "small", {"taylor_10": (9, 9, 9)}),
        ("F5", "small", {"cosine": (0, 0, 0)}),
        ("F6", "small", {"rms": (9, 9, 9)}),
        ("F6", "small", {"1_over_t": (9, 9, 9)}),
    ],
)
def test_other_numbers_give_another_verdict(agreeing, claim, table, values):
    other = agreeing | {table: with_values(agreeing[table], **values)}
    assert verdicts(**other)[claim] != "holds"


def test_the_clamp_has_to_bite_rarely(agreeing, monkeypatch):
    monkeypatch.setattr(claims, "gaussian_above_five", lambda: 0.1)
    assert verdicts(**agreeing)["C12"] != "holds"


def test_runs_are_compared_seed_by_seed():
    runs = (("a", 0, 1), ("b", 1, 6), ("a", 1, 5), ("b", 0, 2))  # in whatever order they stand
    rows = [{"variant": name, "seed": seed, "x": x} for name, seed, x in runs]
    table = Table(rows, "x")
    assert table.is_higher("b", "a") and not table.is_higher("a", "b")
    assert table.compared("b", "a") == "`b` is above `a` on every seed, by 1.000 on average"
    assert table.compared("a", "b") == "`a` is below `b` on every seed, by 1.000 on average"
    rows[0]["x"] = 3
    assert "depends on the seed" in Table(rows, "x").compared("a", "b")


def test_a_diverged_run_is_said_and_beats_nobody():
    runs = (("a", 0, "nan"), ("a", 1, 1), ("b", 0, 0), ("b", 1, 0), ("c", 0, -1), ("c", 1, -1))
    table = Table([{"variant": n, "seed": seed, "x": x} for n, seed, x in runs], "x")
    assert table.mean("a") == "diverged on some seed"
    assert not table.is_higher("a", "b") and not table.is_higher("b", "a")
    assert not table.is_not_higher("a", "b") and not table.is_not_higher("b", "a")
    assert table.is_not_higher("c", "b") and not table.is_not_higher("b", "c")
    assert table.from_lowest() == ["c", "b", "a"]


def test_the_largest_norm_is_taken_after_the_warm_up():
    def row(step, norm, seed=0):
        return {"sweep": "stability", "variant": "gate", "seed": seed, "step": step} | {
            "largest_gradient_norm": norm
        }

    rows = [row("10", "9"), row("60", "2"), row("70", "3"), row("60", "1", 1), row("70", "nan", 1)]
    first, second = claims.largest_norms(rows)
    assert first == {"variant": "gate", "seed": 0, "norm": 3.0}
    assert math.isnan(second["norm"])
