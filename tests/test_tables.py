"""The committed tables are whole, and a run made anew falls within their spread."""

from itertools import product
from pathlib import Path

import pytest

from softattn_lib.calibration import FAMILIES, ONLY_EVEN, load_calibration
from softattn_lib.llama import load_small_model
from softattn_lib.tasks.beyond_taylor import ORDERS, held_out_sequences, quiet_judge
from softattn_lib.tasks.presets import PRESETS
from softattn_lib.tasks.recall import recall
from softattn_lib.tasks.records import read_rows, summarize
from softattn_lib.tasks.sweep import read_plan
from softattn_lib.tasks.training import load_trained, train

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "experiments"
PLANS = sorted(TABLES.glob("*.yaml"))
TRAINED = sorted(path for path in (TABLES / "trained").iterdir() if path.is_dir())


def spread(table, column, variant):
    """Mean, and how far from it a run may be: the range of the seeds on either side."""
    summary = summarize(read_rows(TABLES / f"{table}.csv"), column)[variant]
    return summary.mean, summary.highest - summary.lowest


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_a_table_has_each_run_of_its_plan_once(plan):
    wanted = read_plan(plan)
    found = [(row["variant"], int(row["seed"])) for row in read_rows(wanted.results)]
    assert found == [(name, seed) for seed in wanted.seeds for name in wanted.variants]


def test_the_curves_are_those_of_the_tables():
    rows = read_rows(TABLES / "curves.csv")
    runs = {(row["sweep"], row["variant"], row["seed"]) for row in rows}
    for sweep, preset in (("small", "small"), ("stability", "mini")):
        finished = [r for r in read_rows(TABLES / f"{sweep}.csv") if r["status"] == "finished"]
        for row in finished:
            run = (sweep, row["variant"], row["seed"])
            assert run in runs
            steps = [int(r["step"]) for r in rows if (r["sweep"], r["variant"], r["seed"]) == run]
            assert steps == list(range(10, PRESETS[preset].steps + 1, 10))


def test_models_are_tested_with_each_others_attention():
    rows = read_rows(TABLES / "truncation.csv")
    names = ["softmax", *(f"taylor_{n}" for n in (1, 2, 3, 4, 6, 8, 10))]
    wanted = {(a, b, seed) for a in names for b in names for seed in "012"}
    assert {(row["trained"], row["tested"], row["seed"]) for row in rows} == wanted
    assert len(rows) == len(wanted)


def test_a_model_tested_with_its_own_attention_has_the_loss_of_its_run():
    trained = {
        (row["variant"], row["seed"]): float(row["held_out_loss"])
        for row in read_rows(TABLES / "small.csv")
    }
    for row in read_rows(TABLES / "truncation.csv"):
        if row["trained"] == row["tested"]:
            expected = trained[row["trained"], row["seed"]]
            assert float(row["held_out_loss"]) == pytest.approx(expected, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("folder", TRAINED, ids=lambda path: path.name)
def test_a_trained_model_is_small_and_loads(folder):
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2e6
    model, tokenizer = load_trained(folder)
    text = "And God said, Let there be"
    ids = tokenizer.encode(text).unsqueeze(0)
    out = model.generate(ids, max_new_tokens=4, do_sample=False)
    assert tokenizer.decode(out[0]).startswith(text)


@pytest.mark.slow
def test_a_row_of_recall_is_reproduced():
    mean, width = spread("recall", "accuracy", "linear_elu")
    assert recall("linear_elu", seed=0).accuracy == pytest.approx(mean, abs=2 * width)


@pytest.mark.slow
def test_a_row_of_small_is_reproduced():
    mean, width = spread("small", "held_out_loss", "softmax")
    assert train("softmax", "small", seed=0).held_out_loss == pytest.approx(mean, abs=2 * width)


def extra_loss(family, order):
    """How far above softmax, for each of the three held-out texts."""
    rows = read_rows(TABLES / "beyond_taylor.csv")
    softmax = {row["text"]: row for row in rows if row["family"] == "softmax"}
    found = [row for row in rows if (row["family"], row["order"]) == (family, str(order))]
    assert sorted(row["text"] for row in found) == ["code", "licence", "prose"] == sorted(softmax)
    assert all(int(row["tokens"]) >= 8000 for row in found)
    losses = [(float(row["held_out_loss"]), softmax[row["text"]]) for row in found]
    return [loss - float(row["held_out_loss"]) for loss, row in losses]


def test_every_family_is_measured_at_every_order():
    rows = read_rows(TABLES / "beyond_taylor.csv")
    found = [(row["family"], row["order"], row["text"]) for row in rows]
    assert len(set(found)) == len(found)
    there = {(family, int(order)) for family, order, _ in found if family != "softmax"}
    odd = {(family, order) for family in ONLY_EVEN for order in ORDERS if order % 2}
    assert there == set(product(FAMILIES, ORDERS)) - odd | {("taylor", 80)}
    for family, order in there:
        extra_loss(family, order)


@pytest.mark.parametrize(("order", "most"), [(8, 0.10), (12, 0.02)])
def test_sums_of_squares_come_as_close_to_softmax_as_promised(order, most):
    extra = extra_loss("sum_of_squares", order)
    assert sum(extra) / 3 <= most


def test_the_stored_calibrations_are_those_of_the_table():
    paths = sorted((TABLES / "calibrations").glob("*.safetensors"))
    assert paths
    for path in paths:
        fit = load_calibration(path)
        assert path.stem == f"{fit.family}-{fit.order}"
        assert len(fit.layers) == 30 and extra_loss(fit.family, fit.order)
        assert all(p.order == fit.order for layer in fit.layers for p in layer.polynomials)


@pytest.mark.parametrize("order", ["2", "4"])
def test_each_head_is_replaced_alone_and_then_with_the_others(order):
    alone = [row for row in read_rows(TABLES / "heads.csv") if row["order"] == order]
    heads = {(int(row["layer"]), int(row["head"])) for row in alone}
    assert len(alone) == len(heads) == 270
    rows = [row for row in read_rows(TABLES / "replaced.csv") if row["order"] == order]
    assert [int(row["replaced"]) for row in rows] == list(range(0, 271, 10))
    assert (rows[0]["free_kv_heads"], rows[-1]["free_kv_heads"]) == ("0", "90")
    assert rows[0]["held_out_loss"] < rows[-1]["held_out_loss"]


@pytest.mark.parametrize("order", ["2", "4", "6"])
def test_adaptation_lowers_the_mean_loss(order):
    rows = [row for row in read_rows(TABLES / "adapted.csv") if row["order"] == order]
    assert {row["text"] for row in rows} == {"prose", "code", "licence"}
    softmax, before, after = (
        sum(float(row[name]) for row in rows) for name in ("softmax", "before", "after")
    )
    assert softmax < after < before


@pytest.mark.slow
def test_a_row_of_beyond_taylor_is_reproduced():
    model, tokenizer = load_small_model()
    fit = load_calibration(TABLES / "calibrations" / "sum_of_squares-8.safetensors")
    ids = held_out_sequences(tokenizer, 1)["prose"]
    softmax = quiet_judge(model, ids, None).loss
    assert abs(quiet_judge(model, ids, fit).loss - softmax) < 0.1
