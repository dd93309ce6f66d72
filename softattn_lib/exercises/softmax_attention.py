"""Exercises to notebook 01: one row, the mask, the row's maximum."""

import torch

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import QKV, draw_sizes, label, normal, tensor_cases

NOTEBOOK = "01_softmax_attention"


def _row_cases(generator):
    return [Case(c.label, (c.args[0][0], *c.args[1:])) for c in tensor_cases(*QKV)(generator)]


def _exp_of(scores):
    return (scores - scores.amax(-1, keepdim=True)).exp()


SOFTMAX_ROW = Exercise(
    name="softmax_row",
    notebook=NOTEBOOK,
    title="One row",
    kind="fill in",
    minutes=5,
    difficulty=1,
    reference=lambda q, k, v: (k @ q).softmax(0) @ v,
    cases=_row_cases,
    mistakes=(
        Mistake(
            "the scores taken for weights",
            lambda q, k, v: (k @ q) @ v / (k @ q).sum(),
            "A score can be negative, and then the row is no mean; exp comes first.",
        ),
        Mistake(
            "the numerator, not divided",
            lambda q, k, v: (k @ q).exp() @ v,
            "Without the denominator the output grows with every token that is seen.",
        ),
        Mistake(
            "divided by the number of keys",
            lambda q, k, v: (k @ q).exp() @ v / len(k),
            "The shares have to add up to 1, and the weights add up to their own sum, not to T.",
        ),
        Mistake(
            "divided by the sum of the scores",
            lambda q, k, v: (k @ q).exp() @ v / (k @ q).sum(),
            "Numerator and denominator hold the same weights, exp in both.",
        ),
        Mistake(
            "the scores are scaled",
            lambda q, k, v: (k @ q * len(q) ** -0.5).softmax(0) @ v,
            "The scale is 1 here: query and keys come in as they are.",
        ),
    ),
    hints=(
        "A weight is positive whatever the score is. Which function makes it so?",
        "The two blanks are step 2 (weigh) and step 4 (divide) of the pencil row.",
        "The weights are `scores.exp()`; the last line divides `weights @ v` by their sum.",
    ),
    matters="A softmax output is a mean of the values, so it lies between them.",
)


def _causal(q, k, v, diagonal=0, scale=None, axis=-1):
    scores = q @ k.T * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.exp().tril(diagonal)
    return weights / weights.sum(axis, keepdim=True) @ v


def _hidden_scores_zero(q, k, v):
    return (q @ k.T * q.shape[-1] ** -0.5).tril().softmax(-1) @ v


def _forward(q, k, v):
    weights = (q @ k.T * q.shape[-1] ** -0.5).exp().triu()
    return weights / weights.sum(-1, keepdim=True) @ v


CAUSAL_ATTENTION = Exercise(
    name="causal_attention",
    notebook=NOTEBOOK,
    title="Mask and scale",
    kind="modify",
    minutes=8,
    difficulty=2,
    reference=lambda q, k, v: sa.softmax_attention(q, k, v),
    cases=tensor_cases(*QKV),
    start=lambda q, k, v: (q @ k.T).softmax(-1) @ v,
    mistakes=(
        Mistake(
            "the mask is off by one",
            lambda q, k, v: _causal(q, k, v, diagonal=-1),
            "A token sees itself: the diagonal stays, or the first row has nothing to divide by.",
        ),
        Mistake(
            "the scale is missing",
            lambda q, k, v: _causal(q, k, v, scale=1.0),
            "Scores are sums of d products, so they want the factor d ** -0.5. It belongs "
            "inside exp: on the weights it would cancel.",
        ),
        Mistake(
            "the number of tokens in the scale",
            lambda q, k, v: _causal(q, k, v, scale=len(q) ** -0.5),
            "A score is a sum of d products: d is the width, `q.shape[-1]`, and `len(q)` is T.",
        ),
        Mistake(
            "the mask is missing",
            lambda q, k, v: (q @ k.T * q.shape[-1] ** -0.5).softmax(-1) @ v,
            "Every query still weighs the future too.",
        ),
        Mistake(
            "the scale is 1 / d",
            lambda q, k, v: _causal(q, k, v, scale=1 / q.shape[-1]),
            "The spread of a score grows like the root of d, so the root is what to divide by.",
        ),
        Mistake(
            "the scores times the root of d",
            lambda q, k, v: _causal(q, k, v, scale=q.shape[-1] ** 0.5),
            "The spread grows like that root already; d ** -0.5, with a minus, takes it back.",
        ),
        Mistake(
            "masked after dividing",
            lambda q, k, v: (q @ k.T * q.shape[-1] ** -0.5).softmax(-1).tril() @ v,
            "The sum below still counts the future, so the rows add up to less than 1: mask first.",
        ),
        Mistake(
            "softmax over queries instead of keys",
            lambda q, k, v: _causal(q, k, v, axis=0),
            "Row t holds the weights of query t, and it is the rows that add up to 1.",
        ),
        Mistake(
            "hidden scores set to 0",
            _hidden_scores_zero,
            "exp(0) is 1, so a hidden key keeps a weight: mask the weights, or use -inf.",
        ),
        Mistake(
            "the mask keeps the future",
            _forward,
            "The upper triangle holds the keys that come later; the lower one is the past.",
        ),
    ),
    hints=(
        "Two lines change: the one with the scores and the one with the weights.",
        "Which method of a matrix keeps its lower triangle, diagonal included?",
        "`scores = q @ k.T * q.shape[-1] ** -0.5`, and `weights = scores.exp().tril()`.",
    ),
    matters="With the mask a model can be trained on all positions of a text at once.",
)


