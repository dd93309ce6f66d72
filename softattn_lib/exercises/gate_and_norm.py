"""Exercises to notebook 07: the Gate form, the Norm form, and a gate that acts behind a norm."""

import torch

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import QKV, gate, tensor_cases

NOTEBOOK = "07_denominator_gate_norm"


def _causal(q, k):
    return (q @ k.T).exp().tril()


def _steps(q, first=1):
    return torch.arange(first, first + len(q), dtype=q.dtype)[:, None]


def _attend(q, k, v, **options):
    return sa.parallel_attention(q, k, v, kernel="exp", scale=1.0, return_state=False, **options)[0]


GATE_FORM = Exercise(
    name="gate_form",
    notebook=NOTEBOOK,
    title="Gate in place of the denominator",
    kind="fill in",
    minutes=5,
    difficulty=1,
    reference=lambda q, k, v, gate: _attend(q, k, v, normalizer="visible_keys", output_gate=gate),
    cases=tensor_cases(*QKV, gate),
    mistakes=(
        Mistake(
            "a sigmoid of the gate",
            lambda q, k, v, gate: gate.sigmoid()[:, None] * (_causal(q, k) @ v) / _steps(q),
            "The gates that are given are the sigmoids already, between 0 and 1.",
        ),
        Mistake(
            "the gate is forgotten",
            lambda q, k, v, gate: _causal(q, k) @ v / _steps(q),
            "That is the mean of e^score times value; the gate multiplies it, token by token.",
        ),
        Mistake(
            "1/t is forgotten",
            lambda q, k, v, gate: gate[:, None] * (_causal(q, k) @ v),
            "A sigmoid cannot fall as the sum grows; 1/t does that part.",
        ),
        Mistake(
            "tokens counted from 0",
            lambda q, k, v, gate: gate[:, None] * (_causal(q, k) @ v) / _steps(q, first=0),
            "The first query sees one key, its own: t begins with 1.",
        ),
        Mistake(
            "divided by T for every token",
            lambda q, k, v, gate: gate[:, None] * (_causal(q, k) @ v) / len(q),
            "Query t sees t keys, and T of them only at the end.",
        ),
        Mistake(
            "the gate on the values",
            lambda q, k, v, gate: _causal(q, k) @ (gate[:, None] * v) / _steps(q),
            "That is an input gate, of the key's token; here the query's token has the gate.",
        ),
        Mistake(
            "the denominator is still there",
            lambda q, k, v, gate: gate[:, None] * _attend(q, k, v, normalizer="sum"),
            "The Gate form has 1/t where the sum of the weights was.",
        ),
    ),
    hints=(
        "Equation 7.2 has two factors before the sum.",
        "`steps` is 1, 2, ..., T; both it and the gate need a second axis to fit (T, e).",
        "`torch.arange(1, len(q) + 1)`, then `gate[:, None] * numerator / steps[:, None]`.",
    ),
    matters="Gate and 1/t stand outside the sum, so each order keeps its state unchanged.",
)


def _numerator(q, k, v):
    return _causal(q, k) @ v


NORM_FORM = Exercise(
    name="norm_form",
    notebook=NOTEBOOK,
    title="Norm in place of the denominator",
    kind="modify",
    minutes=6,
    difficulty=2,
    reference=lambda q, k, v: _attend(q, k, v, normalizer="l2"),
    cases=tensor_cases(*QKV),
    start=lambda q, k, v: _attend(q, k, v, normalizer="sum"),
    mistakes=(
        Mistake(
            "the L2 norm squared",
            lambda q, k, v: (y := _numerator(q, k, v)) / y.square().sum(-1, keepdim=True),
            "The length is the root of the sum of squares; without it long rows become short.",
        ),
        Mistake(
            "the sum of the entries' sizes",
            lambda q, k, v: (y := _numerator(q, k, v)) / y.abs().sum(-1, keepdim=True),
            "That is the L1 norm; the paper divides by the L2 norm.",
        ),
        Mistake(
            "the RMS norm",
            lambda q, k, v: (y := _numerator(q, k, v)) / y.square().mean(-1, keepdim=True).sqrt(),
            "The root of the *mean* square leaves rows of length sqrt(e), not 1.",
        ),
        Mistake(
            "a norm over the tokens",
            lambda q, k, v: (y := _numerator(q, k, v)) / y.norm(dim=0, keepdim=True),
            "Each token's row gets the length 1; over tokens the future would come in.",
        ),
        Mistake(
            "one length for all rows",
            lambda q, k, v: (y := _numerator(q, k, v)) / y.norm(),
            "Without `dim` the norm is that of the whole matrix; each row has its own length.",
        ),
        Mistake(
            "the norm of the weights",
            lambda q, k, v: _numerator(q, k, v) / _causal(q, k).norm(dim=-1, keepdim=True),
            "It is the length of the numerator, a row of e numbers, that is divided away.",
        ),
        Mistake(
            "the numerator, not divided",
            _numerator,
            "Something has to stand where the denominator stood: the numerator's own length.",
        ),
    ),
    hints=(
        "Only the last line changes, and the weights are no longer in its divisor.",
        "Which method of a tensor gives the length of each row, and keeps the axis?",
        "`numerator / numerator.norm(dim=-1, keepdim=True)`.",
    ),
    matters="A positive factor cancels here, so this is softmax attention without its length.",
)


