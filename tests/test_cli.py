"""The command `softattn`."""

import subprocess
import sys
from pathlib import Path

import pytest

from softattn_lib import cli, doctor, small_model


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


@pytest.mark.slow
def test_the_installed_command_lists_what_there_is():
    command = [Path(sys.executable).with_name("softattn"), "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "doctor" in shown
    assert "model" in shown
