"""Trained models tested with other variants: right numbers, and what does not fit is refused."""

import pytest

from softattn_lib import cli
from softattn_lib.tasks.evaluation import evaluate
from softattn_lib.tasks.records import read_rows
from softattn_lib.tasks.training import train

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


def test_a_variant_that_has_something_to_learn_is_refused(trained):
    with pytest.raises(ValueError, match="variant 'gate' learns output gate, which a model"):
        evaluate(trained[0], "gate")


def test_another_text_than_the_runs_is_refused(trained, tmp_path):
    (tmp_path / "other.txt").write_text("another text, long enough to be cut " * 40)
    with pytest.raises(ValueError, match=r"is not what .* has read"):
        evaluate(trained[0], text=tmp_path / "other.txt")


def test_the_command_appends_rows(trained, tmp_path, capsys):
    table = tmp_path / "table.csv"
    arguments = ["--variant", "softmax", "taylor_2", "--results", str(table)]
    assert cli.main(["evaluate", str(trained[0]), *arguments]) == 0
    assert [row["tested"] for row in read_rows(table)] == ["softmax", "taylor_2"]
    assert "trained with softmax (seed 1), tested with taylor_2" in capsys.readouterr().out


def test_the_command_says_in_a_line_what_is_missing(tmp_path, capsys):
    assert cli.main(["evaluate", str(tmp_path), "--variant", "l2"]) == 1
    assert "holds no finished run" in capsys.readouterr().err
