"""Capacity without training: the pairs, the read, the measured and the predicted accuracy."""

import math

import pytest
import torch

from softattn_lib import (
    ClampedKernel,
    Polynomial,
    PolynomialKernel,
    ReluKernel,
    recurrent_attention,
    taylor,
)
from softattn_lib.kernels import as_kernel
from softattn_lib.tasks.capacity import (
    capacity,
    interference,
    random_pairs,
    recall_accuracy,
    recalled,
)


def power(n):
    return Polynomial((0,) * n + (1,))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_keys_lie_on_the_sphere_and_values_are_symbols():
    keys, values = random_pairs(7, 5, symbols=11, length=3.0, sets=4, generator=seeded())
    assert keys.shape == (4, 7, 5) and values.shape == (4, 7, 11)
    assert keys.dtype == values.dtype == torch.float64
    torch.testing.assert_close(keys.norm(dim=-1), torch.full((4, 7), 3.0, dtype=torch.float64))
    assert torch.equal(values.sum(-1), torch.ones(4, 7)) and set(values.unique().tolist()) == {0, 1}


def test_keys_are_uniform_on_the_sphere_and_symbols_equally_frequent():
    keys, values = random_pairs(20_000, 3, symbols=4, generator=seeded())
    second_moment = keys[0].T @ keys[0] / 20_000
    torch.testing.assert_close(second_moment, torch.eye(3).double() / 3, rtol=0, atol=0.01)
    torch.testing.assert_close(keys[0].mean(0), torch.zeros(3).double(), rtol=0, atol=0.02)
    torch.testing.assert_close(
        values[0].mean(0), torch.full((4,), 0.25).double(), rtol=0, atol=0.02
    )


def test_pairs_follow_from_the_generator_alone():
    torch.manual_seed(5)
    first, drawn = random_pairs(4, 3, generator=seeded(1)), torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == drawn  # the global generator was left alone
    for one, same in zip(first, random_pairs(4, 3, generator=seeded(1)), strict=True):
        assert torch.equal(one, same)
    assert not torch.equal(first[0], random_pairs(4, 3, generator=seeded(2))[0])


@pytest.mark.parametrize("kernel", [power(1), power(3), power(4), taylor(2), "relu"])
def test_what_is_recalled_is_what_the_state_gives(kernel):
    keys, values = random_pairs(30, 4, symbols=6, sets=2, generator=seeded())
    _, state = recurrent_attention(  # writes; below, the state is all that is left
        keys, keys, values, kernel=kernel, normalizer="none", scale=1.0, is_causal=False
    )
    read, _ = recurrent_attention(
        keys[..., :9, :],
        keys[..., :0, :],
        values[..., :0, :],
        kernel=kernel,
        normalizer="none",
        scale=1.0,
        is_causal=False,
        initial_state=state,
    )
    expected = read.argmax(-1) == values[..., :9, :].argmax(-1)
    assert torch.equal(recalled(kernel, keys, values, queries=9), expected)
    assert expected.shape == (2, 9) and expected.dtype == torch.bool


def test_by_hand():
    """Three keys of width 2; the third is answered wrongly by order 1, rightly by order 20."""
    keys = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]]).double()
    values = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
    # asked with the third: 0.6 + 0.96 for symbol 0, 1 for symbol 1
    assert recalled(power(1), keys, values).tolist() == [True, True, False]
    # 0.6^20 + 0.96^20 = 0.44
    assert recalled(power(20), keys, values).tolist() == [True, True, True]


def test_a_denominator_would_change_nothing():
    keys, values = random_pairs(60, 4, generator=seeded())
    read, _ = recurrent_attention(keys, keys, values, kernel=power(2), is_causal=False, scale=1.0)
    expected = read.argmax(-1) == values.argmax(-1)
    assert torch.equal(recalled(power(2), keys, values), expected)
    assert 0 < expected.double().mean() < 1


def test_accuracy_goes_from_always_right_to_a_guess():
    assert recall_accuracy("exp", 8, 1, sets=20, generator=seeded()) == 1
    crowded = recall_accuracy("identity", 4, 5000, symbols=5, queries=2000, generator=seeded())
    assert crowded == pytest.approx(0.2, abs=0.04)


@pytest.mark.parametrize("d", [2, 3, 8, 32])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 6])
def test_interference_of_a_power_is_the_closed_form(d, n):
    exact = math.prod((2 * j + 1) / (d + 2 * j) for j in range(n))
    assert interference(power(n), d, length=1.7) == pytest.approx(exact, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kernel",
    ["exp", "identity", "cosine", taylor(3), ClampedKernel(PolynomialKernel(taylor(2)), 2.0)],
)
def test_interference_is_the_mean_over_random_keys(kernel):
    keys, _ = random_pairs(3000, 5, length=1.5, generator=seeded())
    kernel = as_kernel(kernel)
    weights = kernel.weight(kernel.scores(keys, keys, 1.0))[0]
    off = weights[~torch.eye(3000, dtype=torch.bool)] / weights[0, 0]
    # the cosine kernel ignores the length
    length = 1.0 if kernel == as_kernel("cosine") else 1.5
    assert interference(kernel, 5, length=length) == pytest.approx(
        off.square().mean().item(), rel=0.02
    )


