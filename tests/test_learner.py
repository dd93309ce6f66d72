"""The learner's files: found, read whatever is in them, and never lost while a session lasts."""

import os
import stat
from pathlib import Path

import pytest

from softattn_lib import learner

VARIABLE = "SOFTATTN_NOTES"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new folder" / "notes.json"


def test_a_file_is_outside_the_repository(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    there = Path.home() / ".local/state/softattn_lib/notes.json"
    assert learner.file_path("notes.json", VARIABLE) == there
    monkeypatch.setenv("XDG_STATE_HOME", "elsewhere")
    there = Path("elsewhere/softattn_lib/notes.json")
    assert learner.file_path("notes.json", VARIABLE) == there
    monkeypatch.setenv(VARIABLE, "~/mine.json")
    assert learner.file_path("notes.json", VARIABLE) == Path.home() / "mine.json"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b"[" * 100_000]
)
def test_a_broken_file_is_empty(content, path):
    path.parent.mkdir()
    path.write_bytes(content)
    assert learner.load(path) == {}


def test_what_is_saved_is_loaded_and_nothing_half_written_is_left(path):
    for known in ({"a": 1, "b": {"c": True}}, {"a": 2}, {}):
        learner.save(path, known)
        assert learner.load(path) == known
        assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_lasts_until_it_can(path):
    path.parent.write_text("in the way")  # also for root, who may write anywhere
    learner.save(path, {"a": 1})
    assert learner.load(path) == {"a": 1}
    path.parent.unlink()
    learner.save(path, learner.load(path) | {"b": 2})
    assert learner.load(path) == {"a": 1, "b": 2}
    assert path not in learner._unsaved and path.exists()


def test_what_is_no_file_is_never_replaced(tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)  # as /dev/null is no file, which root could replace
    folder.mkdir()
    for path in (pipe, folder):
        learner.save(path, {"a": 1})
        assert learner.load(path) == {"a": 1}
    assert pipe.is_fifo() and sorted(tmp_path.iterdir()) == [folder, pipe]


def test_an_unwritable_file_is_no_error(path, monkeypatch):
    monkeypatch.setattr(learner, "_unsaved", {})
    path.mkdir(parents=True)  # a folder by that name
    path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    learner.save(path, {"a": 1})
    assert learner.load(path) == {"a": 1}
    path.parent.chmod(stat.S_IRWXU)
