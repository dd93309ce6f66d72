"""Exercises to notebook 04: the state, its denominator, a chunk."""

import torch
import torch.nn.functional as F

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import QKV, tensor_cases

NOTEBOOK = "04_linear_attention_is_an_rnn"


def _value_first(k, v):
    return torch.zeros(k.shape[-1], v.shape[-1]) + torch.outer(v[0], k[0])


LINEAR_STATE = Exercise(
    name="linear_state",
    notebook=NOTEBOOK,
    title="Fill a state",
    kind="fill in",
    minutes=6,
    difficulty=1,
    reference=lambda k, v: k.relu().T @ v,
    cases=tensor_cases("T d", "T e"),
    mistakes=(
        Mistake(
            "the state is transposed",
            lambda k, v: v.T @ k.relu(),
            "Rows belong to features of the key and columns to the value: key first, then value.",
        ),
        Mistake(
            "the outer product is transposed",
            _value_first,
            "torch.outer(a, b) has len(a) rows, and the state has a row for each entry of the key.",
        ),
        Mistake(
            "only the last token is in the state",
            lambda k, v: torch.outer(k[-1].relu(), v[-1]),
            "Each token is added to what was there; a new matrix forgets the past.",
        ),
        Mistake(
            "the feature map is forgotten",
            lambda k, v: k.T @ v,
            "The key goes through relu before it is written.",
        ),
        Mistake(
            "the feature map on the value too",
            lambda k, v: k.relu().T @ v.relu(),
            "Only queries and keys go through the feature map; a value is handed on as it is.",
        ),
        Mistake(
            "the feature map on the product",
            lambda k, v: (k[:, :, None] * v[:, None]).relu().sum(0),
            "relu acts on the key before it meets the value; afterwards it cuts off other entries.",
        ),
        Mistake(
            "the first token is left out",
            lambda k, v: k[1:].relu().T @ v[1:],
            "The past begins empty, and the first token is written like every other.",
        ),
    ),
    hints=(
        "A column times a row is a matrix: equation 4.2.",
        "`torch.outer(a, b)` is that matrix; it has len(a) rows.",
        "`written = torch.outer(torch.relu(k[t]), v[t])`, then `state = state + written`.",
    ),
    matters="The past of any length is now d x e numbers, and no query was needed to make them.",
)


def _weights(q, k):
    return (F.elu(q) + 1) @ (F.elu(k) + 1).T


def _mean(q, k, v, diagonal=0):
    weights = _weights(q, k).tril(diagonal)
    return weights @ v / weights.sum(-1, keepdim=True)


def _by_steps(q, k, v):
    steps = torch.arange(1, len(q) + 1, dtype=q.dtype)[:, None]
    return _weights(q, k).tril() @ v / steps


def _last_denominator(q, k, v):
    weights = _weights(q, k).tril()
    return weights @ v / weights.sum(-1)[-1]


def _key_features_only(q, k, v):
    return _weights(q, k).tril() @ v / (F.elu(k) + 1).cumsum(0).sum(-1, keepdim=True)


