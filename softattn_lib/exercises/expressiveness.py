"""Exercises to notebook 09: read pairs back, rank across the middle, overlap, what is explained."""

import math

import torch
import torch.nn.functional as F

import softattn_lib as sa
from softattn_lib.tasks import capacity

from .checker import Case, Exercise, Mistake
from .sizes import label, normal

NOTEBOOK = "09_expressiveness"


def _reads(keys, values, n):
    return (keys @ keys.T) ** n @ values


def _without_own(keys, values, n):
    weights = (keys @ keys.T) ** n
    return ((weights - weights.diag().diag()) @ values).argmax(-1)


def _pair_cases(generator):
    made = []
    for n, (P, d, symbols) in ((2, (20, 4, 6)), (3, (40, 3, 7)), (2, (30, 5, 4))):
        keys = F.normalize(normal(generator, P, d), dim=-1)
        values = F.one_hot(torch.randint(symbols, (P,), generator=generator), symbols).double()
        text = label({"P": P, "d": d, "symbols": symbols})
        made.append(Case(f"{text}, order {n}", (keys, values, n)))
    return made


READ_BACK = Exercise(
    name="read_back",
    notebook=NOTEBOOK,
    title="Write all pairs, ask for each",
    kind="fill in",
    minutes=6,
    difficulty=1,
    reference=lambda keys, values, n: _reads(keys, values, n).argmax(-1),
    cases=_pair_cases,
    mistakes=(
        Mistake(
            "the largest over the pairs",
            lambda keys, values, n: _reads(keys, values, n).argmax(0),
            "Each key names one symbol; the symbols are the last axis.",
        ),
        Mistake(
            "the reads, not the answers",
            _reads,
            "The answer is the number of the symbol with the largest read.",
        ),
        Mistake(
            "the largest size, without the sign",
            lambda keys, values, n: _reads(keys, values, n).abs().argmax(-1),
            "The own pair reads +1; a read far below 0 is the noise of the others.",
        ),
        Mistake(
            "powers of single entries",
            lambda keys, values, n: (keys**n @ (keys**n).T @ values).argmax(-1),
            "keys ** n has no cross terms, and far fewer rows than the Kronecker power.",
        ),
        Mistake(
            "order 1 whatever the order",
            lambda keys, values, n: _reads(keys, values, 1).argmax(-1),
            "Keys are written and asked for by their power of order n.",
        ),
        Mistake(
            "the own pair is left out",
            _without_own,
            "Every pair is in the state, also the one that is asked for; it should win.",
        ),
    ),
    hints=(
        "Write: a sum over the pairs of an outer product, power times value.",
        "`powers.T @ values` is that state. How does a key read it?",
        "`(powers @ state).argmax(-1)`.",
    ),
    matters="The state keeps d ** n rows for any number of pairs, so in the end answers go wrong.",
)


def _rank(matrix):
    return torch.linalg.matrix_rank(matrix, rtol=1e-5).item()


def _weight_cases(generator):
    made = []
    for T, rows in ((12, 3), (10, 2)):
        weights = normal(generator, T, rows) @ normal(generator, rows, T)
        made.append(Case(label({"T": T, "rows": rows}), (weights,)))
    weights = normal(generator, 8, 8)
    weights[0] = 0
    made.append(Case("T = 8, any weights, the first row 0", (weights,)))
    # Here each block that lies near the right one has a rank of its own.
    weights = normal(generator, 8, 8)
    weights[4:, :4] = torch.outer(normal(generator, 4), normal(generator, 4))
    weights[:3], weights[-1, -1] = 0, 0
    return [*made, Case("T = 8, of rank 1 where later queries meet earlier keys", (weights,))]


