"""Many runs from one file: the table, stopping and going on, mistakes in the file."""

from pathlib import Path

import datasets
import pytest

from softattn_lib import cli
from softattn_lib.tasks import sweep as module
from softattn_lib.tasks.records import read_rows
from softattn_lib.tasks.sweep import read_plan, sweep

ROOT = Path(__file__).resolve().parent.parent
RECALL = """
task: recall
variants: [softmax, 1_over_t]
seeds: [0, 1]
settings: {pairs: 3, symbols: 5, steps: 2, batch_size: 4}
"""
TEXT = """
task: text
preset: mini
variants: [softmax, taylor_2]
seeds: [0]
settings: {hidden_size: 16, mlp_size: 16, length: 8, batch_size: 2, steps: 2, evaluate_every: 2,
           held_out_sequences: 2}
"""


@pytest.fixture
def file(tmp_path):
    def write(content):
        path = tmp_path / "one.yaml"
        path.write_text(content)
        return path

    return write


def test_a_sweep_makes_one_row_for_each_variant_and_seed(file):
    table = sweep(file(RECALL))
    assert table.name == "one.csv"
    runs = [(row["variant"], row["seed"]) for row in read_rows(table)]
    assert runs == [("softmax", "0"), ("1_over_t", "0"), ("softmax", "1"), ("1_over_t", "1")]


def test_a_stopped_sweep_goes_on_where_it_was(file, monkeypatch):
    path, ran, recall = file(RECALL), [], module.recall

    def stops_at_the_third(name, seed, **settings):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append((name, seed))
        return recall(name, seed=seed, **settings)

    monkeypatch.setattr(module, "recall", stops_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        sweep(path)
    before = path.with_suffix(".csv").read_text()
    assert before.count("\n") == 3

    ran.clear()
    said = []
    with pytest.raises(KeyboardInterrupt):  # the two that were left, and no third
        monkeypatch.setattr(module, "recall", stops_at_the_third)
        sweep(path, report=said.append)
        sweep(file(RECALL.replace("[0, 1]", "[0, 1, 2]")))
    assert ran == [("softmax", 1), ("1_over_t", 1)]
    assert path.with_suffix(".csv").read_text().startswith(before)
    assert said[0] == "[1/4] softmax seed 0: done before"
    assert said[3].startswith("[4/4] 1_over_t seed 1: held-out loss ")


def test_a_finished_sweep_runs_nothing(file):
    path = file(RECALL)
    table = sweep(path)
    before = table.read_bytes()
    sweep(path)
    assert table.read_bytes() == before


def test_other_settings_are_other_runs(file):
    sweep(file(RECALL))
    table = sweep(file(RECALL.replace("steps: 2", "steps: 3")))
    assert len(read_rows(table)) == 8


def test_a_sweep_over_text_keeps_each_run_in_its_folder(file, tmp_path):
    table = sweep(file(TEXT + "folder: runs\nresults: results/all.csv\n"))
    assert table == tmp_path / "results/all.csv"
    assert [row["variant"] for row in read_rows(table)] == ["softmax", "taylor_2"]
    for name in ["softmax-seed0", "taylor_2-seed0"]:
        assert (tmp_path / "runs" / name / "model.safetensors").is_file()


def test_another_text_is_another_run(file, tmp_path):
    (tmp_path / "own.txt").write_text("In the beginning was the Word. " * 20)
    datasets.Dataset.from_dict({"verse": ["In the beginning was the Word."] * 40}).save_to_disk(
        tmp_path / "verses"
    )
    sweep(file(TEXT))
    sweep(file(TEXT + "text: own.txt\n"))
    table = sweep(file(TEXT + f"dataset: {tmp_path / 'verses'}\ncolumn: verse\n"))
    texts = [row["text"] for row in read_rows(table)]
    assert texts == ["king_james"] * 2 + ["own.txt"] * 2 + ["data set"] * 2


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("- softmax", "must hold names and values"),
        (RECALL.replace("task: recall", ""), "lacks 'task'"),
        (RECALL.replace("recall", "recal"), "task must be one of recall, text; got 'recal'"),
        (RECALL + "variant: softmax", "has 'variant'; legal are task, variants, seeds"),
        (RECALL.replace("[0, 1]", "3"), "seeds must be a list of int, got 3"),
        (RECALL.replace("[0, 1]", "[a]"), "seeds must be a list of int"),
        (RECALL.replace("steps", "stops"), "no setting 'stops'; there are pairs"),
        (RECALL.replace("1_over_t", "1_over_tt"), "got '1_over_tt'"),
        (RECALL.replace("1_over_t", "linear_mamba"), "'linear_mamba' cannot be built"),
        (RECALL + "preset: small", "has 'preset', which belongs to the task text"),
        (TEXT.replace("preset: mini", ""), "lacks 'preset'"),
        (TEXT.replace("mini", "micro"), "preset must be one of mini, small"),
    ],
)
def test_a_mistake_in_the_file_is_named_before_anything_runs(content, named, file):
    path = file(content)
    with pytest.raises((ValueError, KeyError, NotImplementedError), match=named):
        sweep(path)
    assert not path.with_suffix(".csv").exists()


def test_the_files_of_the_experiments_are_sound():
    plans = [read_plan(path) for path in sorted((ROOT / "experiments").glob("*.yaml"))]
    assert len(plans) >= 2
    for plan in plans:
        assert len(set(plan.variants)) == len(plan.variants)
        assert len(plan.seeds) >= 3


# The command line


def test_the_command_sweeps(file, capsys):
    path = file(RECALL)
    assert cli.main(["sweep", str(path)]) == 0
    assert "[4/4] 1_over_t seed 1: held-out loss" in capsys.readouterr().out
    assert len(read_rows(path.with_suffix(".csv"))) == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sweep", "missing.yaml"], "softattn sweep: file is 'missing.yaml', and there is no such"),
        (["train", "--text", "missing.txt"], "softattn train: text is 'missing.txt', and there"),
        (["train", "--preset", "huge"], "softattn train: preset must be one of mini, small"),
        (["train", "--variant", "huge"], "softattn train: name must be taylor_N, power_N"),
        (["train", "--set", "steps"], "softattn train: a setting is written NAME=VALUE"),
        (["recall", "--set", "pairs=99"], "softattn recall: pairs is 99; there are only 32"),
        (["recall", "--variant", "linear_mamba"], "softattn recall: variant 'linear_mamba' cannot"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(said) and shown.count("\n") == 1


def test_the_command_recalls(tmp_path, capsys):
    table = tmp_path / "recall.csv"
    arguments = ["recall", "--variant", "softmax", "l2", "--seeds", "0", "1", "--results", table]
    arguments += ["--set", "pairs=2", "symbols=4", "steps=2"]
    assert cli.main(list(map(str, arguments))) == 0
    assert capsys.readouterr().out.count("accuracy") == 4
    assert len(read_rows(table)) == 4


def test_the_command_trains_where_it_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "--variant", "taylor_2", "--seed", "3", "--set", "length=8", "steps=2",
                 "batch_size=2", "held_out_sequences=2", "evaluate_every=2"]  # fmt: skip
    assert cli.main(arguments) == 0
    assert "held-out loss" in capsys.readouterr().out
    assert (tmp_path / "runs/taylor_2-mini-seed3/model.safetensors").is_file()
    assert len(read_rows(tmp_path / "runs/results.csv")) == 1
    assert cli.main(arguments) == 1
    assert "holds a finished run; choose another" in capsys.readouterr().err
