"""Exercises to notebook 05: the state of order n, the sum over orders, a network of order 2."""

import math

import torch

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import QKV, draw_sizes, label, normal, tensor_cases

NOTEBOOK = "05_softmax_attention_is_a_sum_of_rnns"


def _state_cases(generator):
    made = []
    for n in (2, 3):
        sizes = draw_sizes(generator, "T d e")
        T, d, e = sizes.values()
        text = f"{label(sizes)}, order {n}"
        made.append(Case(text, (normal(generator, T, d), normal(generator, T, e), n)))
    return [*made, Case("order 0", (normal(generator, 4, 3), normal(generator, 4, 2), 0))]


def _state(k, v, n):
    return sa.kronecker_power(k, n).T @ v


ORDER_STATE = Exercise(
    name="order_state",
    notebook=NOTEBOOK,
    title="The state of one order",
    kind="fill in",
    minutes=5,
    difficulty=1,
    reference=_state,
    cases=_state_cases,
    mistakes=(
        Mistake(
            "the state is transposed",
            lambda k, v, n: _state(k, v, n).T,
            "Rows belong to products of the key's entries, columns to the value.",
        ),
        Mistake(
            "powers of single entries",
            lambda k, v, n: (k**n).T @ v,
            "k ** n has no cross terms; the Kronecker power has all d ** n products.",
        ),
        Mistake(
            "1/n! in the state",
            lambda k, v, n: _state(k, v, n) / math.factorial(n),
            "Coefficients stay on the query's side: then one state serves every polynomial.",
        ),
        Mistake(
            "only the last token is in the state",
            lambda k, v, n: torch.outer(sa.kronecker_power(k[-1], n), v[-1]),
            "The state is the sum over all tokens so far.",
        ),
        Mistake(
            "one order too high",
            lambda k, v, n: _state(k, v, n + 1),
            "Order 0 has one row, order 1 the keys themselves: n factors for order n.",
        ),
    ),
    hints=(
        "This is notebook 04 with another feature map.",
        "The feature map is `kronecker_power(k, n)`, (T, d ** n); then sum over the tokens.",
        "A matrix product sums over the tokens: `powers.T @ v`.",
    ),
    matters="Each order is a linear recurrent network, and differs from linear attention by its "
    "feature map alone.",
)


def _one_query_cases(generator):
    made = []
    for order, case in zip((2, 4, 3), tensor_cases(*QKV)(generator), strict=True):
        q, k, v = case.args
        # Short rows: the denominators of odd orders stay away from 0.
        made.append(Case(f"{case.label}, order {order}", (q[0] / 2, k / 2, v, order)))
    return made


def _row(scores, v, coefficients, below=None):
    """sum_n c_n scores^n, weighing v, over the same sum (or that of other coefficients)."""

    def weights(c):
        return sum(c_n * scores**n for n, c_n in enumerate(c))

    return weights(coefficients) @ v / weights(below or coefficients).sum()


def _taylor(order):
    return [1 / math.factorial(n) for n in range(order + 1)]


def _as_drawn(q, k, v, order):
    weights = sa.taylor(order)(k @ q)
    return 1 + (weights - 1) @ v / weights.sum()


def _begun_with_one(weights, v):
    return (1 + weights @ v) / (1 + weights.sum())


SUM_OF_RNNS = Exercise(
    name="sum_of_rnns",
    notebook=NOTEBOOK,
    title="Add the orders up",
    kind="modify",
    minutes=8,
    difficulty=2,
    reference=lambda q, k, v, order: _row(k @ q, v, _taylor(order)),
    cases=_one_query_cases,
    start=lambda q, k, v, order: _row(k @ q, v, [0.0] + [1.0] * order),
    mistakes=(
        Mistake(
            "1/n! is missing",
            lambda q, k, v, order: _row(k @ q, v, [1.0] * (order + 1)),
            "Order 0 is in now; each order still comes with its coefficient 1/n!.",
        ),
        Mistake(
            "order 0 is left out",
            lambda q, k, v, order: _row(k @ q, v, [0.0, *_taylor(order)[1:]]),
            "Order 0 is the running sum of the values: `range(order + 1)` begins with it.",
        ),
        Mistake(
            "the denominator without order 0",
            lambda q, k, v, order: _row(k @ q, v, _taylor(order), [0.0, *_taylor(order)[1:]]),
            "The ones count along in every order, also in order 0, where they count the tokens.",
        ),
        Mistake(
            "1/n in place of 1/n!",
            lambda q, k, v, order: _row(k @ q, v, [1.0] + [1 / n for n in range(1, order + 1)]),
            "The factorial collects all the n up to here; up to order 2 the two are the same.",
        ),
        Mistake(
            "order 0 as the constant 1",
            _as_drawn,
            "So the paper's figure draws it; by its equations order 0 is the sum of the values.",
        ),
        Mistake(
            "order 0 as the constant 1, also in the denominator",
            lambda q, k, v, order: _begun_with_one(sa.taylor(order)(k @ q) - 1, v),
            "Order 0 is read from a state too: the sum of the values, and the number of tokens.",
        ),
        Mistake(
            "a constant 1 on top of order 0",
            lambda q, k, v, order: _begun_with_one(sa.taylor(order)(k @ q), v),
            "The sum over n has its order 0 already: begin with 0, and add the orders 0 to N.",
        ),
        Mistake(
            "the numerator, not divided",
            lambda q, k, v, order: sa.taylor(order)(k @ q) @ v,
            "The last entry is the sum of the weights: the others are to be divided by it.",
        ),
        Mistake(
            "the last order is left out",
            lambda q, k, v, order: _row(k @ q, v, _taylor(order - 1)),
            "`order` is the highest power that is kept.",
        ),
    ),
    hints=(
        "Compare the loop with equation 5.2: which order is missing, and which factor?",
        "The sum begins at n = 0, and every read is divided by n!.",
        "`range(order + 1)`, and `... @ state / math.factorial(n)`.",
    ),
    matters="This is the sentence in the title of notebook 05, with the denominator in the state.",
)


