"""Exercises to notebook 02: the series cut off, its shares, the order that a radius needs."""

import math

import softattn_lib as sa

from .checker import Case, Exercise, Mistake
from .sizes import draw_sizes, label, normal

NOTEBOOK = "02_exp_as_a_series"


def _score_cases(generator):
    made = []
    for _ in range(3):
        sizes = draw_sizes(generator, "T_q T_k order")
        scores = normal(generator, sizes["T_q"], sizes["T_k"])
        made.append(Case(label(sizes), (scores, sizes["order"])))
    return [*made, Case("scores near -4, order 12", (normal(generator, 3) - 4, 12))]


def _without_building(x, order):
    total = 1 + 0 * x
    for n in range(1, order + 1):
        total = total + x / n
    return total


def _factorial_each_time(x, order):
    term = total = 1 + 0 * x
    for n in range(1, order + 1):
        term = term * x / math.factorial(n)
        total = total + term
    return total


TRUNCATED_EXP = Exercise(
    name="truncated_exp",
    notebook=NOTEBOOK,
    title="The series, term by term",
    kind="fill in",
    minutes=5,
    difficulty=1,
    reference=lambda x, order: sa.taylor(order)(x),
    cases=_score_cases,
    mistakes=(
        Mistake(
            "1/n! is missing",
            lambda x, order: sum(x**n for n in range(order + 1)),
            "Without it the powers grow for ever; each term is the one before times x / n.",
        ),
        Mistake(
            "divided by n, not by n!",
            lambda x, order: 1 + sum(x**n / n for n in range(1, order + 1)),
            "The factorial collects all the n up to here: keep the term, and divide it once more.",
        ),
        Mistake(
            "the terms do not build on each other",
            _without_building,
            "Every term here is x / n; it should be the term before, times x / n.",
        ),
        Mistake(
            "the term before divided by n!",
            _factorial_each_time,
            "The term before has (n - 1)! below it already; a further n makes it n!.",
        ),
        Mistake(
            "the last order is left out",
            lambda x, order: sa.taylor(order - 1)(x),
            "`order` is the highest power that is kept, so the loop adds it too.",
        ),
        Mistake(
            "order 0 is left out",
            lambda x, order: sa.taylor(order)(x) - 1,
            "x ** 0 is 1 for every score, and the sum begins with it.",
        ),
    ),
    hints=(
        "What do you multiply x**2 / 2! with to get x**3 / 3!?",
        "With x / 3. So a term follows from the one before, and no factorial is needed.",
        "`term = term * x / n`, then `total = total + term`.",
    ),
    matters="A cut-off series is a polynomial of the score, and those have a recurrent form.",
)


def _shares(weights):
    return weights / weights.sum(-1, keepdim=True)


def _share_cases(generator):
    return [
        Case(label({"T": T, "order": order}), (2 * normal(generator, T), order))
        for T, order in ((5, 2), (3, 4), (7, 6))
    ]


SERIES_SHARES = Exercise(
    name="series_shares",
    notebook=NOTEBOOK,
    title="From softmax to its series",
    kind="modify",
    minutes=8,
    difficulty=2,
    reference=lambda scores, order: _shares(sa.taylor(order)(scores)),
    cases=_share_cases,
    start=lambda scores, order: scores.softmax(-1),
    mistakes=(
        Mistake(
            "the maximum subtracted in a truncated series",
            lambda scores, order: _shares(sa.taylor(order)(scores - scores.max())),
            "For exp a shift is a common factor; a polynomial of x - m is no multiple of P(x).",
        ),
        Mistake(
            "1/n! is missing",
            lambda scores, order: _shares(sum(scores**n for n in range(order + 1))),
            "Order n of exp comes with the coefficient 1/n!.",
        ),
        Mistake(
            "the last order is left out",
            lambda scores, order: _shares(sa.taylor(order - 1)(scores)),
            "`range(order)` ends before the order; the orders go from 0 to N, both included.",
        ),
        Mistake(
            "divided by the sum of exp",
            lambda scores, order: sa.taylor(order)(scores) / scores.exp().sum(),
            "These do not add up to 1: what is missing above has to be missing below too.",
        ),
        Mistake(
            "the weights, not divided",
            lambda scores, order: sa.taylor(order)(scores),
            "Shares add up to 1; divide by the sum of the weights.",
        ),
    ),
    hints=(
        "One line has to go, and one has to be another. Which line is only right for exp?",
        "The shift by the maximum goes. The weights become a sum over n = 0, ..., order.",
        "`weights = sum(scores**n / math.factorial(n) for n in range(order + 1))`.",
    ),
    matters="The cure for overflow in softmax is a poison for its series: it moves the scores away "
    "from 0, where the series is good.",
)


def _first(orders, far_off, tolerance):
    return next(order for order in orders if far_off(order) <= tolerance)


def _relative(order, x):
    return abs(sa.taylor(order)(x) / math.exp(x) - 1)


# The last one is the radius at which order 0 is enough.
RADII = ((1.0, 0.1), (2.0, 0.01), (3.0, 0.05), (5.0, 0.1), (8.0, 0.001), (0.05, 0.1))

ORDER_FOR_RADIUS = Exercise(
    name="order_for_radius",
    notebook=NOTEBOOK,
    title="How many orders",
    kind="make",
    minutes=10,
    difficulty=3,
    reference=lambda radius, tolerance: sa.order_for_tolerance(tolerance, radius),
    cases=lambda generator: [
        Case(f"radius {radius}, tolerance {tolerance}", (radius, tolerance))
        for radius, tolerance in RADII
    ],
    mistakes=(
        Mistake(
            "odd orders are taken too",
            lambda radius, tol: _first(range(99), lambda n: _relative(n, -radius), tol),
            "Odd orders have negative weights, so only even ones are asked for.",
        ),
        Mistake(
            "order 0 is not tried",
            lambda radius, tol: _first(range(2, 99, 2), lambda n: _relative(n, -radius), tol),
            "0 is even too, and for scores close to 0 the weight 1 can be good enough.",
        ),
        Mistake(
            "measured at +R",
            lambda radius, tol: _first(range(0, 99, 2), lambda n: _relative(n, radius), tol),
            "Negative scores are the hard ones: there the terms cancel and little remains.",
        ),
        Mistake(
            "the absolute error",
            lambda radius, tol: _first(
                range(0, 99, 2), lambda n: abs(sa.taylor(n)(-radius) - math.exp(-radius)), tol
            ),
            "A gap of 0.05 is nothing at weight 20 and all there is at weight 0.05: divide by exp.",
        ),
        Mistake(
            "the first dropped term, relative to 1",
            lambda radius, tol: _first(
                range(0, 99, 2), lambda n: radius ** (n + 1) / math.factorial(n + 1), tol
            ),
            "That bounds the absolute error at negative scores; the weight there is far below 1.",
        ),
    ),
    hints=(
        "Where on -R <= x <= R is an even order worst, compared with exp(x)?",
        "At -R. Start at order 0 and go up in steps of 2 until the error there is small enough.",
        "The error is `abs(taylor(order)(-radius) / math.exp(-radius) - 1)`; a `while` does it.",
    ),
    matters="The order grows with the size of the scores, and only slowly with the accuracy.",
)

EXERCISES = (TRUNCATED_EXP, SERIES_SHARES, ORDER_FOR_RADIUS)