STATE_RANK = Exercise(
    name="state_rank",
    notebook=NOTEBOOK,
    title="What crosses the middle",
    kind="modify",
    minutes=7,
    difficulty=2,
    reference=lambda weights: _rank(weights[len(weights) // 2 :, : len(weights) // 2]),
    cases=_weight_cases,
    start=lambda weights: _rank(weights.tril()),
    mistakes=(
        Mistake(
            "earlier queries on later keys",
            lambda weights: _rank(weights.tril()[: len(weights) // 2, len(weights) // 2 :]),
            "All of that is masked, so its rank is 0; rows are queries, columns are keys.",
        ),
        Mistake(
            "the first half on itself",
            lambda weights: _rank(weights.tril()[: len(weights) // 2, : len(weights) // 2]),
            "This block is a triangle with its zeros again; nothing crosses the middle in it.",
        ),
        Mistake(
            "the whole matrix without the mask",
            _rank,
            "Without a state to limit it, that rank goes up to T; only a half of the keys crosses.",
        ),
        Mistake(
            "later queries on all keys",
            lambda weights: _rank(weights.tril()[len(weights) // 2 :]),
            "The later keys bring the triangle of zeros back; keep the earlier ones.",
        ),
        Mistake(
            "all queries on the earlier keys",
            lambda weights: _rank(weights.tril()[:, : len(weights) // 2]),
            "Earlier queries need nothing that crosses; keep the later ones.",
        ),
        Mistake(
            "later queries on later keys",
            lambda weights: _rank(weights.tril()[len(weights) // 2 :, len(weights) // 2 :]),
            "These keys come after the middle and need no state; keep the earlier ones.",
        ),
        Mistake(
            "one query, or one key, too many",
            lambda weights: _rank(weights.tril()[len(weights) // 2 - 1 :, : len(weights) // 2]),
            "Both halves meet at T / 2, counted from 0: queries from there on, keys before it.",
        ),
    ),
    hints=(
        "The zeros of the mask raise the rank. Which block of the matrix has none?",
        "Rows of the later half, columns of the earlier half.",
        "`crossing = causal[half:, :half]`.",
    ),
    matters="This block is all that the state carries from the first half to the second.",
)


def _product(n, d, first=1, odd=lambda j: 2 * j + 1, even=lambda j: 2 * j):
    return math.prod(odd(j) / (d + even(j)) for j in range(first - 1, n))


EXPECTED_OVERLAP = Exercise(
    name="expected_overlap",
    notebook=NOTEBOOK,
    title="How much the others disturb",
    kind="make",
    minutes=8,
    difficulty=2,
    reference=lambda n, d: capacity.interference(sa.Polynomial((0,) * n + (1,)), d),
    cases=lambda generator: [
        Case(f"order {n}, d = {d}", (n, d)) for n, d in ((1, 4), (2, 8), (3, 5), (4, 16))
    ],
    mistakes=(
        Mistake(
            "d to the power n below",
            lambda n, d: math.prod(range(1, 2 * n, 2)) / d**n,
            "That is the limit for large d; the factors below are d, d + 2, d + 4, ...",
        ),
        Mistake(
            "order 1 to the power n",
            lambda n, d: d**-n,
            "The mean of a power is not the power of the mean; above stand 1, 3, 5, ...",
        ),
        Mistake(
            "the odd numbers above are left out",
            lambda n, d: _product(n, d, odd=lambda j: 1),
            "Above stand 1, 3, 5, ...: a random direction is at times close, and powers show it.",
        ),
        Mistake(
            "the factors below grow by 1",
            lambda n, d: _product(n, d, even=lambda j: j),
            "Below stand d, d + 2, d + 4, ..., in steps of 2.",
        ),
        Mistake(
            "one factor too many",
            lambda n, d: _product(n + 1, d),
            "Order n has n factors above and n below; for order 1 it is 1/d.",
        ),
        Mistake(
            "one factor too few",
            lambda n, d: _product(n - 1, d),
            "Order n has n factors above and n below. (A `range` leaves out its end.)",
        ),
        Mistake(
            "a factorial above",
            lambda n, d: _product(n, d, odd=lambda j: j + 1),
            "Above stand the odd numbers alone, 1 * 3 * 5 * ...",
        ),
    ),
    hints=(
        "Equation 9.2 is a product of n fractions. What are the first two?",
        "1/d and 3/(d + 2); the next has 5 above and d + 4 below.",
        "The fraction number j = 0, ..., n - 1 is `(2 * j + 1) / (d + 2 * j)`; `math.prod` helps.",
    ),
    matters="One over this number is about how many pairs a state of order n can hold.",
)


def _residual(features, target):
    solution = torch.linalg.lstsq(features, target[:, None]).solution[:, 0]
    return target - features @ solution


def _fit_cases(generator):
    made = []
    for P, D in ((23, 4), (31, 6), (17, 3)):
        features, noise = normal(generator, P, D), normal(generator, P)
        target = features @ normal(generator, D) + noise + 2
        made.append(Case(label({"P": P, "D": D}), (features, target)))
    return made


UNEXPLAINED = Exercise(
    name="unexplained",
    notebook=NOTEBOOK,
    title="What no mixture of features gives",
    kind="make",
    minutes=10,
    difficulty=3,
    reference=lambda features, target: (_residual(features, target).var() / target.var()).item(),
    cases=_fit_cases,
    mistakes=(
        Mistake(
            "the share that is explained",
            lambda features, target: 1 - (_residual(features, target).var() / target.var()).item(),
            "What remains after the fit is asked for: 0 means that the features give everything.",
        ),
        Mistake(
            "spreads in place of variances",
            lambda features, target: (_residual(features, target).std() / target.std()).item(),
            "The share of the variance is asked for; a ratio of spreads is its root.",
        ),
        Mistake(
            "not divided by the target's variance",
            lambda features, target: _residual(features, target).var().item(),
            "A share has no unit: it should not change if the target is measured in another one.",
        ),
        Mistake(
            "mean squares in place of variances",
            lambda features, target: (
                _residual(features, target).square().mean() / target.square().mean()
            ).item(),
            "A mean square also holds the mean; a variance is about what lies around it.",
        ),
        Mistake(
            "the variance of the fit",
            lambda features, target: (
                (target - _residual(features, target)).var() / target.var()
            ).item(),
            "That is what the features give; the rest, target minus fit, is asked for.",
        ),
        Mistake(
            "a fit with a second axis",
            lambda features, target: (
                (target - (target - _residual(features, target))[:, None]).var() / target.var()
            ).item(),
            "(P,) minus (P, 1) has P x P entries: take column 0 of the solution.",
        ),
        Mistake(
            "a constant added to the features",
            lambda features, target: (
                _residual(torch.cat([features, torch.ones_like(target[:, None])], -1), target).var()
                / target.var()
            ).item(),
            "The features as they are: a state without order 0 has no row of ones.",
        ),
    ),
    hints=(
        "Fit first: which mixture of the features is closest to the target?",
        "`torch.linalg.lstsq(features, target[:, None]).solution` has its coefficients, (D, 1).",
        "The variance of `target - features @ solution[:, 0]` over that of the target: `.item()`.",
    ),
    matters="It shows which features are missing where a count of features shows nothing.",
)

EXERCISES = (READ_BACK, STATE_RANK, EXPECTED_OVERLAP, UNEXPLAINED)