def _masked(weights, v, diagonal=0):
    weights = weights.tril(diagonal)
    return weights @ v / weights.sum(-1, keepdim=True)


def _order_two(scores, half=0.5, constant=1.0):
    return constant + scores + half * scores**2


def _without_counts(q, k, v):
    i, j = torch.triu_indices(q.shape[-1], q.shape[-1])
    scores = q @ k.T
    return _masked(1 + scores + (q[:, i] * q[:, j]) @ (k[:, i] * k[:, j]).T / 2, v)


SECOND_ORDER_RNN = Exercise(
    name="second_order_rnn",
    notebook=NOTEBOOK,
    title="A network of order 2",
    kind="make",
    minutes=15,
    difficulty=3,
    reference=lambda q, k, v: sa.recurrent_attention(q, k, v, kernel=sa.taylor(2), scale=1.0)[0],
    cases=tensor_cases(*QKV),
    mistakes=(
        Mistake(
            "the state is updated after the read-out",
            lambda q, k, v: _masked(_order_two(q @ k.T), v, diagonal=-1),
            "A token sees itself: write first, then read, or the first read is 0 / 0.",
        ),
        Mistake(
            "1/2! is missing",
            lambda q, k, v: _masked(_order_two(q @ k.T, half=1.0), v),
            "Order 2 of exp comes with the coefficient 1/2.",
        ),
        Mistake(
            "the denominator without order 0",
            lambda q, k, v: (
                _order_two(q @ k.T).tril()
                @ v
                / _order_two(q @ k.T, constant=0.0).tril().sum(-1, keepdim=True)
            ),
            "The ones count along in every order, also in order 0, where they count the tokens.",
        ),
        Mistake(
            "order 0 is left out",
            lambda q, k, v: _masked(_order_two(q @ k.T, constant=0.0), v),
            "Order 0 is the running sum of the values, and of the ones.",
        ),
        Mistake(
            "the last order is left out",
            lambda q, k, v: _masked(_order_two(q @ k.T, half=0.0), v),
            "The orders are 0, 1 and 2: three states, and `range(3)`.",
        ),
        Mistake(
            "packed products without their counts",
            _without_counts,
            "k_1 k_2 stands for two entries of the Kronecker power, so it has to count twice.",
        ),
        Mistake(
            "the denominator of exp",
            lambda q, k, v: (
                _order_two(q @ k.T).tril() @ v / (q @ k.T).exp().tril().sum(-1, keepdim=True)
            ),
            "It needs all old keys; the denominator of orders 0 to 2 is a column of the state.",
        ),
        Mistake(
            "the numerator, not divided",
            lambda q, k, v: _order_two(q @ k.T).tril() @ v,
            "Put a 1 behind each value, and divide what is read by what the ones give.",
        ),
        Mistake(
            "the column of ones is kept",
            lambda q, k, v: torch.cat(
                [_masked(_order_two(q @ k.T), v), torch.ones_like(v[:, :1])], dim=-1
            ),
            "One column too many: the ones have done their work, cut them off.",
        ),
        Mistake(
            "the mask is missing",
            lambda q, k, v: (w := _order_two(q @ k.T)) @ v / w.sum(-1, keepdim=True),
            "The state of step t holds the tokens up to t, and no later ones.",
        ),
        Mistake(
            "the scores are scaled",
            lambda q, k, v: _masked(_order_two(q @ k.T * q.shape[-1] ** -0.5), v),
            "The scale is 1 here: queries and keys come in as they are.",
        ),
    ),
    hints=(
        "Three states, one for each order, and values with a 1 behind them.",
        "In each step: write into all three, read all three with their 1/n!, add, divide.",
        "State n grows by `torch.outer(kronecker_power(k[t], n), values[t])`, and is read with "
        "`kronecker_power(q[t], n) @ states[n] / math.factorial(n)`.",
    ),
    matters="This network never looks at an old token again, and gives a truncated softmax.",
)

EXERCISES = (ORDER_STATE, SUM_OF_RNNS, SECOND_ORDER_RNN)
