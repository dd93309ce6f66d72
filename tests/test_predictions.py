"""Predictions: committed, kept, changed, held against a result that was computed, and never asked
for: a notebook runs the same without them. Those in the notebooks come in pairs."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter

import ipywidgets
import jupytext
import nbformat
import numpy as np
import pytest
import torch

from softattn_lib import predictions
from softattn_lib.predictions import Prediction, predict, reveal, summary
from tools import notebooks


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """Each test begins without guesses, and leaves those of whoever runs it alone."""
    monkeypatch.setenv("SOFTATTN_LEARNER", str(tmp_path / "record"))
    monkeypatch.setattr(predictions, "_asked", {})
    return tmp_path / "record" / "predictions.json"


def weight(name="02-odd-orders"):
    return predict(name, "Which weight is negative?", ["order 1", "order 3", "neither"])


def tokens():
    return predict("11-equal", "How many?", low=10, high=1e5, step=2, log=True, unit="tokens")


def percent():
    return predict("06-heads", "How many?", low=0, high=100, step=5, unit="%")


def on_page(widget, traits):
    """A change that arrives from the page, which may not be held up by what Python says."""
    widget.set_state(traits)


# One widget


@pytest.mark.parametrize("mount", [weight, tokens, percent])
def test_nothing_is_chosen_at_first_and_nothing_can_be_committed(mount, file):
    widget = mount()
    assert widget.control.value in (None, "")
    assert widget.commit_button.disabled and widget.change_button.disabled
    widget.commit_button.click()
    assert not file.exists()


@pytest.mark.parametrize("mount", [weight, tokens, percent])
def test_every_choice_can_be_committed_and_comes_back_from_the_file(mount, file):
    for value in mount()._question.values:
        widget = mount()
        widget.change_button.click()
        widget.control.value = value
        assert not widget.commit_button.disabled
        widget.commit_button.click()
        again = mount()  # a session later
        label = widget._question.label(value)
        for shown in (widget, again):
            assert shown.control.value == value and shown.control.disabled
            assert f"<b>{label}</b>" in shown.status.value
        assert json.loads(file.read_text())[widget._question.name]["guess"] == label


def test_a_committed_guess_stays_until_the_mind_is_changed(file):
    widget = weight()
    on_page(widget.control, {"index": 1})
    widget.commit_button.click()
    assert widget.commit_button.disabled and not widget.change_button.disabled
    on_page(widget.control, {"index": 0})  # from a page that did not hear of `disabled`
    assert widget.control.value == "order 3"
    widget.commit_button.click()
    assert json.loads(file.read_text())["02-odd-orders"]["guess"] == "order 3"

    widget.change_button.click()
    assert json.loads(file.read_text()) == {}
    assert not widget.control.disabled and not widget.commit_button.disabled
    widget.control.value = "order 1"
    widget.commit_button.click()
    assert weight().control.value == "order 1"


def test_the_places_of_a_slider_are_a_step_apart():
    assert percent()._question.values == tuple(range(0, 101, 5))
    values = tokens()._question.values
    assert values[:3] == (10, 20, 40) and values[-1] <= 1e5 < 2 * values[-1]
    fifths = predict("01-share", "?", low=0, high=1, step=0.2)
    assert [label for label, _ in fifths.control.options[1:]] == [
        "0",
        "0.2",
        "0.4",
        "0.6",
        "0.8",
        "1",
    ]


def test_the_controls_speak_without_colour():
    widget = weight()
    assert [b.description for b in (widget.commit_button, widget.change_button)] == [
        "Commit",
        "Change my mind",
    ]
    assert isinstance(widget.control, ipywidgets.RadioButtons)  # tab and space choose
    assert isinstance(tokens().control, ipywidgets.SelectionSlider)
    assert "Commit" not in widget.status.value
    widget.control.value = "neither"
    widget.commit_button.click()
    assert "Committed" in widget.status.value


def test_without_a_kernel_it_shows_question_and_choices():
    question = "Is 1 < 2?"
    widget = predict("01-small", question, ["yes & no", "no"])
    bundle = widget._repr_mimebundle_()
    assert notebooks.WIDGET in bundle
    assert "1 &lt; 2" in bundle["text/html"] and "<li>yes &amp; no</li>" in bundle["text/html"]
    assert bundle["text/plain"] == "Predict: Is 1 < 2?\n- yes & no\n- no"
    assert "1 &lt; 2" in widget.children[0].value
    assert "from 10 to 81,920 tokens" in tokens()._repr_mimebundle_()["text/html"]


def test_the_still_does_not_tell_the_guess():
    before = weight()._repr_mimebundle_()["text/html"]
    commit(weight(), "neither")
    assert weight()._repr_mimebundle_()["text/html"] == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "odd-orders"}, "name"),
        ({"name": "02-"}, "name"),
        ({"choices": ["one"]}, "choices"),
        ({"choices": ["same", "same"]}, "choices"),
        ({"choices": ["one", 2]}, "choices"),
        ({"low": 1}, "choices or a slider"),
        ({"choices": None}, "low, high, step"),
        ({"choices": None, "low": 1, "high": 1, "step": 1}, "low"),
        ({"choices": None, "low": 0, "high": 1, "step": 0}, "step"),
        ({"choices": None, "low": 0, "high": 9, "step": 2, "log": True}, "log"),
        ({"choices": None, "low": 1, "high": 9, "step": 1, "log": True}, "log"),
    ],
)
def test_other_arguments_are_refused_by_name(arguments, named):
    good = {"name": "02-odd-orders", "question": "?", "choices": ["one", "two"]}
    with pytest.raises(ValueError, match=named):
        predict(**good | arguments)


# Guess and result


def commit(widget, value):
    widget.change_mind()
    widget.control.value = value
    widget.commit()


def said(capsys):
    return capsys.readouterr().out


def test_without_a_guess_result_and_reason_are_printed_and_nothing_is_written(capsys, file):
    weight()
    expected = "No guess recorded. Result: order 1.\nBecause it is.\n"
    reveal("02-odd-orders", "order 1", "it is.")
    assert said(capsys) == expected
    reveal("02-never-mounted", "order 1", "it is.")  # the cell with the question was left out
    assert said(capsys) == expected
    widget = weight()
    widget.control.value = "order 3"  # chosen, not committed
    reveal("02-odd-orders", "order 1", "it is.")
    assert said(capsys) == expected
    assert not file.exists()


def test_the_guess_is_held_against_the_result(capsys):
    commit(weight(), "order 3")
    reveal("02-odd-orders", "order 3", "it is.")
    assert said(capsys) == "Your guess: order 3. Result: order 3. Right.\nBecause it is.\n"
    reveal("02-odd-orders", "neither", "it is.")
    assert said(capsys).startswith("Your guess: order 3. Result: neither. Not this time.\n")


@pytest.mark.parametrize(
    ("mount", "guess", "result", "verdict"),
    [
        (tokens, 640, 325.1, "Result: 325 tokens. Right, to within a factor of 2."),
        (tokens, 320, 640, "Result: 640 tokens. Right, to within a factor of 2."),
        (tokens, 1280, 320, "Result: 320 tokens. Off by a factor of 4."),
        (tokens, 10, 320, "Result: 320 tokens. Off by a factor of 32."),
        (tokens, 10, 0, "Result: 0 tokens. Not this time."),
        (percent, 45, np.float32(40), "Result: 40 %. Right, to within 5."),
        (percent, 35, torch.tensor(40), "Result: 40 %. Right, to within 5."),
        (percent, 0, 40, "Result: 40 %. Off by 40."),
    ],
)
def test_a_number_is_right_to_within_a_step(capsys, mount, guess, result, verdict):
    commit(mount(), guess)
    reveal(mount()._question.name, result, "so.")
    assert said(capsys).splitlines()[0].endswith(verdict)


@pytest.mark.parametrize(
    ("mount", "result", "named"),
    [
        (weight, "order 2", "order 1"),
        (weight, True, "02-odd-orders"),
        (weight, None, "None"),
        (tokens, "many", "finite number"),
        (tokens, float("inf"), "finite number"),
        (tokens, float("nan"), "finite number"),
        (tokens, None, "finite number"),
    ],
)
def test_an_unknown_result_is_refused_with_or_without_a_guess(mount, result, named):
    for widget in (mount(), mount()):
        with pytest.raises(ValueError, match=named):
            reveal(widget._question.name, result, "so.")
        widget.control.index = 1
        widget.commit()


def test_long_lines_are_broken(capsys):
    reveal("02-odd-orders", 1, "word " * 40)
    assert max(map(len, said(capsys).splitlines())) <= predictions.WIDTH


def test_the_summary_counts_what_was_right(capsys):
    summary()
    assert said(capsys) == "No guess recorded yet.\n"
    for name, guess in ("02-b", "order 1"), ("02-a", "neither"), ("01-c", "order 3"):
        commit(weight(name), guess)
    reveal("02-b", "order 1", "so.")
    reveal("02-a", "order 1", "so.")
    said(capsys)
    summary()
    assert said(capsys).splitlines() == [
        "     your guess  result",
        "Notebook 01",
        "  c  order 3     not run yet",
        "Notebook 02",
        "  a  neither     order 1      not right",
        "  b  order 1     order 1      right",
        "1 of 2 right",
    ]
    summary("01")
    assert said(capsys).splitlines()[-1] == "0 of 0 right"


# The file


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b'{"02-odd-orders": 3}',
        b'{"02-odd-orders": {"guess": 3}}',
        b'{"02-odd-orders": {"guess": "order 7"}}',
    ],
)
def test_a_broken_file_is_no_guess_and_no_error(content, file, capsys):
    file.parent.mkdir()
    file.write_bytes(content)
    widget = weight()
    reveal("02-odd-orders", "order 1", "so.")
    assert said(capsys).startswith("No guess recorded.")
    summary()
    commit(widget, "order 3")
    assert weight().control.value == "order 3"
    assert json.loads(file.read_text())["02-odd-orders"]["guess"] == "order 3"


def test_half_an_entry_is_read_as_far_as_it_goes(file, capsys):
    file.parent.mkdir()
    file.write_text(
        '{"02-a": {"guess": "x", "result": 3, "right": "yes"}, "02-b": {"result": "y"}}'
    )
    summary()
    assert said(capsys).splitlines()[2:] == ["  a  x           not run yet", "0 of 0 right"]


def test_where_nothing_can_be_written_a_guess_lasts_as_long_as_the_session(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "a file").write_text("in the way")
    blocked = tmp_path / "a file" / "predictions.json"  # also for root, who may write anywhere
    monkeypatch.setenv("SOFTATTN_LEARNER", str(blocked.parent))
    commit(weight(), "order 3")
    reveal("02-odd-orders", "order 3", "so.")
    assert said(capsys).startswith("Your guess: order 3.")
    summary()
    assert said(capsys).splitlines()[-1] == "1 of 1 right"
    (tmp_path / "a file").unlink()  # now it can: nothing is lost
    commit(weight("02-b"), "neither")
    assert set(json.loads(blocked.read_text())) == {"02-odd-orders", "02-b"}


def test_two_kernels_share_the_file(file, capsys):
    mine = weight()
    other = (
        "from softattn_lib.predictions import predict\n"
        "w = predict('03-packing', 'How many times?', low=1, high=9, step=1)\n"
        "w.control.value = 6\n"
        "w.commit()\n"
    )
    subprocess.run([sys.executable, "-c", other], check=True, env=os.environ.copy())
    commit(mine, "order 3")
    assert set(json.loads(file.read_text())) == {"02-odd-orders", "03-packing"}
    predict("03-packing", "How many times?", low=1, high=9, step=1)
    reveal("03-packing", 5.7, "so.")
    assert said(capsys).startswith("Your guess: 6. Result: 5.7. Right, to within 1.")
    assert not list(file.parent.glob("predictions.[0-9]*"))  # nothing half-written is left


# The notebooks


def calls(name, function):
    """(cell, name of the prediction) of each call in a notebook."""
    found = []
    for position, cell in enumerate(jupytext.read(notebooks.FOLDER / f"{name}.py").cells):
        if cell.cell_type == "code":
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == function:
                    found.append((position, node.args[0].value))
    return found


def test_the_names_are_unique():
    names = [name for notebook in notebooks.names() for _, name in calls(notebook, "predict")]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    assert len(names) >= 14


@pytest.mark.parametrize("notebook", notebooks.names())
def test_each_prediction_has_one_result_after_it(notebook):
    asked, revealed = calls(notebook, "predict"), calls(notebook, "reveal")
    assert [name for _, name in asked] == [name for _, name in revealed]
    for (question, name), (answer, _) in zip(asked, revealed, strict=True):
        assert question < answer
        assert name.startswith(f"{notebook[:2]}-")


@pytest.mark.parametrize("notebook", notebooks.names())
def test_each_notebook_of_the_course_asks(notebook):
    assert calls(notebook, "predict")


@pytest.mark.parametrize("notebook", notebooks.names())
def test_a_cell_that_asks_does_nothing_else_and_its_result_may_be_skipped_to(notebook):
    cells = jupytext.read(notebooks.FOLDER / f"{notebook}.py").cells
    for position, _ in calls(notebook, "predict"):
        *before, last = ast.parse(cells[position].source).body
        assert isinstance(last, ast.Expr) and last.value.func.id == "predict"
        assert all(isinstance(line, (ast.Import, ast.ImportFrom)) for line in before)


@pytest.mark.parametrize("notebook", notebooks.names())
def test_stored_predictions_show_their_question_know_no_guess_and_hide_the_result(notebook):
    stored = nbformat.read(notebooks.FOLDER / f"{notebook}.ipynb", as_version=4)
    for position, _ in calls(notebook, "predict"):
        (output,) = stored.cells[position].outputs
        assert "<b>Predict:</b>" in output.data["text/html"]
        assert output.metadata.widget and "Predict:" in output.data["text/plain"]
    for position, _ in calls(notebook, "reveal"):
        assert "No guess recorded. Result: " in notebooks.output_text(stored.cells[position])
        assert "Your guess" not in notebooks.output_text(stored.cells[position])
        assert stored.cells[position].metadata.jupyter.outputs_hidden


@pytest.mark.parametrize("notebook", notebooks.names())
def test_the_result_could_have_been_guessed(notebook):
    stored = nbformat.read(notebooks.FOLDER / f"{notebook}.ipynb", as_version=4)
    pairs = zip(calls(notebook, "predict"), calls(notebook, "reveal"), strict=True)
    for (position, name), (answer, _) in pairs:
        exec(stored.cells[position].source, {"predict": predict, "YES_NO": ["true", "false"]})
        question = predictions._asked[name]
        printed = notebooks.output_text(stored.cells[answer])
        (result,) = re.findall(r"No guess recorded\. Result: (.*)\.$", printed, re.MULTILINE)
        if isinstance(question, predictions._Number):
            result = float(result.removesuffix(question.unit).replace(",", ""))
        judged = [question.judge(guess, result)[0] for guess in question.values]
        assert any(judged) and not all(judged), name


@pytest.mark.parametrize("notebook", notebooks.names())
def test_no_result_is_written_into_the_notebook(notebook):
    for cell in jupytext.read(notebooks.FOLDER / f"{notebook}.py").cells:
        for node in ast.walk(ast.parse(cell.source if cell.cell_type == "code" else "")):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "reveal":
                assert not isinstance(node.args[1], ast.Constant), ast.unparse(node)


SMALL = """\
# %% [markdown]
# A prediction.

