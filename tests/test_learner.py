"""The learner's files: found, read whatever is in them, and never lost while a session lasts."""

import os
from pathlib import Path

import pytest

from softattn_lib import learner

NAME = "notes.json"


@pytest.fixture(autouse=True)
def path(tmp_path, monkeypatch):
    monkeypatch.setenv("SOFTATTN_LEARNER", str(tmp_path / "new folder"))
    return tmp_path / "new folder" / NAME


def test_a_file_is_outside_the_repository(monkeypatch):
    monkeypatch.delenv("SOFTATTN_LEARNER")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert learner.file_path(NAME) == Path.home() / ".local/state/softattn_lib" / NAME
    monkeypatch.setenv("XDG_STATE_HOME", "elsewhere")
    assert learner.file_path(NAME) == Path("elsewhere/softattn_lib") / NAME
    monkeypatch.setenv("SOFTATTN_LEARNER", "~/mine")
    assert learner.file_path(NAME) == Path.home() / "mine" / NAME


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1, 2]", b"null", b"\xff\xfe\x00", b"[" * 100_000]
)
def test_a_broken_file_is_empty(content, path):
    path.parent.mkdir()
    path.write_bytes(content)
    assert learner.load(NAME) == {}


def test_what_is_saved_is_loaded_and_nothing_half_written_is_left(path):
    for known in ({"a": 1, "b": {"c": True}}, {"a": 2}, {}):
        learner.save(NAME, known)
        assert learner.load(NAME) == known
        assert list(path.parent.iterdir()) == [path]


def test_what_cannot_be_written_lasts_until_it_can(path):
    path.parent.write_text("in the way")  # also for root, who may write anywhere
    learner.save(NAME, {"a": 1})
    assert learner.load(NAME) == {"a": 1}
    path.parent.unlink()
    learner.save(NAME, learner.load(NAME) | {"b": 2})
    assert learner.load(NAME) == {"a": 1, "b": 2}
    assert path not in learner._unsaved and path.exists()


def test_what_is_no_file_is_never_replaced(path):
    path.parent.mkdir()
    os.mkfifo(path.parent / "pipe")  # as /dev/null is no file, which root could replace
    (path.parent / "folder").mkdir()
    for name in ("pipe", "folder"):
        learner.save(name, {"a": 1})
        assert learner.load(name) == {"a": 1}
    assert (path.parent / "pipe").is_fifo()
    assert sorted(p.name for p in path.parent.iterdir()) == ["folder", "pipe"]
