"""What an exercise is, and how a learner's function is examined.

Reference, mistakes and the learner's function all run on the same inputs. Where the learner's
outputs are those of a known mistake, the answer names it. An exception is an output like others.
"""

import os
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from numbers import Real
from pathlib import Path

import torch

from .limit import StillRunning, time_limit

KINDS = ("fill in", "modify", "make")  # from the easiest to the hardest
DIFFICULTIES = {1: "easy", 2: "medium", 3: "hard"}
MAX_HINTS, MIN_MISTAKES = 3, 3
# Relative and absolute: two right ways to sum may round differently.
TOLERANCES = {torch.float64: (1e-8, 1e-10), torch.float32: (5e-4, 1e-5)}
NOT_THE_LEARNERS = (
    f"{Path(__file__).resolve().parents[1]}{os.sep}",
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
    f"{Path(torch.__file__).parent}{os.sep}",
    "<frozen ",
)
SHOWN_FRAMES = 3


@dataclass(frozen=True)
class Case:
    """One set of arguments, and a few words about it: sizes, or what makes it hard."""

    label: str
    args: tuple


@dataclass(frozen=True)
class Mistake:
    """A known wrong function: what one would call it, and one sentence of explanation."""

    name: str
    function: Callable
    because: str


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        name: the name of the function to write.
        notebook: the course notebook that it belongs to, "01_softmax_attention".
        title: its heading.
        kind: "fill in" (blanks in given code), "modify" (given code that runs) or "make".
        minutes: how long it may take.
        difficulty: 1 easy, 2 medium, 3 hard.
        reference: a right function.
        cases: generator -> the cases, tensors in float64.
        mistakes: known wrong functions, at least three.
        hints: at most three, from the vaguest to the plainest.
        matters: one sentence, shown with "right".
        start: what the given code of "modify" computes; None for the other kinds.

    Raises:
        ValueError: an unknown kind or difficulty, too many hints, too few mistakes, or a start
            where none belongs (or none where one does).

    Example:
        >>> mistakes = (
        ...     Mistake("squared", lambda x: x**2, "Two times x is x + x."),
        ...     Mistake("unchanged", lambda x: x, "Something has to be done with x."),
        ...     Mistake("halved", lambda x: x / 2, "Twice, not half."),
        ... )
        >>> twice = Exercise(
        ...     name="twice", notebook="01_softmax_attention", title="Twice", kind="make",
        ...     minutes=1, difficulty=1, reference=lambda x: 2 * x, mistakes=mistakes,
        ...     cases=lambda generator: [Case("n = 3", (torch.tensor([1.0, 2.0, 4.0]),))],
        ...     hints=("Add it to itself.",), matters="Doubling is the first power of two.",
        ... )
        >>> print(examine(twice, lambda x: x * x).text)
        Not yet. n = 3: at [0] expected 2, got 1 (2 of 3 entries differ)
        This looks like: squared. Two times x is x + x.
    """

    name: str
    notebook: str
    title: str
    kind: str
    minutes: int
    difficulty: int
    reference: Callable
    cases: Callable
    mistakes: tuple[Mistake, ...]
    hints: tuple[str, ...]
    matters: str
    start: Callable | None = None

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {self.kind!r}")
        if self.difficulty not in DIFFICULTIES:
            raise ValueError(f"difficulty must be 1, 2 or 3; got {self.difficulty!r}")
        if not 1 <= len(self.hints) <= MAX_HINTS:
            raise ValueError(f"hints must be 1 to {MAX_HINTS}, got {len(self.hints)}")
        if len(self.mistakes) < MIN_MISTAKES:
            raise ValueError(f"mistakes must be {MIN_MISTAKES} or more, got {len(self.mistakes)}")
        if (self.start is not None) != (self.kind == "modify"):
            raise ValueError("start belongs to the kind 'modify', and to no other")

    @property
    def stars(self) -> str:
        """The difficulty as stars and a word, "★★☆ medium"."""
        word = DIFFICULTIES[self.difficulty]
        return "★" * self.difficulty + "☆" * (3 - self.difficulty) + " " + word


@dataclass(frozen=True)
class Verdict:
    """What came out.

    Attributes:
        outcome: "right", "not done yet", "wrong" or "raised", which a call without an end is too.
        text: the answer to the learner.
        mistake: the name of the mistake that was recognised, or "".
    """

    outcome: str
    text: str
    mistake: str = ""


def examine(exercise: Exercise, function: Callable, dtype=torch.float64) -> Verdict:
    """Run a function on the cases of an exercise and say what is wrong with it, if anything.

    Args:
        exercise: one of `EXERCISES`.
        function: the learner's.
        dtype: of the floating inputs, float64 or float32.

    Returns:
        The verdict. Nothing is printed, and nothing is recorded.

    Example:
        >>> from softattn_lib.exercises import EXERCISES
        >>> examine(EXERCISES["softmax_row"], lambda q, k, v: None).outcome
        'not done yet'
    """
    if not callable(function):
        call = f'check("{exercise.name}", {exercise.name})'
        return Verdict("wrong", f"Hand over the function itself, not what it returns: {call}.")
    cases = exercise.cases(torch.Generator().manual_seed(0))
    outs = []
    for case in cases:
        given, kept = _copies(case.args, dtype), _copies(case.args, dtype)
        outs.append(_call(function, given))
        if isinstance(outs[-1], StillRunning):
            return Verdict("raised", _exception(case, outs[-1]))
        if unfinished := _unfinished(outs):
            return unfinished
        if changed := _changed(exercise, given, kept):
            text = f"Your function changes its input `{changed}`, and the caller may still need it."
            return Verdict("wrong", f"{text}\nWork on a new tensor: `x = x + y`, not `x += y`.")
    expected = [_as_dtype(exercise.reference(*_copies(c.args)), dtype) for c in cases]
    rows = zip(cases, expected, outs, strict=True)
    wrong = next((row for row in rows if _difference(*row[1:], dtype)), None)
    if wrong is None:
        return Verdict("right", f"Right, in all {len(cases)} cases. {exercise.matters}")
    if exercise.start and _all_same(_run(exercise.start, cases, dtype), outs, dtype):
        return Verdict("not done yet", "Not done yet: this still gives what the given code gives.")
    case, right, got = wrong
    if isinstance(got, Exception):
        outcome, text = "raised", _exception(case, got)
    else:
        outcome, text = "wrong", f"Not yet. {case.label}: {_difference(right, got, dtype)}"
    if mistake := _recognised(exercise, cases, expected, outs, dtype):
        text += f"\nThis looks like: {mistake.name}. {mistake.because}"
    return Verdict(outcome, text, mistake.name if mistake else "")


def _recognised(exercise, cases, expected, outs, dtype):
    """The known mistake with these outputs: in all cases, or else in those without a NaN."""
    runs = [(mistake, _run(mistake.function, cases, dtype)) for mistake in exercise.mistakes]
    everywhere = list(range(len(cases)))
    for kept in (everywhere, [n for n in everywhere if not _has_nan(outs[n])]):
        if all(_same(expected[n], outs[n], dtype) for n in kept):
            return None  # what is wrong is in the NaN
        for mistake, known in runs:
            if all(_same(known[n], outs[n], dtype) for n in kept):
                return mistake
    return None


def _has_nan(out):
    if isinstance(out, tuple):
        return any(map(_has_nan, out))
    is_numeric = isinstance(out, torch.Tensor) or _is_number(out)
    return is_numeric and bool(torch.as_tensor(out).isnan().any())


# Running


def _call(function, args):
    """What a function returns, or else the exception that ends it."""
    try:
        with time_limit():
            return function(*args)
    except (Exception, StillRunning) as error:
        return error


def _run(function, cases, dtype):
    return [_call(function, _copies(case.args, dtype)) for case in cases]


def _copies(args, dtype=torch.float64):
    return [_as_dtype(x.clone(), dtype) if isinstance(x, torch.Tensor) else x for x in args]


def _as_dtype(out, dtype):
    if isinstance(out, tuple):
        return tuple(_as_dtype(part, dtype) for part in out)
    return out.to(dtype) if isinstance(out, torch.Tensor) and out.is_floating_point() else out


def _changed(exercise, given, kept):
    """The name of the first argument that is not what it was, or None."""
    for name, now, before in zip(
        signature(exercise.reference).parameters, given, kept, strict=True
    ):
        if isinstance(now, torch.Tensor) and not _same(before, now, now.dtype, exactly=True):
            return name
    return None


# Not done, or raised


def _is_blank(out):
    return out is None or out is Ellipsis or (isinstance(out, tuple) and any(map(_is_blank, out)))


def _unfinished(outs):
    """The verdict on a stub: it returns nothing at first, or runs into one of its blanks."""
    if _is_blank(outs[0]):
        text = "Not done yet: the function returns nothing so far."
        return Verdict("not done yet", f"{text} (All written? Then a `return` is missing.)")
    error = outs[-1]
    if isinstance(error, NotImplementedError) and not str(error):  # torch's own say what it lacks
        return Verdict("not done yet", "Not done yet: the function is still to be written.")
    if isinstance(error, (TypeError, AttributeError)) and "ellipsis" in str(error):
        return Verdict("not done yet", "Not done yet: a blank, `...`, is still to be filled.")
    return None


def _exception(case, error):
    """What ended the call, and the learner's frames; others, of torch or Python, say nothing."""
    frames = [
        f"  line {frame.lineno}, in {frame.name}: {frame.line}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(NOT_THE_LEARNERS)
    ][-SHOWN_FRAMES:]
    return "\n".join([f"{case.label}: your function {_what_happened(error)}", *frames])


