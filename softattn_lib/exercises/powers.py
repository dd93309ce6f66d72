"""Exercises to notebook 03: Kronecker powers, packed powers, all orders in one row."""

import math

import torch

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import draw_sizes, label, normal, tensor_cases

NOTEBOOK = "03_powers_of_an_inner_product"


def _once(x, offset=0):
    """Products x_i x_j with i <= j (offset 0) or i < j (offset 1), and the indices."""
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], offset=offset)
    return x[:, i] * x[:, j], i, j


KRONECKER_SQUARE = Exercise(
    name="kronecker_square",
    notebook=NOTEBOOK,
    title="All products of two entries",
    kind="fill in",
    minutes=6,
    difficulty=1,
    reference=lambda x: sa.kronecker_power(x, 2),
    cases=tensor_cases("T d"),
    mistakes=(
        Mistake(
            "the squares alone",
            lambda x: x**2,
            "The cross terms are missing: x_1 x_2 is an entry too, and it comes twice.",
        ),
        Mistake(
            "each product kept once",
            lambda x: _once(x)[0],
            "That is the packed form without its counts; here all d * d products are wanted.",
        ),
        Mistake(
            "the products not in one row",
            lambda x: x[:, :, None] * x[:, None, :],
            "The numbers are right; `flatten(1)` puts each token's matrix into one row.",
        ),
        Mistake(
            "summed over the tokens",
            lambda x: (x.T @ x).flatten(),
            "Every token keeps a row of its own; summing over the past is what a state does.",
        ),
        Mistake(
            "the Kronecker product of the whole matrix",
            lambda x: torch.kron(x, x),
            "It multiplies each token with every other too, in T * T rows: stay within one row.",
        ),
    ),
    hints=(
        "An axis of size 1 lets torch multiply every entry with every entry.",
        "`x[:, :, None]` is (T, d, 1). With what shape do you multiply it to get (T, d, d)?",
        "`products = x[:, :, None] * x[:, None, :]`, then `products.flatten(1)`.",
    ),
    matters="The inner product of two such rows is the squared score, without the score.",
)


def _counted(x, both_sides=False, on_squares=False):
    products, i, j = _once(x)
    count = 1 + ((i == j) if on_squares else (i < j)).to(x)
    return products * (count if both_sides else count.sqrt())


PACKED_SQUARE = Exercise(
    name="packed_square",
    notebook=NOTEBOOK,
    title="Each product once",
    kind="modify",
    minutes=8,
    difficulty=2,
    reference=lambda x: sa.symmetric_power(x, 2),
    cases=tensor_cases("T d"),
    start=lambda x: _once(x)[0],
    mistakes=(
        Mistake(
            "the coefficient on both sides",
            lambda x: _counted(x, both_sides=True),
            "Query and key both carry the factor, so 2 would count as 4: its root belongs here.",
        ),
        Mistake(
            "the root at the squares",
            lambda x: _counted(x, on_squares=True),
            "x_i x_i comes once in the full row; it is x_i x_j with i < j that comes twice.",
        ),
        Mistake(
            "the squares left out",
            lambda x: _once(x, offset=1)[0] * 2**0.5,
            "x_i x_i is a product of two entries like the others: i <= j.",
        ),
        Mistake(
            "all d * d products",
            lambda x: sa.kronecker_power(x, 2),
            "Their inner products are right, but the row is not packed: x_1 x_2 is in it twice.",
        ),
    ),
    hints=(
        "(q . k)**2 holds q_1 q_2 k_1 k_2 twice. How often does the given row count it?",
        "Query and key each give one factor; together they have to make 2.",
        "`count = 1 + (i < j).to(x)`, and the products times `count.sqrt()`.",
    ),
    matters="The counts are what makes packing exact, and packing order n saves up to n!.",
)


def _full_row(x, order, coefficient=lambda n: 1 / math.factorial(n), first=0):
    orders = range(first, order + 1)
    return torch.cat([sa.kronecker_power(x, n) * coefficient(n) for n in orders], dim=-1)


def _order_cases(generator):
    made = []
    for order in (2, 3):
        sizes = draw_sizes(generator, "T d", order=order)
        made.append(Case(label(sizes), (normal(generator, sizes["T"], sizes["d"]), order)))
    return [*made, Case("order 0", (normal(generator, 3, 2), 0))]


ALL_ORDERS = Exercise(
    name="all_orders",
    notebook=NOTEBOOK,
    title="The whole series in one row",
    kind="make",
    minutes=12,
    difficulty=3,
    reference=lambda q, order: sa.polynomial_features(q, sa.taylor(order), "query", packed=False),
    cases=_order_cases,
    mistakes=(
        Mistake(
            "1/n! is missing",
            lambda q, order: _full_row(q, order, lambda n: 1.0),
            "The keys carry no coefficients, so the query's row has to hold the 1/n! of its order.",
        ),
        Mistake(
            "the coefficient on both sides",
            lambda q, order: _full_row(q, order, lambda n: math.factorial(n) ** -0.5),
            "A root of 1/n! would fit if the keys had one too; here the query carries all of it.",
        ),
        Mistake(
            "order 0 is left out",
            lambda q, order: _full_row(q, order, first=1),
            "The row begins with a 1, the power 0 of every query.",
        ),
        Mistake(
            "powers of single entries",
            lambda q, order: torch.cat(
                [q[:, :1] ** 0, *(q**n / math.factorial(n) for n in range(1, order + 1))], dim=-1
            ),
            "q ** n raises each entry by itself; the d ** n products with cross terms are wanted.",
        ),
        Mistake(
            "powers of single entries, at order 0 too",
            lambda q, order: torch.cat(
                [q**n / math.factorial(n) for n in range(order + 1)], dim=-1
            ),
            "q ** n raises each entry by itself: order 0 has one 1, order n has d ** n products.",
        ),
        Mistake(
            "1/n in place of 1/n!",
            lambda q, order: _full_row(q, order, lambda n: 1 / max(n, 1)),
            "The factorial collects all the n up to here; up to order 2 the two are the same.",
        ),
        Mistake(
            "the last order is left out",
            lambda q, order: _full_row(q, order - 1),
            "`order` is the highest power that is kept: `range(order + 1)` goes up to it.",
        ),
    ),
    hints=(
        "Keep one power, multiply it with q once more for each order, collect all of them.",
        "Start from `torch.ones_like(q[:, :1])`; `kronecker_square` shows how to go on from there.",
        "Divide each collected power by `math.factorial(n)`, and join them with `torch.cat`.",
    ),
    matters="One inner product with a key's row of powers is now the whole cut-off series.",
)

EXERCISES = (KRONECKER_SQUARE, PACKED_SQUARE, ALL_ORDERS)