def _masked(scores, visible):
    hidden = scores.masked_fill(~visible, -torch.inf)
    return hidden.softmax(-1).nan_to_num(0.0)


def _maximum_first(scores, visible):
    weights = _exp_of(scores) * visible
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, torch.ones_like(total))


def _maximum_first_nan(scores, visible):
    weights = _exp_of(scores) * visible
    return weights / weights.sum(-1, keepdim=True)


def _one_maximum(scores, visible):
    hidden = scores.masked_fill(~visible, -torch.inf)
    weights = (hidden - hidden.max()).exp()
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num(0.0)


def _no_maximum(scores, visible):
    weights = scores.exp().masked_fill(~visible, 0)
    total = weights.sum(-1, keepdim=True)
    return weights / total.where(total > 0, torch.ones_like(total))


def _mask_cases(generator):
    made = []
    for _ in range(2):
        sizes = draw_sizes(generator, "T_q T_k")
        scores = normal(generator, *sizes.values())
        visible = normal(generator, *sizes.values()) > -0.5
        visible[:, 0] = True
        made.append(Case(label(sizes), (scores, visible)))
    scores, visible = scores.clone(), visible.clone()
    visible[0, 1] = False
    scores[0, 1] = 2000.0
    made.append(Case("a hidden score of 2000", (scores, visible)))
    scores = normal(generator, 2, 5) + torch.tensor([[1000.0], [0.0]])
    everything = torch.ones(2, 5, dtype=torch.bool)
    made.append(Case("scores near 1000 in one row, near 0 in the other", (scores, everything)))
    visible = torch.ones(3, 4, dtype=torch.bool).tril()
    visible[0] = False
    made.append(Case("a row without a visible key", (normal(generator, 3, 4), visible)))
    return made


MASKED_SOFTMAX = Exercise(
    name="masked_softmax",
    notebook=NOTEBOOK,
    title="A softmax that survives",
    kind="make",
    minutes=12,
    difficulty=3,
    reference=_masked,
    cases=_mask_cases,
    mistakes=(
        Mistake(
            "the row's maximum taken before the mask",
            _maximum_first,
            "A huge hidden score pushes all visible ones to exp(-2000), which is 0: mask first.",
        ),
        Mistake(
            "the row's maximum before the mask, and 0 / 0",
            _maximum_first_nan,
            "A huge hidden score leaves only zeros, and then you divide by their sum: mask first.",
        ),
        Mistake(
            "the maximum is not subtracted",
            _no_maximum,
            "exp overflows at 710 in float64; the row's maximum may be taken off every score.",
        ),
        Mistake(
            "one maximum for all rows",
            _one_maximum,
            "A row far below it turns into exp(-1000), which is 0: each row has its own maximum.",
        ),
        Mistake(
            "a row without a visible key is 0 / 0",
            lambda scores, visible: scores.masked_fill(~visible, -torch.inf).softmax(-1),
            "Nothing is visible there, so nothing has weight: such a row is all 0 here.",
        ),
        Mistake(
            "softmax over queries instead of keys",
            lambda s, visible: s.masked_fill(~visible, -torch.inf).softmax(0).nan_to_num(0.0),
            "Keys are the last axis, and each row adds up to 1.",
        ),
        Mistake(
            "hidden scores set to 0",
            lambda scores, visible: scores.masked_fill(~visible, 0.0).softmax(-1),
            "exp(0) is 1, so a hidden key keeps a weight: -inf is the score of a hidden key.",
        ),
        Mistake(
            "a finite score for hidden keys",
            lambda scores, visible: scores.masked_fill(~visible, -1e9).softmax(-1),
            "Where all keys are hidden, equal scores give them equal weights: -inf hides for good.",
        ),
    ),
    hints=(
        "The order is: hide, take the maximum, exp, divide. Then think of the empty row.",
        "`scores.masked_fill(~visible, -torch.inf)` hides; the maximum of an empty row is -inf.",
        "After the division an empty row is NaN everywhere; `nan_to_num(0.0)` makes it 0.",
    ),
    matters="Padding, causality and windows are all masks, and a real model meets the empty row.",
)

EXERCISES = (SOFTMAX_ROW, CAUSAL_ATTENTION, MASKED_SOFTMAX)
