"""The learner's files: what was guessed, what is solved. Small, and never a reason for an error.

They are in `softattn_lib` in the user's state folder (XDG_STATE_HOME, LOCALAPPDATA on Windows,
else ~/.local/state), unless the environment variable SOFTATTN_LEARNER names another folder. What
cannot be written lasts as long as the session.
"""

import json
import os
import sys
from pathlib import Path

_unsaved = {}  # by path, what stands in for a file that cannot be written


def file_path(name: str) -> Path:
    """Where the file of this name is.

    Example:
        >>> file_path("notes.json").name
        'notes.json'
    """
    if chosen := os.environ.get("SOFTATTN_LEARNER"):
        return Path(chosen).expanduser() / name
    if xdg := os.environ.get("XDG_STATE_HOME"):
        folder = Path(xdg)
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    else:
        folder = Path.home() / ".local" / "state"
    return folder / "softattn_lib" / name


def load(name: str) -> dict:
    """What was saved; nothing where there is no file or a broken one.

    Example:
        >>> load("no such file.json")
        {}
    """
    path = file_path(name)
    if path in _unsaved:
        return dict(_unsaved[path])
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def save(name: str, known: dict) -> None:
    """Replace what was saved, all at once. What cannot be written is kept in memory.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as os.environ["SOFTATTN_LEARNER"]:
        ...     save("notes.json", {"solved": True})
        ...     load("notes.json")
        {'solved': True}
        >>> del os.environ["SOFTATTN_LEARNER"]
    """
    path = file_path(name)
    try:
        if path.exists() and not path.is_file():  # /dev/null, which root could replace, or a folder
            raise FileExistsError(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")  # two kernels may write at once
        new.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        new.replace(path)
        _unsaved.pop(path, None)
    except OSError:
        _unsaved[path] = known
