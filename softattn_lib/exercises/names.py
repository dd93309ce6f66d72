"""Exercises to notebook 08: decay, an input gate, a cosine that is one, decay for all pairs."""

import torch
import torch.nn.functional as F

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import QKV, gate, log_decay, tensor_cases

NOTEBOOK = "08_what_the_names_hide"


def _run(k, v, step):
    state = torch.zeros(k.shape[-1], v.shape[-1], dtype=k.dtype)
    for t in range(len(k)):
        state = step(state, torch.outer(k[t], v[t]), t)
    return state


DECAYING_STATE = Exercise(
    name="decaying_state",
    notebook=NOTEBOOK,
    title="A state that forgets",
    kind="fill in",
    minutes=6,
    difficulty=1,
    reference=lambda k, v, log_decay: (
        sa.recurrent_attention(
            k, k, v, kernel="identity", normalizer="none", scale=1.0, log_decay=log_decay
        )[1].numerator
    ),
    cases=tensor_cases("T d", "T e", log_decay),
    mistakes=(
        Mistake(
            "the new token decays too",
            lambda k, v, a: _run(k, v, lambda state, new, t: a[t].exp() * (state + new)),
            "Only the past decays; a token enters whole.",
        ),
        Mistake(
            "the decay on the new token instead",
            lambda k, v, a: _run(k, v, lambda state, new, t: state + a[t].exp() * new),
            "That is an input gate: the old tokens stay as they are, and nothing is forgotten.",
        ),
        Mistake(
            "the decay is forgotten",
            lambda k, v, a: k.T @ v,
            "This state remembers everything alike; the old part is multiplied in each step.",
        ),
        Mistake(
            "the logarithm taken for the decay",
            lambda k, v, a: _run(k, v, lambda state, new, t: a[t] * state + new),
            "The logarithm is negative; the factor is `log_decay[t].exp()`, between 0 and 1.",
        ),
        Mistake(
            "the decay of the step before",
            lambda k, v, a: _run(k, v, lambda state, new, t: a[t - 1].exp() * state + new),
            "In step t the old state is multiplied by the decay of step t.",
        ),
        Mistake(
            "a running average",
            lambda k, v, a: _run(
                k, v, lambda state, new, t: a[t].exp() * state + (1 - a[t].exp()) * new
            ),
            "The new token enters whole, and not by what the decay has left room for.",
        ),
    ),
    hints=(
        "Two parts: what is kept of the old state, and what the new token writes.",
        "The old state is multiplied by a number between 0 and 1; the new token is not.",
        "`kept = log_decay[t].exp() * state`, then `kept + torch.outer(k[t], v[t])`.",
    ),
    matters="A decay is all it takes to turn a crowded state into one that forgets.",
)


def _causal(q, k):
    return (q @ k.T).exp().tril()


def _mean(weights, v):
    return weights @ v / weights.sum(-1, keepdim=True)


INPUT_GATE = Exercise(
    name="input_gated",
    notebook=NOTEBOOK,
    title="A gate on the way in",
    kind="modify",
    minutes=7,
    difficulty=2,
    reference=lambda q, k, v, gate: sa.parallel_attention(
        q, k, v, kernel="exp", input_gate=gate, scale=1.0
    )[0],
    cases=tensor_cases(*QKV, gate),
    start=lambda q, k, v, gate: _mean(_causal(q, k), v),
    mistakes=(
        Mistake(
            "the gate in the denominator too",
            lambda q, k, v, gate: _mean(_causal(q, k) * gate, v),
            "The gate multiplies the value and not the weight: the sum of the weights stays.",
        ),
        Mistake(
            "the gate on the output",
            lambda q, k, v, gate: gate[:, None] * _mean(_causal(q, k), v),
            "An input gate belongs to the key's token, and acts before the sum.",
        ),
        Mistake(
            "the gate on the keys",
            lambda q, k, v, gate: _mean(_causal(q, gate[:, None] * k), v),
            "In the exponent the gate would change the weights; it belongs on the values.",
        ),
        Mistake(
            "the gate in the denominator alone",
            lambda q, k, v, gate: _causal(q, k) @ v / (_causal(q, k) * gate).sum(-1, keepdim=True),
            "It is the numerator that the gate enters.",
        ),
        Mistake(
            "the inverse of the gate",
            lambda q, k, v, gate: _mean(_causal(q, k), v / gate[:, None]),
            "A gate of 0 lets nothing in: multiply, do not divide.",
        ),
    ),
    hints=(
        "A gate of 0 should make token s as if its value were 0.",
        "Only the line of the numerator changes; the gate needs a second axis to fit (T, e).",
        "`numerator = weights @ (gate[:, None] * v)`.",
    ),
    matters="An input gate weighs the values against each other, and no norm can undo that.",
)


def _products(q, k):
    return q @ k.transpose(-1, -2)


def _normalised(x, axis=-1):
    return F.normalize(x, dim=axis)


def _head_cases(generator):
    cases = tensor_cases("H T d", "H T d")(generator)
    q, k = (x.clone() for x in cases[-1].args)
    k[0, 1] = 0
    return [*cases, Case("a key of zeros", (q, k))]


def _divided(x):
    return x / x.norm(dim=-1, keepdim=True)


