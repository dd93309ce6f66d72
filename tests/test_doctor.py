"""The check of the installation: quiet when all is well, one fix for each thing that is wrong."""

import sys
from importlib import metadata

import nbformat
import pytest
from nbclient import NotebookClient

from softattn_lib import doctor

REPORTED = ["python", "softattn_lib", "torch", "plotly", "anywidget", "ipywidgets", "jupyterlab"]
REPORTED += ["transformers", "device", "widgets", "small model"]


@pytest.fixture(autouse=True)
def model_is_there(monkeypatch, tmp_path):
    monkeypatch.delenv("SOFTATTN_DEVICE", raising=False)
    monkeypatch.setattr(doctor, "find_problem", lambda: None)
    monkeypatch.setattr(doctor, "model_dir", lambda: tmp_path)


@pytest.fixture
def installed(monkeypatch):
    """Pretend that a package has another version, or None: that it is missing."""
    real, pretended = metadata.version, {}

    def version(name):
        if pretended.get(name, "") is None:
            raise metadata.PackageNotFoundError(name)
        return pretended.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    return pretended


def wrong(model=True):
    return {finding.name: finding for finding in doctor.examine(model) if finding.fix}


def test_quiet_when_all_is_well(capsys):
    assert doctor.check(model=True) is None
    assert capsys.readouterr() == ("", "")


def test_the_report_has_a_line_for_each_thing_and_a_verdict(tmp_path):
    text, well = doctor.report()
    lines = text.splitlines()
    for name in REPORTED:
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1, name
    assert metadata.version("torch") in text
    assert str(tmp_path) in text
    assert lines[-1] == "All is well."
    assert well


def test_a_missing_package_has_one_fix(installed):
    installed["anywidget"] = None
    assert list(wrong()) == ["anywidget"]
    assert '-m pip install "anywidget>=' in wrong()["anywidget"].fix
    text, well = doctor.report()
    assert text.count("fix:") == 1
    assert "widgets          cannot work without anywidget" in text
    assert text.endswith("1 to mend, marked with !")
    assert not well


@pytest.mark.parametrize("name", ["anywidget", "ipywidgets"])
def test_what_has_a_stand_in_is_reported_and_stops_no_notebook(name, installed, capsys):
    installed[name] = None
    doctor.check()
    report = capsys.readouterr().out
    assert report.startswith("This notebook runs, with figures for widgets:\n")
    assert f"! {name}" in report and report.count("fix:") == 1
    installed["plotly"] = None
    with pytest.raises(doctor.SetupError, match=name):
        doctor.check()


def test_a_package_that_is_too_old_has_one_fix(installed):
    installed["plotly"] = "6.1.0"
    assert list(wrong()) == ["plotly"]
    assert wrong()["plotly"].value == "6.1.0, needed is plotly>=7"


def test_only_what_notebooks_need_is_asked_for(installed):
    installed["pytest"] = installed["kaleido"] = None
    assert not wrong()


def test_a_project_that_is_not_installed_has_one_fix(monkeypatch):
    def not_found(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_found)
    monkeypatch.setattr(metadata, "version", not_found)
    assert list(wrong()) == ["softattn_lib"]
    assert 'pip install -c constraints.txt -e ".[lab]"' in wrong()["softattn_lib"].fix


def test_a_widget_package_that_does_not_load_has_one_fix(monkeypatch):
    def broken(name):
        if name == "anywidget":
            raise ImportError("half of it is gone")

    monkeypatch.setattr(doctor, "import_module", broken)
    assert list(wrong()) == ["widgets"]
    assert wrong()["widgets"].value == "anywidget does not load: half of it is gone"
    assert wrong()["widgets"].fix.endswith("--force-reinstall anywidget")
    doctor.check()  # it has a stand-in


@pytest.mark.parametrize("name", ["gpu", "cuda:99"])
def test_a_device_that_is_not_there_has_one_fix(name, monkeypatch):
    monkeypatch.setenv("SOFTATTN_DEVICE", name)
    assert list(wrong()) == ["device"]
    assert name in wrong()["device"].value
    assert "unset it" in wrong()["device"].fix


def test_the_model_is_asked_for_only_where_it_is_needed(monkeypatch):
    monkeypatch.setattr(doctor, "find_problem", lambda: "half of it is gone")
    assert wrong()["small model"] == doctor.Finding(
        "small model", "half of it is gone", f"{sys.executable} -m softattn_lib.cli model"
    )
    doctor.check()
    with pytest.raises(doctor.SetupError, match=r"fix: .* -m softattn_lib\.cli model"):
        doctor.check(model=True)


def test_the_error_lists_all_that_is_wrong_and_nothing_else(installed):
    installed["plotly"] = installed["gguf"] = None
    with pytest.raises(doctor.SetupError) as caught:
        doctor.check()
    assert str(caught.value).count("fix:") == 2
    assert "torch" not in str(caught.value)


@pytest.mark.slow
def test_a_notebook_shows_the_message_without_a_traceback():
    source = "from softattn_lib import doctor\ndoctor.pick_device = None\ndoctor.check()"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
    (output,) = notebook.cells[0].outputs
    assert output.ename == "TypeError"  # an error of the library itself keeps its traceback
    assert len(output.traceback) > 1

    notebook.cells[0].source = (
        "import os\nos.environ['SOFTATTN_DEVICE'] = 'gpu'\n"
        "from softattn_lib import doctor\ndoctor.check()"
    )
    NotebookClient(notebook, kernel_name="python3", allow_errors=True).execute()
    (output,) = notebook.cells[0].outputs
    assert output.ename == "SetupError"
    assert [line.strip().split()[0] for line in output.traceback] == ["This", "!", "fix:", "Then"]
