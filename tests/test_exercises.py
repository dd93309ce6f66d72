"""The exercises: right is right, each mistake is called by its name, and copies are what they say.

Solutions are taken from the cells of the solution notebooks, so what is tested is what is shown.
"""

import ast
import contextlib
import math
import re
import shutil
import signal
import threading
import time
from dataclasses import replace

import jupytext
import numpy as np
import pytest
import torch

from softattn_lib import exercises, kronecker_power
from softattn_lib.exercises import EXERCISES, examine, limit
from softattn_lib.exercises.checker import KINDS
from tools import exercises as tool
from tools import notebooks

NAMES = notebooks.names(tool.SOLUTIONS)
SOLUTIONS = {name: jupytext.read(tool.SOLUTIONS / f"{name}.py") for name in NAMES}
CELLS = {
    exercise.name: (name, position)
    for name, notebook in SOLUTIONS.items()
    for position, cell in enumerate(notebook.cells)
    if (exercise := tool.exercise_of(cell))
}

each_exercise = pytest.mark.parametrize("exercise", EXERCISES.values(), ids=EXERCISES)
each_solutions = pytest.mark.parametrize("name", NAMES)
each_mistake = pytest.mark.parametrize(
    ("exercise", "mistake"),
    [(e, m) for e in EXERCISES.values() for m in e.mistakes],
    ids=[f"{e.name}: {m.name}" for e in EXERCISES.values() for m in e.mistakes],
)


@pytest.fixture(autouse=True)
def own_record(tmp_path, monkeypatch):
    """Each test begins with nothing solved, and leaves the record of whoever runs it alone."""
    monkeypatch.setenv("SOFTATTN_LEARNER", str(tmp_path / "record"))
    exercises.keep_record(True)
    return tmp_path / "record" / "exercises.json"


