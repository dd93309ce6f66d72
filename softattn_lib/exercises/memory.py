"""What a learner has solved, and how many hints it took: one small file outside the repository.

The file is `exercises.json` among the learner's files (see `softattn_lib.learner`), unless the
environment variable SOFTATTN_PROGRESS names another. Delete it to begin anew.
"""

from pathlib import Path

from .. import learner

_recording = True


def progress_file() -> Path:
    """Where solved exercises and hints are remembered.

    >>> progress_file().suffix
    '.json'
    """
    return learner.file_path("exercises.json", "SOFTATTN_PROGRESS")


def keep_record(on: bool) -> None:
    """Whether `check` and `hint` remember anything from here on; the solutions turn it off.

    >>> keep_record(False)
    >>> keep_record(True)
    """
    global _recording
    _recording = on


def read(name: str) -> dict:
    """{"solved": bool, "hints": int} of one exercise."""
    known = learner.load(progress_file()).get(name)
    known = known if isinstance(known, dict) else {}
    hints = known.get("hints")
    return {"solved": known.get("solved") is True, "hints": hints if type(hints) is int else 0}


def write(name: str, **changes) -> None:
    """Change what is remembered of one exercise."""
    if _recording:
        path = progress_file()
        learner.save(path, learner.load(path) | {name: read(name) | changes})
