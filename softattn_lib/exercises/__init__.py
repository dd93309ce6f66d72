"""Exercises to the notebooks 01 to 09, with a checker that names the mistake.

    from softattn_lib import exercises
    exercises.check("softmax_row", softmax_row)   run your function, say what is wrong with it
    exercises.hint("softmax_row")                 one hint more
    exercises.progress()                          what is solved

Notebooks with the tasks are in `notebooks/exercises`, worked solutions in `notebooks/solutions`.
"""

import difflib

from . import memory
from .catalogue import EXERCISES
from .checker import Case, Exercise, Mistake, Verdict, examine
from .memory import keep_record

__all__ = [
    "EXERCISES",
    "Case",
    "Exercise",
    "Mistake",
    "Verdict",
    "check",
    "examine",
    "hint",
    "keep_record",
    "progress",
]


def check(name: str, function) -> None:
    """Run your function on inputs of unequal sizes and print what came out.

    Args:
        name: of the exercise, one of `EXERCISES`.
        function: yours; it is called, never changed. An error of its own is shown, not raised.

    Raises:
        ValueError: no exercise has this name.

    Example:
        >>> keep_record(False)
        >>> check("softmax_row", lambda q, k, v: (k @ q).softmax(0) @ v)
        Right, in all 3 cases. A softmax output is a mean of the values, so it lies between them.
        >>> keep_record(True)
    """
    verdict = examine(_find(name), function)
    if verdict.outcome == "right":
        memory.write(name, solved=True)
    print(verdict.text)


def hint(name: str) -> None:
    """Print the next hint of an exercise; after the last one, or when it is solved, all of them.

    Hints are counted as long as the exercise is not solved.

    Args:
        name: of the exercise, one of `EXERCISES`.

    Raises:
        ValueError: no exercise has this name.

    Example:
        >>> keep_record(False)
        >>> hint("softmax_row")
        Hint 1 of 3: A weight is positive whatever the score is. Which function makes it so?
        >>> keep_record(True)
    """
    hints, known = _find(name).hints, memory.read(name)
    used = known["hints"]
    if used >= len(hints) or known["solved"]:
        chosen = range(len(hints))
    else:
        chosen = [used]
        memory.write(name, hints=used + 1)
    for n in chosen:
        print(f"Hint {n + 1} of {len(hints)}: {hints[n]}")


def progress(notebook: str = "") -> None:
    """Print a table of the exercises: which are solved, and with how many hints.

    Args:
        notebook: the beginning of a notebook's name, as in "01"; all exercises without it.

    Example:
        >>> progress("no such notebook")
        0 of 0 solved
    """
    chosen = [e for e in EXERCISES.values() if e.notebook.startswith(notebook)]
    solved = 0
    for exercise in chosen:
        known = memory.read(exercise.name)
        solved += known["solved"]
        print(
            f"{exercise.notebook[:2]}  {exercise.name:<22}{exercise.kind:<9}"
            f"{exercise.minutes:>2} min  {exercise.stars:<12}"
            f"{'solved' if known['solved'] else 'open':<8}"
            f"hints: {known['hints']} of {len(exercise.hints)}"
        )
    print(f"{solved} of {len(chosen)} solved")


def _find(name):
    if name in EXERCISES:
        return EXERCISES[name]
    near = difflib.get_close_matches(str(name), EXERCISES, n=1)
    meant = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EXERCISES)}"
    raise ValueError(f"no exercise is named {name!r}; {meant}")