LINEAR_ATTENTION = Exercise(
    name="linear_attention",
    notebook=NOTEBOOK,
    title="A mean out of the state",
    kind="modify",
    minutes=8,
    difficulty=2,
    reference=lambda q, k, v: sa.recurrent_attention(q, k, v, kernel="elu_plus_one", scale=1.0)[0],
    cases=tensor_cases(*QKV),
    start=lambda q, k, v: _weights(q, k).tril() @ v,
    mistakes=(
        Mistake(
            "the state is updated after the read-out",
            lambda q, k, v: _mean(q, k, v, diagonal=-1),
            "A token sees itself: write first, then read, or the first read is 0 / 0.",
        ),
        Mistake(
            "divided by the number of tokens",
            _by_steps,
            "The weights are no longer 1 each: what counts is their sum, a read of the ones.",
        ),
        Mistake(
            "the last denominator for all",
            _last_denominator,
            "Each query has its own sum of weights; read it with the same query, in the same step.",
        ),
        Mistake(
            "a denominator without the query",
            _key_features_only,
            "Summing the features of the keys is not enough: the query weighs them too.",
        ),
        Mistake(
            "the mask is missing",
            lambda q, k, v: (w := _weights(q, k)) @ v / w.sum(-1, keepdim=True),
            "The state of step t holds the tokens up to t, and no later ones.",
        ),
        Mistake(
            "the column of ones is kept",
            lambda q, k, v: torch.cat([_mean(q, k, v), torch.ones_like(v[:, :1])], dim=-1),
            "One column too many: the ones have done their work, cut them off.",
        ),
    ),
    hints=(
        "The sum of the weights is the same read with every value replaced by 1.",
        "Write a 1 behind each value, and the state counts along in one more column.",
        "`torch.cat([v, torch.ones_like(v[:, :1])], dim=-1)`; the last line divides all columns "
        "but the last by the last.",
    ),
    matters="Positive features and this division make every output a mean of the values.",
)


def _chunk(state, q, k, v, diagonal=0):
    return q @ state + (q @ k.T).tril(diagonal) @ v, state + k.T @ v


def _token_by_token(state, q, k, v):
    reads = []
    for q_t, k_t, v_t in zip(q, k, v, strict=True):
        state = state + torch.outer(k_t, v_t)
        reads.append(q_t @ state)
    return torch.stack(reads), state


def _chunk_cases(generator):
    cases = tensor_cases("d e", "C d", "C d", "C e")(generator)
    state, *tokens = cases[-1].args
    return [*cases, Case("a chunk of one token", (state, *(x[:1] for x in tokens)))]


ONE_CHUNK = Exercise(
    name="one_chunk",
    notebook=NOTEBOOK,
    title="Pairs inside, a state between",
    kind="make",
    minutes=12,
    difficulty=3,
    reference=_token_by_token,
    cases=_chunk_cases,
    mistakes=(
        Mistake(
            "the past is forgotten",
            lambda state, q, k, v: ((q @ k.T).tril() @ v, state + k.T @ v),
            "Every query of the chunk also reads the state that came in.",
        ),
        Mistake(
            "the chunk's own tokens are not read",
            lambda state, q, k, v: (q @ state, state + k.T @ v),
            "The state that came in is the past; a query also sees its chunk, up to its own token.",
        ),
        Mistake(
            "the mask inside the chunk is missing",
            lambda state, q, k, v: (q @ (state + k.T @ v), state + k.T @ v),
            "Inside a chunk too a query sees only the tokens up to its own.",
        ),
        Mistake(
            "the chunk counts twice",
            lambda state, q, k, v: (
                q @ (state + k.T @ v) + (q @ k.T).tril() @ v,
                state + k.T @ v,
            ),
            "Read the state as it came in; the tokens of the chunk are in the pairs already.",
        ),
        Mistake(
            "the mask is off by one",
            lambda state, q, k, v: _chunk(state, q, k, v, diagonal=-1),
            "A token sees itself: the diagonal stays.",
        ),
        Mistake(
            "the state does not go on",
            lambda state, q, k, v: (_chunk(state, q, k, v)[0], state),
            "The next chunk needs this one's tokens: add k.T @ v to the state.",
        ),
        Mistake(
            "the new state holds this chunk alone",
            lambda state, q, k, v: (_chunk(state, q, k, v)[0], k.T @ v),
            "What came before stays in the state; this chunk is added to it.",
        ),
    ),
    hints=(
        "A query reads two things: the state that came in, and the pairs of its own chunk.",
        "`q @ state` is the first; the second is a matrix of scores without its upper triangle.",
        "`reads = q @ state + (q @ k.T).tril() @ v`, and the new state is `state + k.T @ v`.",
    ),
    matters="Chunks make such a network fast: matrix products inside, constant memory between.",
)

EXERCISES = (LINEAR_STATE, LINEAR_ATTENTION, ONE_CHUNK)