COSINE_SCORES = Exercise(
    name="cosine_scores",
    notebook=NOTEBOOK,
    title="A cosine that is one",
    kind="make",
    minutes=8,
    difficulty=2,
    reference=lambda q, k: sa.CosineKernel().scores(q, k, 1.0),
    cases=_head_cases,
    mistakes=(
        Mistake(
            "normalised over the heads",
            lambda q, k: _products(_normalised(q, 0), _normalised(k, 0)),
            "So the paper's code does it, and gets values above 1; the length goes over d.",
        ),
        Mistake(
            "normalised over the tokens",
            lambda q, k: _products(_normalised(q, -2), _normalised(k, -2)),
            "Each query and each key is divided by its own length, over the last axis.",
        ),
        Mistake(
            "not normalised",
            _products,
            "These are inner products; a cosine also divides by both lengths.",
        ),
        Mistake(
            "only the keys are normalised",
            lambda q, k: _products(q, _normalised(k)),
            "A long query still gets large values; divide by its length as well.",
        ),
        Mistake(
            "0 / 0 for a key of zeros",
            lambda q, k: _products(_divided(q), _divided(k)),
            "A key without a direction gets the cosine 0 here.",
        ),
        Mistake(
            "divided by the lengths squared",
            lambda q, k: _products(
                *(x / x.square().sum(-1, keepdim=True).clamp(min=1e-30) for x in (q, k))
            ),
            "The length is the root of the sum of squares.",
        ),
        Mistake(
            "one length for all vectors",
            lambda q, k: _products(q / q.norm(), k / k.norm()),
            "Without `dim` the norm is that of the whole tensor; each vector has its own length.",
        ),
    ),
    hints=(
        "A cosine is the inner product of two vectors that both have the length 1.",
        "`torch.nn.functional.normalize` divides by the length along `dim`, and leaves zeros.",
        "`normalize(q, dim=-1) @ normalize(k, dim=-1).mT`.",
    ),
    matters="A forgotten axis raised no error and gave a curve all the same; a bound of 1 that "
    "one checks would have shown it.",
)


def _between(log_decay, from_next=True, upto=True):
    """The product of the decays of the steps s+1 (or s) to t (or t-1), for s <= t."""
    T = len(log_decay)
    out = torch.zeros(T, T, dtype=log_decay.dtype)
    for t in range(T):
        for s in range(t + 1):
            out[t, s] = log_decay[s + from_next : t + upto].sum().exp()
    return out


def _running(log_decay):
    running = log_decay.cumsum(0)
    return running[:, None] - running[None, :]


def _log_decay_cases(generator):
    made = [Case(f"T = {T}", (log_decay(generator, {"T": T}),)) for T in (3, 6)]
    nearly_all = log_decay(generator, {"T": 5})
    nearly_all[2] = -800.0
    return [*made, Case("a step that forgets everything", (nearly_all,))]


DECAY_MATRIX = Exercise(
    name="decay_matrix",
    notebook=NOTEBOOK,
    title="Decay for all pairs at once",
    kind="make",
    minutes=12,
    difficulty=3,
    reference=lambda log_decay: _between(log_decay),
    cases=_log_decay_cases,
    mistakes=(
        Mistake(
            "a token enters decayed",
            lambda log_decay: _between(log_decay, from_next=False),
            "The decay of step s acts on what came before s: the product begins with s + 1.",
        ),
        Mistake(
            "the last step is left out",
            lambda log_decay: _between(log_decay, upto=False),
            "The decay of step t acts on every older token: the product ends with t.",
        ),
        Mistake(
            "the logarithms taken for the decays",
            lambda log_decay: _running(log_decay).tril(),
            "Logarithms add up and decays multiply: exp comes last.",
        ),
        Mistake(
            "the future is still there",
            lambda log_decay: _running(log_decay).exp(),
            "For s > t there is nothing to decay: the upper triangle is 0.",
        ),
        Mistake(
            "ones in the future",
            lambda log_decay: _running(log_decay).tril().exp(),
            "exp of a zero is 1: first exp, then `tril`.",
        ),
        Mistake(
            "decayed since the beginning",
            lambda log_decay: log_decay.cumsum(0).exp()[:, None].expand(-1, len(log_decay)).tril(),
            "A token decays from its own step on: take off the running sum at s.",
        ),
        Mistake(
            "a quotient of running products",
            lambda log_decay: ((running := log_decay.exp().cumprod(0))[:, None] / running).tril(),
            "After exp(-800) both products are 0, and 0 / 0 is NaN; stay with the logarithms.",
        ),
        Mistake(
            "the future overflows before it is masked",
            lambda log_decay: (
                _running(log_decay).exp() * torch.ones_like(log_decay).diag().cumsum(0)
            ),
            "Above the diagonal exp(800) is inf, and inf * 0 is NaN: `tril` sets, and multiplies "
            "nothing.",
        ),
    ),
    hints=(
        "A product of decays is exp of a sum of logarithms, and sums over a range are differences.",
        "With the running sum R, the logarithm for the pair (t, s) is R_t - R_s.",
        "`running = log_decay.cumsum(0)`; then exp of all differences, and its lower triangle.",
    ),
    matters="With this matrix on the scores, a decaying network is trained on all tokens at once.",
)

EXERCISES = (DECAYING_STATE, INPUT_GATE, COSINE_SCORES, DECAY_MATRIX)