@pytest.fixture
def float64():
    """What the notebooks set in their first cell."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def solution_source(exercise):
    name, position = CELLS[exercise.name]
    return SOLUTIONS[name].cells[position].source


def given_source(exercise):
    return tool.stub(solution_source(exercise), exercise.kind)


def define(exercise, source):
    """Run the imports of the solution notebook, then the source; return the function."""
    cells = SOLUTIONS[CELLS[exercise.name][0]].cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    lines = [line for cell in code for line in cell.splitlines() if re.match(r"import|from", line)]
    scope = {}
    exec("\n".join([*lines, source]), scope)
    return scope[exercise.name]


# The catalogue


def test_there_are_enough_exercises():
    assert len(EXERCISES) >= 24
    for notebook in notebooks.names()[1:10]:
        assert sum(e.notebook == notebook for e in EXERCISES.values()) >= 3, notebook


@each_solutions
def test_kinds_and_difficulties_rise_within_a_notebook(name):
    mine = [e for e in EXERCISES.values() if e.notebook == name]
    kinds = [KINDS.index(e.kind) for e in mine]
    assert kinds == sorted(kinds) and set(kinds) == {0, 1, 2}
    difficulties = [e.difficulty for e in mine]
    assert difficulties == sorted(difficulties) and difficulties[0] < difficulties[-1]


def test_names_are_those_of_the_functions():
    assert CELLS.keys() == EXERCISES.keys()
    assert list(CELLS) == list(EXERCISES)
    assert all(CELLS[e.name][0] == e.notebook for e in EXERCISES.values())
    texts = [e.title for e in EXERCISES.values()] + [e.matters for e in EXERCISES.values()]
    assert len(texts) == len(set(texts))


@each_exercise
def test_sizes_are_unequal_and_above_one(exercise):
    cases = exercise.cases(torch.Generator().manual_seed(0))
    assert len(cases) >= 3
    if not any(isinstance(x, torch.Tensor) for x in cases[0].args):
        return
    named = [re.findall(r"\b\w+ = (\d+)\b", case.label) for case in cases]
    sizes = [list(map(int, numbers)) for numbers in named if numbers]
    assert len(sizes) >= 2
    for one in sizes:
        assert len(set(one)) == len(one) and min(one) > 1
    for case in cases:
        for x in case.args:
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                assert x.dtype == torch.float64


def test_an_exercise_that_makes_no_sense_is_refused():
    good = EXERCISES["softmax_row"]
    for wrong in (
        {"kind": "guess"},
        {"difficulty": 4},
        {"hints": ("a",) * 4},
        {"mistakes": good.mistakes[:2]},
        {"kind": "modify"},
        {"start": good.reference},
    ):
        with pytest.raises(ValueError, match=r"kind|difficulty|hints|mistakes|start"):
            replace(good, **wrong)


# Right and wrong


@each_exercise
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_solution_of_the_notebook_is_right(exercise, dtype, float64):
    verdict = examine(exercise, define(exercise, solution_source(exercise)), dtype)
    assert verdict.outcome == "right", verdict.text
    assert exercise.matters in verdict.text


SLIPS = [
    ("truncated_exp", "x / n ", "x / math.factorial(n) ", "the term before divided by n!"),
    ("all_orders", "range(order + 1)", "range(order)", "the last order is left out"),
    ("linear_state", "state + written", "state + written.T", "the outer product is transposed"),
    ("linear_attention", "reads[:, :-1] /", "reads /", "the column of ones is kept"),
    ("sum_of_rnns", "total = 0", "total = 1", "a constant 1 on top of order 0"),
    ("sum_of_rnns", "[:-1] / total[-1]", "[:-1]", "the numerator, not divided"),
    ("second_order_rnn", "range(3)", "range(2)", "the last order is left out"),
    ("second_order_rnn", "total[:-1] /", "total /", "the column of ones is kept"),
]


@pytest.mark.parametrize(("name", "right", "slip", "mistake"), SLIPS)
def test_a_slip_in_the_solution_is_named(name, right, slip, mistake, float64):
    source = solution_source(EXERCISES[name])
    assert right in source
    verdict = examine(EXERCISES[name], define(EXERCISES[name], source.replace(right, slip)))
    assert verdict.mistake == mistake, verdict.text


def test_a_term_may_be_changed_in_place(float64):
    exercise = EXERCISES["truncated_exp"]
    source = solution_source(exercise).replace("term = term * x / n", "term *= x / n")
    source = source.replace("total = total + term", "total += term")
    assert examine(exercise, define(exercise, source)).outcome == "right"


@each_exercise
def test_the_reference_is_right(exercise):
    assert examine(exercise, exercise.reference).outcome == "right"


@each_mistake
def test_a_mistake_is_called_by_its_name(exercise, mistake):
    verdict = examine(exercise, mistake.function)
    assert verdict.outcome in ("wrong", "raised")
    assert verdict.mistake == mistake.name, verdict.text
    assert mistake.name in verdict.text and mistake.because in verdict.text


def test_a_mistake_is_called_by_its_name_although_a_special_case_gives_nan():
    def with_the_hidden(scores):
        return scores - scores.mean(-1, keepdim=True)

    verdict = examine(EXERCISES["centre_rows"], with_the_hidden)
    assert verdict.mistake == "the mean subtracted"


def test_nan_alone_is_no_known_mistake():
    def right_but_for_nan(scores):
        right = EXERCISES["centre_rows"].reference(scores)
        return right * torch.nan if scores.isinf().any() else right

    verdict = examine(EXERCISES["centre_rows"], right_but_for_nan)
    assert (verdict.outcome, verdict.mistake) == ("wrong", "")


@each_exercise
def test_what_is_given_is_not_done_yet(exercise, float64):
    verdict = examine(exercise, define(exercise, given_source(exercise)))
    assert verdict.outcome == "not done yet", verdict.text


@pytest.mark.parametrize(
    "exercise", [e for e in EXERCISES.values() if e.kind == "fill in"], ids=lambda e: e.name
)
def test_one_blank_filled_is_not_done_yet(exercise, float64):
    """Some blanks filled and some not is a state that every learner passes through."""
    source = solution_source(exercise)
    blanks = [line for line in source.splitlines() if line.endswith("# blank")]
    assert len(blanks) == 2
    for blank in blanks:
        partly = tool.stub(source.replace(blank, blank.removesuffix("  # blank")), "fill in")
        verdict = examine(exercise, define(exercise, partly))
        assert verdict.outcome == "not done yet", verdict.text


@each_exercise
def test_a_function_that_does_something_else_has_no_named_mistake(exercise):
    def something(*args):
        out = exercise.reference(*args)
        parts = out if isinstance(out, tuple) else (out,)
        parts = tuple(part + 1 for part in parts)
        return parts if isinstance(out, tuple) else parts[0]

    verdict = examine(exercise, something)
    assert (verdict.outcome, verdict.mistake) == ("wrong", "")


# What the checker says


ROW = EXERCISES["softmax_row"]


def said(function, exercise=ROW):
    return examine(exercise, function).text


def test_the_first_disagreement_is_shown():
    def slightly_off(q, k, v):
        out = ROW.reference(q, k, v)
        out[1] += 1e-6
        return out

    text = said(slightly_off)
    shown = re.fullmatch(
        r"Not yet\. T = \d, d = \d, e = \d: at \[1\] (expected .*, got .*) \(1 of \d .*\)",
        text,
    )
    expected, got = map(float, re.findall(r"-?\d\.\d+", shown[1]))
    assert got - expected == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda q, k, v: k @ q, "the shape is (4,) and should be (5,)."),
        (lambda q, k, v: ROW.reference(q, k, v).float(), "the dtype is torch.float32 and"),
        (
            lambda q, k, v: ROW.reference(q, k, v).tolist(),
            "you return a list; it should be a tensor.",
        ),
        (lambda q, k, v: 3, "you return an int; it should be a tensor."),
        (lambda q, k, v: (v[0], v[1]), "you return a tuple; it should be a tensor."),
        (lambda q, k, v: NotImplemented, "you return a NotImplementedType; it should be a tensor."),
        (ROW.reference(*[torch.ones(2, 2).double()] * 3), "Hand over the function itself"),
        (lambda q, k: q, "your function raised TypeError: "),
    ],
)
def test_other_kinds_of_answers_have_their_own_words(function, says):
    assert says in said(function)


def test_a_wrong_dtype_is_named():
    def whole(q, k, v):
        return ROW.reference(q.float(), k.float(), v.float())

    assert "the dtype is torch.float32 and should be torch.float64" in said(whole)
    assert examine(ROW, whole).outcome == "wrong"
    assert "at [0] expected" in said(lambda q, k, v: whole(q, k, v) + 1)


def test_a_wrong_dtype_of_whole_numbers_is_named_without_the_inputs():
    exercise = EXERCISES["read_back"]
    text = said(lambda *args: exercise.reference(*args).double(), exercise)
    assert text.endswith("the dtype is torch.float64 and should be torch.int64.")


def test_nan_is_explained():
    text = said(lambda q, k, v: ROW.reference(q, k, v) / 0 * 0)
    assert "got nan (as from 0 / 0, inf - inf or 0 * inf)" in text


def test_tuples_and_numbers_have_their_own_words():
    two = replace(ROW, reference=lambda q, k, v: (v[0], 3))
    assert "you return a tensor; it should be a tuple of 2." in said(lambda q, k, v: v[0], two)
    assert "you return a tuple of 3; it should" in said(lambda q, k, v: (v[0], 3, 4), two)
    text = said(lambda q, k, v: (v[0], 4), two)
    assert "of what you return, number 2: expected 3, got 4" in text
    assert "number 2: you return a list; it should be a number" in said(
        lambda *_: (_[2][0], []), two
    )
    for three in (torch.tensor(3), np.int64(3), np.float32(3)):
        assert examine(two, lambda q, k, v, three=three: (v[0], three)).outcome == "right"
    assert examine(two, lambda q, k, v: (v[0], None)).outcome == "not done yet"


def test_one_missing_return_among_several_is_shown():
    outs = iter([ROW.reference, lambda *_: None, ROW.reference])
    assert "you return nothing; it should be a tensor" in said(lambda *args: next(outs)(*args))


@pytest.mark.parametrize(
    ("stub", "says"),
    [
        (lambda q, k, v: None, "returns nothing so far"),
        (lambda q, k, v: ..., "returns nothing so far"),
        (lambda q, k, v: (q, ...), "returns nothing so far"),
        (lambda q, k, v: ... + q, "a blank"),
        (lambda q, k, v: torch.exp(...), "a blank"),
        (lambda q, k, v: (...).sum(), "a blank"),
        (lambda q, k, v: q @ ..., "a blank"),
    ],
)
def test_a_stub_is_answered_politely(stub, says):
    verdict = examine(ROW, stub)
    assert verdict.outcome == "not done yet"
    assert verdict.text.startswith("Not done yet:") and says in verdict.text


def test_a_stub_that_raises_is_answered_politely():
    def stub(q, k, v):
        raise NotImplementedError

    assert examine(ROW, stub).outcome == "not done yet"


def test_what_torch_cannot_do_is_no_stub():
    verdict = examine(ROW, lambda q, k, v: k.long().softmax(0))
    assert verdict.outcome == "raised" and "not implemented for 'Long'" in verdict.text


@pytest.mark.parametrize("inside", ["torch", "the library", "python"])
def test_an_exception_shows_the_frames_of_the_learner_alone(inside):
    def helper(q, k, v):
        if inside == "torch":
            return torch.nn.functional.softmax(k @ q, dim=3)
        if inside == "python":
            return re.compile("(")
        from softattn_lib import softmax_attention

        return softmax_attention(q, k, v, is_causal="no")

    def learners(q, k, v):
        return helper(q, k, v) @ v

    verdict = examine(ROW, learners)
    assert verdict.outcome == "raised"
    first, *frames = verdict.text.splitlines()[:1] + [
        line for line in verdict.text.splitlines() if re.match(r"  line \d+, in", line)
    ]
    assert re.match(r"T = \d, d = \d, e = \d: your function raised \w+Error: ", first) or (
        inside == "python" and "raised PatternError" in first.replace("error:", "PatternError:")
    )
    assert [re.search(r"in (\w+):", frame)[1] for frame in frames] == ["learners", "helper"]
    assert "helper(q, k, v) @ v" in frames[0]
    assert "checker.py" not in verdict.text and "site-packages" not in verdict.text


def test_an_endless_recursion_is_shown_in_few_lines():
    def learners(q, k, v):
        return learners(q, k, v)

    verdict = examine(ROW, learners)
    assert verdict.outcome == "raised" and verdict.text.count("\n") == 3


def all_orders_of(orders):
    def learners(q, order):
        return torch.cat([kronecker_power(q, n) / math.factorial(n) for n in orders(order)], dim=-1)

    return learners


@pytest.mark.parametrize(
    ("orders", "mistake"),
    [
        (range, "the last order is left out"),
        (lambda order: range(1, order + 1), "order 0 is left out"),
    ],
)
def test_a_mistake_that_raises_in_one_case_is_named(orders, mistake):
    verdict = examine(EXERCISES["all_orders"], all_orders_of(orders))
    assert (verdict.outcome, verdict.mistake) == ("wrong", mistake), verdict.text


def test_another_exception_than_that_of_a_mistake_is_not_named():
    def learners(q, order):
        return all_orders_of(range)(q, order) if order else q[5]

    verdict = examine(EXERCISES["all_orders"], learners)
    assert (verdict.outcome, verdict.mistake) == ("wrong", "")
    verdict = examine(EXERCISES["linear_state"], lambda k, v: k @ v)
    assert (verdict.outcome, verdict.mistake) == ("raised", "")


def test_what_goes_wrong_first_is_shown_first():
    right = ROW.reference
    outs = iter([right, lambda q, k, v: v[0], lambda q, k, v: v[99]])
    assert "expected" in said(lambda *args: next(outs)(*args))
    outs = iter([right, lambda q, k, v: v[99], lambda q, k, v: v[0]])
    assert "your function raised IndexError" in said(lambda *args: next(outs)(*args))


# A function without an end


needs_alarm = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no alarm on Windows")


@pytest.fixture
def short_limit(monkeypatch):
    monkeypatch.setattr(limit, "SECONDS", 0.05)


def endless(q, k, v):
    while True:
        with contextlib.suppress(Exception):
            k.exp()


@needs_alarm
def test_a_function_without_an_end_is_stopped(short_limit):
    verdict = examine(ROW, lambda q, k, v: endless(q, k, v))
    first, *frames = verdict.text.splitlines()
    assert verdict.outcome == "raised"
    assert re.fullmatch(
        r"T = \d, d = \d, e = \d: your function was still running after 0.05 s: "
        r"does its loop ever end\?",
        first,
    )
    assert [re.search(r"in ([\w<>]+):", frame)[1] for frame in frames] == ["<lambda>", "endless"]


@needs_alarm
@pytest.mark.parametrize("function", [endless, ROW.reference])
def test_an_earlier_alarm_comes_back(function, short_limit):
    def earlier(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGALRM, earlier)
    timer = signal.setitimer(signal.ITIMER_REAL, 100, 50)
    try:
        examine(ROW, function)
        assert signal.getsignal(signal.SIGALRM) is earlier
        assert signal.getitimer(signal.ITIMER_REAL) == pytest.approx((100, 50), abs=1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)


def slow(q, k, v):
    time.sleep(0.2)
    return ROW.reference(q, k, v)


def test_in_a_thread_there_is_no_limit(short_limit):
    verdicts = []
    thread = threading.Thread(target=lambda: verdicts.append(examine(ROW, slow)))
    thread.start()
    thread.join()
    assert [verdict.outcome for verdict in verdicts] == ["right"]


def test_without_an_alarm_there_is_no_limit(short_limit, monkeypatch):
    monkeypatch.delattr(signal, "setitimer", raising=False)
    assert examine(ROW, slow).outcome == "right"


@needs_alarm
def test_each_call_has_the_limit_for_itself(monkeypatch):
    monkeypatch.setattr(limit, "SECONDS", 0.5)
    assert examine(ROW, slow).outcome == "right"


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_change_in_place_is_caught(position):
    def changing(*args):
        out = ROW.reference(*args)
        args[position].mul_(2)
        return out

    text = said(changing)
    assert f"changes its input `{'qkv'[position]}`" in text and "Traceback" not in text


def test_inputs_with_nan_or_infinity_do_not_count_as_changed():
    def cases(generator):
        hidden = torch.tensor([[0.0, -torch.inf], [torch.nan, 1.0]], dtype=torch.float64)
        return [exercises.Case("odd numbers", (hidden,))]

    odd = replace(ROW, cases=cases, reference=lambda x: x * 2)
    assert examine(odd, lambda x: x + x).outcome == "right"


def test_answers_are_the_same_each_time():
    assert said(ROW.mistakes[0].function) == said(ROW.mistakes[0].function)
    before = torch.get_rng_state()
    said(ROW.reference)
    assert torch.equal(before, torch.get_rng_state())


# Hints, and what is remembered


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_hints_come_one_at_a_time_and_are_counted(capsys, own_record):
    hints = [f"Hint {n} of 3: {text}" for n, text in enumerate(ROW.hints, 1)]
    for n in range(3):
        exercises.hint("softmax_row")
        assert lines(capsys) == [hints[n]]
        assert exercises.memory.read("softmax_row") == {"solved": False, "hints": n + 1}
    for _ in range(2):
        exercises.hint("softmax_row")
        assert lines(capsys) == hints
    assert exercises.memory.read("softmax_row")["hints"] == 3
    assert own_record.exists() and list(own_record.parent.iterdir()) == [own_record]


def test_hints_after_solving_are_all_shown_and_not_counted(capsys):
    exercises.hint("softmax_row")
    exercises.check("softmax_row", ROW.reference)
    lines(capsys)
    for _ in range(2):
        exercises.hint("softmax_row")
        assert lines(capsys) == [f"Hint {n} of 3: {text}" for n, text in enumerate(ROW.hints, 1)]
    assert exercises.memory.read("softmax_row") == {"solved": True, "hints": 1}


def test_solved_is_remembered_and_stays(capsys):
    exercises.hint("softmax_row")
    exercises.check("softmax_row", ROW.mistakes[0].function)
    assert not exercises.memory.read("softmax_row")["solved"]
    exercises.check("softmax_row", ROW.reference)
    exercises.check("softmax_row", ROW.mistakes[0].function)
    assert exercises.memory.read("softmax_row") == {"solved": True, "hints": 1}
    lines(capsys)
    exercises.progress("01")
    first, *_, last = lines(capsys)
    assert re.fullmatch(r"01  softmax_row +fill in +5 min  ★☆☆ easy +solved +hints: 1 of 3", first)
    count = sum(e.notebook.startswith("01") for e in EXERCISES.values())
    assert last == f"1 of {count} solved"


def test_progress_lists_every_exercise(capsys):
    exercises.progress()
    *table, last = lines(capsys)
    assert [line.split()[1] for line in table] == list(EXERCISES)
    assert last == f"0 of {len(EXERCISES)} solved"
    assert max(map(len, table)) < 100


def test_solutions_are_not_recorded(capsys, own_record):
    exercises.keep_record(False)
    exercises.check("softmax_row", ROW.reference)
    exercises.hint("softmax_row")
    assert not own_record.exists()


@pytest.mark.parametrize("content", ["{", '{"softmax_row": 3}', '{"softmax_row": {"hints": "x"}}'])
def test_a_spoilt_record_is_begun_anew(content, capsys, own_record):
    own_record.parent.mkdir()
    own_record.write_text(content)
    exercises.hint("softmax_row")
    assert lines(capsys)[0].startswith("Hint 1 of 3")
    assert exercises.memory.read("softmax_row") == {"solved": False, "hints": 1}


def test_where_nothing_can_be_written_hints_still_follow_each_other(capsys, own_record):
    own_record.parent.write_text("a file where a folder should be")
    for n in (1, 2):
        exercises.hint("softmax_row")
        assert lines(capsys)[0].startswith(f"Hint {n} of 3")


def test_an_unknown_name_is_answered_with_a_near_one():
    for ask in (exercises.hint, lambda name: exercises.check(name, print)):
        with pytest.raises(ValueError, match="did you mean 'softmax_row'"):
            ask("softmax_rows")
        with pytest.raises(ValueError, match="there are softmax_row, "):
            ask("xyz")


# Notebooks


@each_solutions
def test_each_exercise_has_its_heading_its_data_and_its_check(name):
    cells = SOLUTIONS[name].cells
    for position, cell in enumerate(cells):
        if not (exercise := tool.exercise_of(cell)):
            continue
        heading, _, line, _, *task = cells[position - 1].source.split("\n")
        assert heading == f"## {exercise.title}"
        data = (
            f"**{exercise.kind.capitalize()}** · {exercise.minutes} minutes · {exercise.stars} · "
        )
        assert line.startswith(data) and task
        assert cells[position + 1].source == (
            f'exercises.check("{exercise.name}", {exercise.name})\n'
            f'# exercises.hint("{exercise.name}")'
        )
        assert notebooks.tags(cells[position + 2]) == [tool.SOLUTION_TAG]
        assert ast.get_docstring(ast.parse(cell.source).body[0])


@each_solutions
def test_minutes_are_the_sum_of_the_exercises(name):
    header = SOLUTIONS[name].cells[0].source
    total = sum(e.minutes for e in EXERCISES.values() if e.notebook == name)
    assert f"**Minutes:** {total}\n" in header


def headings(path):
    cells = jupytext.read(path).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    return {h.strip().replace(" ", "-") for h in re.findall(r"(?m)^#+ (.*)$", text)}


@each_solutions
@pytest.mark.parametrize("folder", [tool.SOLUTIONS, tool.COPIES], ids=lambda path: path.name)
def test_links_lead_to_headings(name, folder):
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)(?:#([^)]*))?\)", text)
    exercises_here = sum(e.notebook == name for e in EXERCISES.values())
    sections = [anchor for path, anchor in links if path == f"../{name}.ipynb" and anchor]
    assert len(sections) == exercises_here
    for path, anchor in links:
        target = (folder / path).resolve()
        assert target.exists(), path
        assert not anchor or anchor in headings(target), anchor


@each_solutions
def test_exercises_do_not_overwrite_names(name):
    """No name is given twice in a notebook, at the top of any cell."""
    names = []
    for cell in SOLUTIONS[name].cells:
        for node in ast.parse(cell.source).body if cell.cell_type == "code" else []:
            if isinstance(node, ast.FunctionDef):
                names.append(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names += [alias.asname or alias.name for alias in node.names]
            elif isinstance(node, ast.Assign):
                names += [
                    x.id for x in ast.walk(node) if isinstance(getattr(x, "ctx", None), ast.Store)
                ]
    assert len(names) == len(set(names))


# The learner's copies


@each_exercise
def test_every_given_line_is_in_the_solution(exercise):
    solution = solution_source(exercise)
    kept = {line.strip() for line in solution.splitlines()}
    was = set(re.findall(r"# was: (.*)$", solution, re.MULTILINE))
    given = [line.strip() for line in given_source(exercise).splitlines()]
    mine = [line for line in given if line.endswith("# your code")]
    assert len(mine) == {"fill in": 2, "modify": 0, "make": 1}[exercise.kind]
    for line in given:
        assert line in kept | was or line in mine, line
    assert given != solution.splitlines()
    assert not re.search(r"# (?:blank|was:|new)", given_source(exercise))


@each_solutions
def test_the_copy_is_what_its_solutions_give(name):
    assert tool.problems(name) == []


@each_solutions
def test_the_copy_says_that_it_is_generated_and_holds_no_solution(name):
    text = (tool.COPIES / f"{name}.py").read_text(encoding="utf-8")
    assert text.split("\n")[3].startswith("# *Generated from the solutions: do not edit this file.")
    assert "solutions only" not in text and "keep_record" not in text
    given = [e for e in EXERCISES.values() if e.notebook == name]
    assert text.count("](../solutions/") == len(given)
    for exercise in given:
        assert f"](../solutions/{name}.ipynb#{exercise.title.replace(' ', '-')})" in text


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """Solutions and copies of the first notebook, free to be changed."""
    for folder in (tool.SOLUTIONS, tool.COPIES):
        (tmp_path / folder.name).mkdir()
        for path in folder.glob(f"{NAMES[0]}.*"):
            shutil.copy(path, tmp_path / folder.name)
    monkeypatch.setattr(tool, "SOLUTIONS", tmp_path / "solutions")
    monkeypatch.setattr(tool, "COPIES", tmp_path / "exercises")
    return tmp_path


def test_any_line_that_is_missing_from_a_copy_is_noticed(copies, capsys):
    assert tool.main(["--check"]) == 0
    path = copies / "exercises" / f"{NAMES[0]}.py"
    text = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(text):
        if line.strip("# \n"):
            path.write_text("\n".join(text[:number] + text[number + 1 :]), encoding="utf-8")
            assert tool.main(["--check"]) == 1, line
    path.unlink()
    assert tool.main(["--check"]) == 1
    assert "is missing" in capsys.readouterr().out


def test_a_change_of_the_solutions_is_noticed(copies):
    path = copies / "solutions" / f"{NAMES[0]}.py"
    path.write_text(path.read_text(encoding="utf-8").replace("The four steps", "All four steps"))
    assert tool.main(["--check", NAMES[0]]) == 1
    with pytest.raises(SystemExit):
        tool.main(["--check", "99_nothing"])


@pytest.mark.slow
def test_writing_again_changes_nothing(copies):
    before = {path: path.read_bytes() for path in copies.rglob("*.*") if path.is_file()}
    assert tool.main([NAMES[0]]) == 0
    assert {path: path.read_bytes() for path in before} == before


def test_a_course_without_solutions(tmp_path):
    target = tmp_path / "course"
    assert tool.main(["--without-solutions", str(target)]) == 0
    assert not (target / "solutions").exists() and not (target / "TEACHING.md").exists()
    assert {path.stem for path in (target / "exercises").glob("[0-9]*.ipynb")} == set(NAMES)
    assert (target / "01_softmax_attention.ipynb").exists()
    for path in (target / "exercises").iterdir():
        assert "solutions/" not in path.read_text(encoding="utf-8"), path
        if path.suffix == ".ipynb":
            assert jupytext.read(path).cells
    with pytest.raises(SystemExit, match="there already"):
        tool.main(["--without-solutions", str(target)])


@pytest.mark.parametrize(
    ("kind", "source", "given"),
    [
        (
            "fill in",
            "def f(x):\n    a, b = g(x)  # blank\n    c = a\n    return a + b  # blank",
            "def f(x):\n    a, b = ...  # your code\n    c = a\n    return ...  # your code",
        ),
        (
            "modify",
            "def f(x):\n    a = 2  # was: a = 1\n    # was: y = 3\n    b = 3  # new\n    return a",
            "def f(x):\n    a = 1\n    y = 3\n    return a",
        ),
        (
            "make",
            'def f(x):\n    """One\n    two."""\n    return 3\n',
            'def f(x):\n    """One\n    two."""\n    return None  # your code',
        ),
    ],
)
def test_what_is_given_of_a_cell(kind, source, given):
    assert tool.stub(source, kind) == given


# Imports go one way


def test_the_library_does_not_import_its_exercises():
    library = notebooks.ROOT / "softattn_lib"
    for path in library.rglob("*.py"):
        if path.parent.name != "exercises":
            assert "exercises" not in {
                word
                for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
                for word in name.split(".")
            }, path
