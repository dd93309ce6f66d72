"""Exercises to notebook 06: the read-out of orders, misplaced weight, two shifts of the scores."""

import torch

from softattn_lib import taylor
from softattn_lib.scores import misplaced_weight, order_sizes

from .checker import Case, Exercise, Mistake
from .sizes import draw_sizes, label, normal, tensor_cases

NOTEBOOK = "06_a_real_model"


def _terms(scores, max_order, sign=False):
    """(T, max_order + 1): score ** n / n!, of the sizes of the scores or of the scores."""
    n = torch.arange(max_order + 1, dtype=scores.dtype)
    base = scores if sign else scores.abs()
    return base[:, None] ** n / torch.lgamma(n + 1).exp()


def _without_factorial(scores, max_order):
    return (scores.abs()[:, None] ** torch.arange(max_order + 1)).mean(0)


def _read_out_cases(generator):
    made = []
    for _ in range(2):
        sizes = draw_sizes(generator, "T max_order")
        made.append(Case(label(sizes), (2 * normal(generator, sizes["T"]), sizes["max_order"])))
    return [*made, Case("only negative scores", (-1 - normal(generator, 5).abs(), 6))]


ORDER_SIZES = Exercise(
    name="order_sizes",
    notebook=NOTEBOOK,
    title="The read-out of orders",
    kind="fill in",
    minutes=6,
    difficulty=1,
    reference=lambda scores, max_order: order_sizes(scores[None], max_order),
    cases=_read_out_cases,
    mistakes=(
        Mistake(
            "1/n! is missing",
            _without_factorial,
            "Powers alone grow with the order; order n of exp comes with 1/n!.",
        ),
        Mistake(
            "the sign is kept",
            lambda scores, max_order: _terms(scores, max_order, sign=True).mean(0),
            "Terms of both signs would cancel in the mean; the read-out takes their sizes.",
        ),
        Mistake(
            "the size of the mean",
            lambda scores, max_order: _terms(scores, max_order, sign=True).mean(0).abs(),
            "In an odd order terms of both signs cancel first; take sizes, then the mean.",
        ),
        Mistake(
            "summed, not averaged",
            lambda scores, max_order: _terms(scores, max_order).sum(0),
            "A sum grows with the number of scores, and layers could not be compared.",
        ),
        Mistake(
            "the largest in place of the mean",
            lambda scores, max_order: _terms(scores, max_order).amax(0),
            "The read-out averages over the scores.",
        ),
        Mistake(
            "averaged over the orders",
            lambda scores, max_order: _terms(scores, max_order).mean(-1),
            "One number for each order is wanted: the mean goes over the scores, the first axis.",
        ),
    ),
    hints=(
        "`n` and `factorial` hold one entry for each order. Which shape has a table of all terms?",
        "(T, max_order + 1): give the scores a second axis of size 1, and mind their sign.",
        "`scores.abs()[:, None] ** n / factorial`, then the mean over the first axis.",
    ),
    matters="The largest entry is the dominant order: it follows the size of the scores, and does "
    "not see their sign.",
)


def _shares(weights):
    return weights / weights.sum(-1, keepdim=True)


def _off(scores, order):
    return _shares(taylor(order)(scores)) - scores.softmax(-1)


def _matrix_cases(generator):
    made = []
    for order in (2, 4, 6):
        sizes = draw_sizes(generator, "T_q T_k", order=order)
        scores = 2 * normal(generator, sizes["T_q"], sizes["T_k"])
        made.append(Case(label(sizes), (scores, order)))
    return made


MISPLACED = Exercise(
    name="misplaced",
    notebook=NOTEBOOK,
    title="How much weight lies elsewhere",
    kind="modify",
    minutes=8,
    difficulty=2,
    reference=lambda scores, order: misplaced_weight(scores, order),
    cases=_matrix_cases,
    start=lambda scores, order: (taylor(order)(scores) - scores.exp()).abs().amax(-1),
    mistakes=(
        Mistake(
            "not halved",
            lambda scores, order: _off(scores, order).abs().sum(-1),
            "What is missing on one key lies on another, so the sum counts all of it twice.",
        ),
        Mistake(
            "the weights of the series are not divided by their sum",
            lambda s, order: (taylor(order)(s) - s.softmax(-1)).abs().sum(-1) / 2,
            "Both rows have to add up to 1 before one can say what lies elsewhere.",
        ),
        Mistake(
            "softmax of the series",
            lambda s, order: (taylor(order)(s).softmax(-1) - s.softmax(-1)).abs().sum(-1) / 2,
            "The series stands for exp already, so its shares are the series over its sum.",
        ),
        Mistake(
            "neither row is divided by its sum",
            lambda s, order: (taylor(order)(s) - s.exp()).abs().sum(-1) / 2,
            "A factor on a whole row moves no weight; compare shares.",
        ),
        Mistake(
            "the largest difference, not the sum",
            lambda scores, order: _off(scores, order).abs().amax(-1),
            "Many small differences can move as much weight as a large one: add them up.",
        ),
        Mistake(
            "the signs are kept",
            lambda scores, order: _off(scores, order).sum(-1) / 2,
            "Both rows add up to 1, so their difference adds up to 0: take sizes first.",
        ),
        Mistake(
            "summed over queries instead of keys",
            lambda scores, order: _off(scores, order).abs().sum(0) / 2,
            "One number for each query is wanted; the keys are the last axis.",
        ),
    ),
    hints=(
        "The given code compares weights. Which two rows of *shares* should it compare?",
        "`scores.softmax(-1)`, and the series' weights over their sum.",
        "Then half the sum of the sizes of the differences, over the last axis.",
    ),
    matters="Twice this number times the longest value bounds the error of the output.",
)


