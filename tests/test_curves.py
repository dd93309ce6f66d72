"""The table of curves: which runs are in it, what of ten steps is kept, and no half table."""

import json
import math

import pytest

from softattn_lib.tasks.records import read_rows
from tools import curves


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Two sweeps with one run each, 12 steps, losses 1 to 12 and gradient norms 10 to 120."""
    for sweep in curves.SWEEPS:
        write_run(tmp_path / "runs" / sweep / "l2-seed1", range(1, 13))
    monkeypatch.setattr(curves, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(curves, "ROOT", tmp_path)
    monkeypatch.setattr(curves, "TABLE", tmp_path / "curves.csv")
    return tmp_path / "runs"


def write_run(folder, losses):
    folder.mkdir(parents=True)
    name, seed = folder.name.split("-seed")
    (folder / "result.json").write_text(json.dumps({"variant": name, "seed": int(seed)}))
    lines = [f"{n},{x},{10 * x}" for n, x in enumerate(losses, start=1)]
    (folder / "curve.csv").write_text("\n".join(["step,train_loss,gradient_norm", *lines]) + "\n")


def test_of_ten_steps_mean_and_largest_are_kept(runs):
    curves.main()
    rows = read_rows(curves.TABLE)
    assert [(row["sweep"], row["step"]) for row in rows] == [
        ("small", "10"), ("small", "12"), ("stability", "10"), ("stability", "12"),
    ]  # fmt: skip
    first, rest = rows[:2]
    assert (first["train_loss"], first["largest_loss"]) == ("5.5000", "10.0000")
    assert (rest["gradient_norm"], rest["largest_gradient_norm"]) == ("115.0000", "120.0000")
    assert (first["variant"], first["seed"]) == ("l2", "1")


def test_runs_come_by_seed_and_nan_stays(runs):
    write_run(runs / "small" / "softmax-seed0", [1.0, math.nan, 3.0])
    curves.main()
    first = read_rows(curves.TABLE)[0]
    assert (first["variant"], first["seed"]) == ("softmax", "0")
    assert first["train_loss"] == first["largest_loss"] == first["largest_gradient_norm"] == "nan"


def test_a_table_is_not_replaced_by_half_of_one(runs):
    curves.TABLE.write_text("what was there")
    for file in (runs / "stability").glob("*/result.json"):
        file.unlink()
    with pytest.raises(SystemExit, match="stability holds no finished run; do them with `softattn"):
        curves.main()
    assert curves.TABLE.read_text() == "what was there"