# %% tags=["nbval-ignore-output"]
from softattn_lib.predictions import predict, reveal

predict("00-sum", "What is 1 + 1?", ["2", "3"])

# %%
reveal("00-sum", str(1 + 1), "that is what the plus sign means.")
"""


@pytest.mark.slow
def test_whoever_runs_the_notebooks_their_guesses_stay_out_of_it(tmp_path, file):
    commit(predict("00-sum", "What is 1 + 1?", ["2", "3"]), "3")
    before = file.read_bytes()
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(notebooks.ROOT / "pyproject.toml", tmp_path)
    shutil.copy(notebooks.FOLDER / "conftest.py", folder)
    (folder / "00_small.py").write_text(SMALL)

    notebooks.run("00_small", folder)
    stored = nbformat.read(folder / "00_small.ipynb", as_version=4)
    assert stored.cells[2].outputs[0].text.startswith("No guess recorded. Result: 2.")
    assert not notebooks.comparison_problems(stored)[1:]  # all but the number of compared cells

    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", str(folder)]
    options = ["-p", "no:cacheprovider", f"--nbval-sanitize-with={notebooks.SANITIZE}"]
    done = subprocess.run([*command, *options], cwd=notebooks.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert file.read_bytes() == before  # and what they guessed is still there


def test_a_prediction_is_a_widget_of_four_parts():
    widget = weight()
    assert isinstance(widget, Prediction) and isinstance(widget, ipywidgets.VBox)
    assert [type(child).__name__ for child in widget.children] == [
        "HTML",
        "RadioButtons",
        "HBox",
        "HTML",
    ]