def _key_cases(generator):
    cases = tensor_cases("T d", "T d", "R d")(generator)
    return [Case(case.label, tuple(x + 1 for x in case.args)) for case in cases]


CENTRED_SCORES = Exercise(
    name="centred_scores",
    notebook=NOTEBOOK,
    title="A shift that a recurrence can have",
    kind="make",
    minutes=7,
    difficulty=2,
    reference=lambda q, k, reference: q @ (k - reference.mean(0)).T,
    cases=_key_cases,
    mistakes=(
        Mistake(
            "the mean key of this text",
            lambda q, k, reference: q @ (k - k.mean(0)).T,
            "A recurrence does not have it before the text ends; the reference is another text.",
        ),
        Mistake(
            "the mean of each key's own entries",
            lambda q, k, reference: q @ (k - k.mean(-1, keepdim=True)).T,
            "One vector for all keys is subtracted, or the softmax would change.",
        ),
        Mistake(
            "subtracted from the queries",
            lambda q, k, reference: (q - reference.mean(0)) @ k.T,
            "That moves each key's scores by an amount of its own, and softmax notices.",
        ),
        Mistake(
            "subtracted from both sides",
            lambda q, k, reference: (q - reference.mean(0)) @ (k - reference.mean(0)).T,
            "The keys alone are moved; a shift of the queries changes the softmax.",
        ),
        Mistake(
            "the mean key added",
            lambda q, k, reference: q @ (k + reference.mean(0)).T,
            "It is taken off: afterwards the keys lie around 0.",
        ),
        Mistake(
            "divided by the root of d",
            lambda q, k, reference: q @ (k - reference.mean(0)).T / q.shape[-1] ** 0.5,
            "The scale is 1 here: the scores are plain inner products.",
        ),
    ),
    hints=(
        "One fixed vector m, made of the reference alone, is taken off every key.",
        "m is the mean of the reference over its tokens, the first axis.",
        "`q @ (k - reference.mean(0)).T`.",
    ),
    matters="Softmax does not notice this shift, and to the series it can mean most of the loss.",
)


def _range_of(scores, hidden=torch.inf):
    """The lowest score of each row, hidden ones taken for the number given, and the highest."""
    lowest = scores.masked_fill(scores == -torch.inf, hidden).amin(-1, keepdim=True)
    return lowest, scores.amax(-1, keepdim=True)


def _to_the_middle(scores):
    lowest, highest = _range_of(scores)
    return scores - (lowest + highest) / 2


def _minus_the_mean(scores):
    hidden = scores == -torch.inf
    mean = scores.masked_fill(hidden, 0).sum(-1, keepdim=True) / (~hidden).sum(-1, keepdim=True)
    return scores - mean


def _one_middle(scores):
    lowest, highest = _range_of(scores)
    return scores - (lowest.min() + highest.max()) / 2


def _causal_score_cases(generator):
    cases = tensor_cases("T_q T_k")(generator)
    made = [Case(case.label, (3 * case.args[0] + 1,)) for case in cases]
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    scores = 3 * normal(generator, 5, 5)
    return [*made, Case("a causal mask", (scores.masked_fill(future, -torch.inf),))]


CENTRE_ROWS = Exercise(
    name="centre_rows",
    notebook=NOTEBOOK,
    title="The middle of a row",
    kind="make",
    minutes=10,
    difficulty=3,
    reference=_to_the_middle,
    cases=_causal_score_cases,
    mistakes=(
        Mistake(
            "the maximum subtracted",
            lambda scores: scores - scores.amax(-1, keepdim=True),
            "Then every score is 0 or below, where the series is worst; the middle goes to 0.",
        ),
        Mistake(
            "the mean subtracted",
            _minus_the_mean,
            "The middle of the range halves the largest size; the mean leaves one side longer.",
        ),
        Mistake(
            "hidden scores take part",
            lambda scores: (
                scores - (scores.amin(-1, keepdim=True) + scores.amax(-1, keepdim=True)) / 2
            ),
            "The minimum of a row with a hidden key is -inf; leave hidden keys out of it.",
        ),
        Mistake(
            "hidden scores counted as 0",
            lambda scores: scores - sum(_range_of(scores, hidden=0.0)) / 2,
            "A 0 can be the lowest of a row, and is no score of it; leave hidden keys out.",
        ),
        Mistake(
            "one middle for all rows",
            _one_middle,
            "Softmax lets every row move by an amount of its own.",
        ),
        Mistake(
            "the sum of the ends, not halved",
            lambda scores: scores - sum(_range_of(scores)),
            "The middle between two numbers is half their sum.",
        ),
    ),
    hints=(
        "The middle of what a query sees lies between its lowest and its highest visible score.",
        "For the lowest, hidden scores must not count: fill them with +inf first.",
        "`lowest = scores.masked_fill(scores == -torch.inf, torch.inf).amin(-1, keepdim=True)`.",
    ),
    matters="No shift makes the largest score of a row smaller in size than this one.",
)

EXERCISES = (ORDER_SIZES, MISPLACED, CENTRED_SCORES, CENTRE_ROWS)
