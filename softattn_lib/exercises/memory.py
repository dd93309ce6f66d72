"""What a learner has solved, and how many hints it took: one small file outside the repository.

It is `exercises.json` among the learner's files (see `softattn_lib.learner`). Delete it to begin
anew.
"""

from .. import learner

FILE = "exercises.json"
_recording = True


def keep_record(on: bool) -> None:
    """Whether `check` and `hint` remember anything from here on; the solutions turn it off.

    >>> keep_record(False)
    >>> keep_record(True)
    """
    global _recording
    _recording = on


def read(name: str) -> dict:
    """{"solved": bool, "hints": int} of one exercise."""
    known = learner.load(FILE).get(name)
    known = known if isinstance(known, dict) else {}
    hints = known.get("hints")
    return {"solved": known.get("solved") is True, "hints": hints if type(hints) is int else 0}


def write(name: str, **changes) -> None:
    """Change what is remembered of one exercise."""
    if _recording:
        learner.save(FILE, learner.load(FILE) | {name: read(name) | changes})
