"""The command `softattn`."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from softattn_lib import cli, doctor, llama, small_model
from softattn_lib.calibration import calibrate, judge, load_calibration
from softattn_lib.tasks import beyond_taylor
from softattn_lib.tasks.records import read_rows


def test_doctor_prints_the_report_and_its_status_says_whether_all_is_well(monkeypatch, capsys):
    for well, status in [(True, 0), (False, 1)]:
        monkeypatch.setattr(doctor, "report", lambda well=well: ("the report", well))
        assert cli.main(["doctor"]) == status
        assert capsys.readouterr().out == "the report\n"


@pytest.mark.parametrize(("arguments", "from_hub"), [([], False), (["--from-hub"], True)])
def test_model_fetches_and_says_where_it_is(arguments, from_hub, monkeypatch, capsys, tmp_path):
    calls = []
    monkeypatch.setattr(small_model, "fetch", lambda **options: calls.append(options) or tmp_path)
    assert cli.main(["model", *arguments]) == 0
    assert calls == [{"from_hub": from_hub}]
    assert str(tmp_path) in capsys.readouterr().out


def test_a_model_that_cannot_be_fetched_is_one_line(monkeypatch, capsys):
    def fetch(**options):
        raise small_model.SmallModelError("no network")

    monkeypatch.setattr(small_model, "fetch", fetch)
    assert cli.main(["model"]) == 1
    assert capsys.readouterr() == ("", "softattn model: no network\n")


@pytest.mark.parametrize("arguments", [[], ["modell"], ["model", "--from-hubb"]])
def test_a_wrong_command_is_refused_with_the_legal_ones(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: softattn" in capsys.readouterr().err


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=12,
        intermediate_size=20,
        head_dim=4,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


@pytest.mark.filterwarnings("ignore::softattn_lib.calibration.ScoresOutsideWarning")
def test_adapt_stores_the_result_and_says_what_came_of_it(model, tmp_path, monkeypatch, capsys):
    file, stored, out, results = (tmp_path / name for name in ("text", "before", "after", "table"))
    file.write_text("the cat sat on the mat and looked at the other cat")
    ids = torch.tensor([[ord(c) for c in file.read_text()]])
    calibrate(model, {"cat": ids}, 2, "square").save(stored)

    def tokenizer(text, verbose):
        return {"input_ids": [ord(c) for c in text]}

    monkeypatch.setattr(llama, "load_small_model", lambda: (model, tokenizer))
    monkeypatch.setattr(beyond_taylor, "held_out_sequences", lambda tokenizer, count: {"cat": ids})
    command = ["adapt", str(stored), "--out", str(out), "--text", str(file), "--length", "20"]
    command += ["--steps", "20", "--cpu", "--learning-rate", "0.01", "--results", str(results)]
    assert cli.main(command) == 0
    shown = capsys.readouterr().out.splitlines()
    before, after = (float(line.split()[-1]) for line in shown[:2])
    assert after < before
    (row,) = read_rows(results)
    assert list(row) == beyond_taylor.ADAPTED_COLUMNS
    assert row["before"] == f"{judge(model, ids, load_calibration(stored)).loss:.4f}"
    assert row["after"] == f"{judge(model, ids, load_calibration(out)).loss:.4f}"
    assert row["softmax"] == f"{judge(model, ids, None).loss:.4f}"
    assert f"held-out loss {row['before']} before, {row['after']} after" in shown[2]

    assert cli.main([*command[:-2], "--held-out", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_adapt_without_a_calibration_is_one_line(tmp_path, capsys):
    assert cli.main(["adapt", str(tmp_path / "none"), "--out", "out"]) == 1
    assert "no such file" in capsys.readouterr().err


def test_adapt_into_a_folder_is_refused_before_it_begins(tmp_path, capsys):
    assert cli.main(["adapt", str(tmp_path / "none"), "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"softattn adapt: --out is {tmp_path}, a folder; name a file in it\n"
    )


def test_adapt_without_the_small_model_is_one_line(model, tmp_path, monkeypatch, capsys):
    calibrate(model, {"digits": torch.arange(20)[None]}, 2, "square").save(tmp_path / "stored")
    monkeypatch.setenv("SOFTATTN_CACHE", str(tmp_path / "empty"))
    assert cli.main(["adapt", str(tmp_path / "stored"), "--out", str(tmp_path / "out")]) == 1
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    assert error.startswith("softattn adapt: the small model is not in ")
    assert "run `softattn model`" in error


@pytest.mark.slow
def test_the_installed_command_lists_what_there_is():
    command = [Path(sys.executable).with_name("softattn"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "doctor" in shown
    assert "model" in shown
