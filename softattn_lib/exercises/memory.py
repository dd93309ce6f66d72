"""What a learner has solved, and how many hints it took: one small file outside the repository.

The file is `softattn_lib/exercises.json` in the user's state folder (XDG_STATE_HOME, LOCALAPPDATA
on Windows, else ~/.local/state). The environment variable SOFTATTN_PROGRESS names another file.
Delete it to begin anew.
"""

import json
import os
import sys
from pathlib import Path

_recording = True
_unsaved = {}  # stands in for the file where none can be written


def progress_file() -> Path:
    """Where solved exercises and hints are remembered.

    >>> import os
    >>> os.environ["SOFTATTN_PROGRESS"] = "mine.json"
    >>> print(progress_file())
    mine.json
    >>> del os.environ["SOFTATTN_PROGRESS"]
    """
    if chosen := os.environ.get("SOFTATTN_PROGRESS"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_STATE_HOME"):
        folder = Path(xdg)
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        folder = Path.home() / ".local" / "state"
    return folder / "softattn_lib" / "exercises.json"


def keep_record(on: bool) -> None:
    """Whether `check` and `hint` remember anything from here on; the solutions turn it off.

    >>> keep_record(False)
    >>> keep_record(True)
    """
    global _recording
    _recording = on


def read(name: str) -> dict:
    """{"solved": bool, "hints": int} of one exercise."""
    known = _load().get(name)
    known = known if isinstance(known, dict) else {}
    hints = known.get("hints")
    return {"solved": known.get("solved") is True, "hints": hints if type(hints) is int else 0}


def write(name: str, **changes) -> None:
    """Change what is remembered of one exercise. A folder that cannot be written is no error."""
    if not _recording:
        return
    everything = _load() | {name: read(name) | changes}
    _unsaved.update(everything)
    path = progress_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(everything, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)
        _unsaved.clear()
    except OSError:
        pass


def _load():
    try:
        known = json.loads(progress_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    return (known if isinstance(known, dict) else {}) | _unsaved