def _what_happened(error):
    if isinstance(error, StillRunning):
        return str(error)
    name = type(error).__name__
    return f"raised {name}: {error}" if str(error) else f"raised {name}"


# Comparing


def _all_same(ones, others, dtype):
    return all(_same(a, b, dtype) for a, b in zip(ones, others, strict=True))


def _same(a, b, dtype, exactly=False):
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y, dtype) for x, y in zip(a, b, strict=True))
    if isinstance(a, Exception) and isinstance(b, Exception):
        return type(a) is type(b) and str(a) == str(b)
    if _is_number(a) and _is_number(b):
        a, b = torch.tensor(float(a)), torch.tensor(float(b))
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)) or a.shape != b.shape:
        return False
    relative, absolute = (0, 0) if exactly else TOLERANCES[dtype]
    a, b = a.double(), b.double()
    return torch.allclose(a, b, rtol=relative, atol=absolute, equal_nan=True)


def _is_number(x):
    return isinstance(x, Real) or (isinstance(x, torch.Tensor) and x.dim() == 0)


def _difference(expected, got, dtype):
    """What differs first, in words: kind, shape, dtype, then numbers. "" if nothing does."""
    if isinstance(expected, tuple):
        return _difference_of_tuples(expected, got, dtype)
    if _is_number(expected) and _is_number(got):
        return "" if _same(expected, got, dtype) else _numbers(expected, got)
    if _is_number(expected) or not isinstance(got, torch.Tensor):
        wanted = "a number" if _is_number(expected) else "a tensor"
        return f"you return {_kind_of(got)}; it should be {wanted}."
    if expected.shape != got.shape:
        return f"the shape is {tuple(got.shape)} and should be {tuple(expected.shape)}."
    if not _same(expected, got, torch.float32 if got.dtype == torch.float32 else dtype):
        return _first_entry(expected, got, dtype)
    if expected.dtype != got.dtype:
        like = ", as that of the inputs" if expected.is_floating_point() else ""
        return f"the dtype is {got.dtype} and should be {expected.dtype}{like}."
    return ""