def _series(q, k, v, order):
    return sa.taylor(order)(q @ k.T).tril() @ v


def _unit(y):
    length = y.norm(dim=-1, keepdim=True)
    return y / torch.where(length > 0, length, 1)


def _gated_cases(generator):
    cases = tensor_cases(*QKV, gate, lambda generator, sizes: 2)(generator)
    q, k, v, *others = cases[-1].args
    v = v.clone()
    v[0] = 0
    return [*cases, Case("a first value of length 0", (q, k, v, *others))]


GATED_NORM = Exercise(
    name="gated_norm",
    notebook=NOTEBOOK,
    title="A gate that acts",
    kind="make",
    minutes=12,
    difficulty=3,
    reference=lambda q, k, v, gate, order: sa.recurrent_attention(
        q, k, v, kernel=sa.taylor(order), normalizer="l2", output_gate=gate, scale=1.0
    )[0],
    cases=_gated_cases,
    mistakes=(
        Mistake(
            "normalised after the gate (or the gate forgotten)",
            lambda q, k, v, gate, order: _unit(gate[:, None] * _series(q, k, v, order)),
            "A positive factor before a norm cancels, so the gate has to come behind it.",
        ),
        Mistake(
            "0 / 0 for a row of length 0",
            lambda q, k, v, gate, order: (
                gate[:, None] * (y := _series(q, k, v, order)) / y.norm(dim=-1, keepdim=True)
            ),
            "A row of zeros has no direction; here it stays 0.",
        ),
        Mistake(
            "the L2 norm squared",
            lambda q, k, v, gate, order: (
                gate[:, None]
                * (y := _series(q, k, v, order))
                / torch.where((square := y.square().sum(-1, keepdim=True)) > 0, square, 1)
            ),
            "The length is the root of the sum of squares.",
        ),
        Mistake(
            "1/t behind the norm",
            lambda q, k, v, gate, order: gate[:, None] * _unit(_series(q, k, v, order)) / _steps(q),
            "Before the norm 1/t does nothing; behind it, it makes late tokens short.",
        ),
        Mistake(
            "the gate on the values",
            lambda q, k, v, gate, order: _unit(_series(q, k, gate[:, None] * v, order)),
            "That is an input gate: it turns the sum, and leaves its length at 1.",
        ),
        Mistake(
            "exp in place of the series",
            lambda q, k, v, gate, order: gate[:, None] * _unit(_numerator(q, k, v)),
            "The weights are those of taylor(order), which have a finite state.",
        ),
        Mistake(
            "the mask is missing",
            lambda q, k, v, gate, order: gate[:, None] * _unit(sa.taylor(order)(q @ k.T) @ v),
            "Query t sees the keys up to t.",
        ),
        Mistake(
            "masked before the series",
            lambda q, k, v, gate, order: (
                gate[:, None] * _unit(sa.taylor(order)((q @ k.T).tril()) @ v)
            ),
            "A score of 0 has the weight 1, not 0: first the series, then the mask.",
        ),
    ),
    hints=(
        "Three steps: the causal sum with the weights of the series, its direction, the gate.",
        "No denominator is needed. Where a row has the length 0, divide by 1 instead.",
        "`length = y.norm(dim=-1, keepdim=True)`, and `torch.where(length > 0, length, 1)`.",
    ),
    matters="Only behind a norm does a gate have a gradient, and so anything to learn.",
)

EXERCISES = (GATE_FORM, NORM_FORM, GATED_NORM)