def test_a_weight_that_is_no_function_of_the_angle_is_refused():
    with pytest.raises(ValueError, match=r"ReluKernel\(\) must give weights that depend on"):
        interference(ReluKernel(), 4)


@pytest.mark.parametrize(("n", "d"), [(1, 8), (1, 32), (2, 8), (2, 16), (3, 8), (4, 8)])
def test_capacity_goes_with_the_inverse_of_the_interference(n, d):
    """Over orders and widths it varies 20 times, and the product of the two about twice."""
    product = capacity(power(n), d, generator=seeded()) * interference(power(n), d)
    assert 1 < product < 3


def test_capacity_is_where_the_accuracy_crosses():
    found = capacity(power(2), 8, accuracy=0.8, questions=4000, generator=seeded())
    sets = round(8000 / found)
    measured = recall_accuracy(power(2), 8, round(found), sets=sets, generator=seeded(1))
    assert measured == pytest.approx(0.8, abs=0.03)


def test_capacity_interpolates_between_doublings(monkeypatch):
    shares = {1: 1.0, 2: 1.0, 4: 0.95, 8: 0.85}
    monkeypatch.setattr(
        "softattn_lib.tasks.capacity.recall_accuracy", lambda kernel, d, pairs, **_: shares[pairs]
    )
    assert capacity("exp", 4, generator=seeded()) == pytest.approx(4 * 2**0.5)


def test_capacity_beyond_the_most_is_infinite():
    assert capacity(power(6), 32, questions=50, most=64, generator=seeded()) == math.inf


def test_higher_orders_and_wider_keys_hold_more():
    found = {(n, d): capacity(power(n), d, generator=seeded()) for n in (1, 2) for d in (4, 8)}
    assert found[1, 4] < found[1, 8] < found[2, 8] and found[1, 4] < found[2, 4] < found[2, 8]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"pairs": 0}, "pairs must be a whole number >= 1, got 0"),
        ({"pairs": 2.5}, "pairs must be a whole number >= 1, got 2.5"),
        ({"d": 1}, "d must be a whole number >= 2, got 1"),
        ({"symbols": 1}, "symbols must be a whole number >= 2, got 1"),
        ({"length": 0.0}, "length must be a number > 0, got 0.0"),
        ({"length": math.nan}, "length must be a number > 0, got nan"),
    ],
)
def test_illegal_arguments_are_named(changed, named):
    arguments = {"pairs": 3, "d": 4} | changed
    with pytest.raises(ValueError, match=named):
        recall_accuracy("exp", generator=seeded(), **arguments)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"accuracy": 1.5}, "accuracy must be above 0 and at most 1, got 1.5"),
        ({"accuracy": 0.0}, "accuracy must be above 0 and at most 1, got 0.0"),
        ({"accuracy": math.nan}, "accuracy must be above 0 and at most 1, got nan"),
        ({"questions": 0}, "questions must be a whole number >= 1, got 0"),
        ({"questions": 2.5}, "questions must be a whole number >= 1, got 2.5"),
        ({"most": 0}, "most must be a whole number >= 1, got 0"),
    ],
)
def test_illegal_arguments_of_capacity_are_named(changed, named):
    with pytest.raises(ValueError, match=named):
        capacity("exp", 4, generator=seeded(), **changed)


def test_a_negative_number_of_queries_is_refused():
    keys, values = random_pairs(3, 4, generator=seeded())
    with pytest.raises(ValueError, match="queries must be a whole number >= 1, got -1"):
        recalled("exp", keys, values, queries=-1)


@pytest.mark.parametrize(
    ("kernel", "options", "named"),
    [
        ("exp", {"d": 1001}, "d must be at most 1000, got 1001"),
        ("exp", {"d": 4, "length": 40.0}, "length 40.0 has the weight inf for itself"),
        (Polynomial((0,)), {"d": 4}, "length 1.0 has the weight 0.0 for itself"),
    ],
)
def test_interference_that_cannot_be_computed_is_refused(kernel, options, named):
    with pytest.raises(ValueError, match=named):
        interference(kernel, **options)


def test_interference_is_right_up_to_the_widest_keys():
    assert interference(power(1), 1000) == pytest.approx(1e-3, rel=1e-6)


def test_sets_have_to_be_counted():
    with pytest.raises(ValueError, match="sets must be a whole number >= 1, got 0"):
        random_pairs(2, 4, sets=0, generator=seeded())