def _difference_of_tuples(expected, got, dtype):
    if not isinstance(got, tuple) or len(got) != len(expected):
        count = f" of {len(got)}" if isinstance(got, tuple) else ""
        return f"you return {_kind_of(got)}{count}; it should be a tuple of {len(expected)}."
    for n, (right, part) in enumerate(zip(expected, got, strict=True), start=1):
        if difference := _difference(right, part, dtype):
            return f"of what you return, number {n}: {difference}"
    return ""


def _kind_of(x):
    if isinstance(x, torch.Tensor):
        return "a tensor"
    name = type(x).__name__
    return "nothing" if x is None else f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _first_entry(expected, got, dtype):
    relative, absolute = TOLERANCES[dtype]
    a, b = expected.double(), got.double()
    differs = ~torch.isclose(b, a, rtol=relative, atol=absolute, equal_nan=True)
    first = tuple(differs.nonzero()[0].tolist())
    where = f"at {list(first)} " if first else ""
    count = f"{differs.sum()} of {differs.numel()} entries differ"
    return f"{where}{_numbers(expected[first], got[first])} ({count})"


def _numbers(expected, got):
    expected, got = (x.item() if isinstance(x, torch.Tensor) else x for x in (expected, got))
    for digits in (4, 8, 16):
        shown = [f"{x:.{digits}g}" if isinstance(x, float) else str(x) for x in (expected, got)]
        if shown[0] != shown[1]:
            break
    why = " (as from 0 / 0, inf - inf or 0 * inf)" if got != got and expected == expected else ""
    return f"expected {shown[0]}, got {shown[1]}{why}"
