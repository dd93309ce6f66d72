"""Trained models tested with other variants: right numbers, and what does not fit is refused."""

from dataclasses import replace

import datasets
import pytest
import torch

from softattn_lib import cli
from softattn_lib.tasks import evaluation as module
from softattn_lib.tasks.evaluation import evaluate
from softattn_lib.tasks.records import read_rows
from softattn_lib.tasks.training import train
from softattn_lib.variants import variant

LOSS = "held_out_loss"
pytestmark = pytest.mark.slow  # it trains, and imports what training needs

TINY = {"hidden_size": 16, "mlp_size": 16, "length": 8, "batch_size": 4, "steps": 3} | {
    "held_out_sequences": 6,
    "learning_rate": 0.03,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, train("softmax", "mini", seed=1, folder=folder, **TINY)


def test_the_variant_of_the_run_gives_the_loss_of_the_run(trained):
    folder, result = trained
    row = evaluate(folder)
    assert float(row["held_out_loss"]) == pytest.approx(result.held_out_loss, abs=1e-4)
    assert (row["trained"], row["tested"], row["seed"]) == ("softmax", "softmax", 1)


def test_another_variant_takes_part(trained):
    folder, result = trained
    losses = {name: float(evaluate(folder, name)["held_out_loss"]) for name in ("taylor_20", "l2")}
    assert losses["taylor_20"] == pytest.approx(result.held_out_loss, abs=1e-3)
    assert losses["l2"] != pytest.approx(result.held_out_loss, abs=1e-3)


def test_a_variant_of_ones_own_is_told_from_one_of_that_name(trained):
    own = replace(variant("taylor_2"), name="softmax")
    assert evaluate(trained[0], own)["held_out_loss"] == evaluate(trained[0], "taylor_2")[LOSS]


def test_a_run_of_a_variant_of_ones_own(tmp_path):
    own = replace(variant("gate"), name="mine")
    result = train(own, "mini", folder=tmp_path, **TINY)
    row = evaluate(tmp_path, own, trained_with=own)
    assert float(row[LOSS]) == pytest.approx(result.held_out_loss, abs=1e-4)
    assert (row["trained"], row["tested"]) == ("mine", "mine")
    other = evaluate(tmp_path, "taylor_2", trained_with=own)
    assert (other["trained"], other["tested"]) == ("mine", "taylor_2") and other[LOSS] != row[LOSS]


def test_a_loss_that_overflows_is_nan(trained, monkeypatch):
    def overflows(model, ids):
        raise OverflowError

    monkeypatch.setattr(module, "next_token_losses", overflows)
    assert evaluate(trained[0])[LOSS] == "nan"


def test_testing_draws_no_random_numbers(trained):
    state = torch.random.get_rng_state()
    evaluate(trained[0])
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_text_and_column_of_a_data_set_are_used(tmp_path):
    table = datasets.Dataset.from_dict({"words": ["so it came to pass that they went"] * 40})
    result = train("softmax", "mini", text=table, column="words", folder=tmp_path, **TINY)
    row = evaluate(tmp_path, text=table, column="words")
    assert float(row[LOSS]) == pytest.approx(result.held_out_loss, abs=1e-4)
    assert row["text"] == result.text


def test_a_variant_that_has_something_to_learn_is_refused(trained):
    with pytest.raises(ValueError, match="variant 'gate' learns output gate, which is not"):
        evaluate(trained[0], "gate")


def test_another_text_than_the_runs_is_refused(trained, tmp_path):
    (tmp_path / "other.txt").write_text("another text, long enough to be cut " * 40)
    with pytest.raises(ValueError, match=r"is not what .* has read"):
        evaluate(trained[0], text=tmp_path / "other.txt")


def test_the_command_appends_rows(trained, tmp_path, capsys):
    table, other = tmp_path / "table.csv", tmp_path / "other"
    train("taylor_4", "mini", folder=other, **TINY)
    arguments = ["--variant", "softmax", "taylor_2", "--results", str(table)]
    assert cli.main(["evaluate", str(trained[0]), str(other), *arguments]) == 0
    tested = [(row["trained"], row["tested"]) for row in read_rows(table)]
    assert tested == [(a, b) for a in ("softmax", "taylor_4") for b in ("softmax", "taylor_2")]
    assert "trained with softmax (seed 1), tested with taylor_2" in capsys.readouterr().out


def test_the_command_says_in_a_line_what_is_missing(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path), "--variant", "l2"]) == 1
    assert "holds no finished run" in capsys.readouterr().err


def test_the_command_reads_the_text_it_is_given(tmp_path, capsys):
    (tmp_path / "own.txt").write_text("and it came to pass in those days " * 60)
    result = train("softmax", "mini", text=tmp_path / "own.txt", folder=tmp_path / "run", **TINY)
    arguments = ["evaluate", str(tmp_path / "run"), "--variant", "softmax"]
    assert cli.main([*arguments, "--text", str(tmp_path / "own.txt")]) == 0
    assert f"{result.held_out_loss:.4f}" in capsys.readouterr().out


def test_the_command_tests_nothing_for_a_table_that_does_not_fit(trained, tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("a,b\n1,2\n")
    arguments = ["evaluate", str(trained[0]), "--variant", "softmax", "--results", str(table)]
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == "" and "has the columns ['a', 'b']" in err
