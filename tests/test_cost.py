"""The cost model: its formulas by hand, its crossovers against the measured ones."""

import csv
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.crossover import FILE, LIMIT, measure
from softattn_lib import Cost, Workload, crossover, explain, parallel_attention, taylor
from softattn_lib.cost import chunked_cost, parallel_cost, recurrent_cost, softmax_cost
from softattn_lib.features import num_features

# 2 rows with 3 query heads each, 10 queries on 20 keys, D = C(4 + 2, 2) = 15 features.
SMALL = Workload(2, 3, 10, 20, d=4, e=5, num_features=15, order=2)
PAIR = 2 * 4 + 2 * 2 + 2 * 6  # score, two powers, sum of e + 1 columns
TOUCH = 15 * (1 + 2 * 6)  # one token: its features, and their products with e + 1 columns
TOKENS = 2 * (20 + 3 * 10)  # keys that write, queries that read
STATE = 2 * 15 * 6 * 4  # bytes in float32
SUMS = TOKENS * 6 * 4


def test_flops_by_hand():
    pairs = 2 * 3 * 10 * 20
    assert parallel_cost(SMALL).flops == pairs * PAIR + 2 * 20 * TOUCH
    assert parallel_cost(replace(SMALL, return_state=False)).flops == pairs * PAIR
    assert parallel_cost(replace(SMALL, has_past=True)).flops == pairs * PAIR + TOKENS * TOUCH
    assert recurrent_cost(SMALL).flops == TOKENS * TOUCH
    assert chunked_cost(SMALL, 5).flops == TOKENS * TOUCH + 2 * 3 * 10 * 5 * PAIR
    assert chunked_cost(SMALL, 500).flops == TOKENS * TOUCH + pairs * PAIR
    assert chunked_cost(replace(SMALL, is_causal=False), 5).flops == TOKENS * TOUCH
    assert softmax_cost(replace(SMALL, is_causal=False)).flops == pairs * 2 * (4 + 5)
    assert softmax_cost(SMALL).flops == pairs * 2 * (4 + 5)  # one block of keys: nothing skipped


def test_bytes_by_hand():
    pairs = 2 * 3 * 10 * 20
    assert parallel_cost(SMALL).bytes == pairs * 13 + SUMS + 2 * 20 * 15 * 4
    assert recurrent_cost(SMALL).bytes == 3 * STATE + SUMS
    tile = 5 * (15 + 2 * 6 + 2 * 4 + 2 * 5) + 2 * 15 * 6  # of one chunk; all 8 are in one tile
    assert chunked_cost(SMALL, 5).bytes == 8 * tile * 4 + SUMS
    for cost in (parallel_cost, recurrent_cost, chunked_cost):
        assert cost(SMALL).state_bytes == STATE
        assert cost(replace(SMALL, itemsize=8)).bytes > 1.7 * cost(SMALL).bytes
    assert softmax_cost(SMALL).state_bytes == 2 * 20 * (4 + 5) * 4  # keys and values
    assert parallel_cost(replace(SMALL, num_features=None)).state_bytes == 2 * 20 * (4 + 5) * 4


def test_the_memory_of_chunks_does_not_grow_with_t_times_d():
    at = [chunked_cost(replace(SMALL, num_queries=t, num_keys=t)).bytes for t in (10**5, 10**6)]
    assert at[1] - at[0] == 2 * (1 + 3) * 9 * 10**5 * 6 * 4  # values and sums alone


def test_the_products_are_those_that_torch_counts():
    """Matrix products are the bulk of the flops, and torch counts them by itself."""
    q, k, v = torch.randn(3, 2, 50, 8)
    work = Workload(2, 1, 50, 50, 8, 8, num_features(8, 3), order=3)
    with FlopCounterMode(display=False) as counter:
        parallel_attention(q, k, v, kernel=taylor(3), normalizer="l2")
    powers, features = 2 * 50 * 50 * 2 * 3, 2 * 50 * num_features(8, 3)
    assert counter.get_total_flops() == parallel_cost(work).flops - powers - features


def test_costs_add_up():
    total = Cost(1, 10, 3, 0.5).then(Cost(2, 4, 5, 0.25))
    assert total == Cost(3, 10, 8, 0.75)  # working memory is used again


def test_a_workload_is_read_from_the_tensors():
    q = torch.empty(2, 6, 10, 4, device="meta", dtype=torch.float64)
    k = torch.empty(2, 2, 20, 4, device="meta", dtype=torch.float64)
    v = torch.empty(2, 2, 20, 5, device="meta", dtype=torch.float64)
    plan = explain(q, k, v, kernel=taylor(2), enable_gqa=True, chunk_size=5)
    work = replace(SMALL, rows=4, itemsize=8)
    assert plan.costs == {
        "parallel": parallel_cost(work),
        "recurrent": recurrent_cost(work),
        "chunked": chunked_cost(work, 5),
    }
    assert plan.softmax == softmax_cost(work)


def test_sequences_cost_what_their_buckets_cost():
    q, k, v = torch.empty(3, 2, 110, 4, device="meta")
    cut = torch.tensor([0, 5, 10, 110])
    work = Workload(2, 1, 100, 100, 4, 4, 15, 2)
    pair = replace(work, rows=4, num_queries=5, num_keys=5)
    plan = explain(q, k, v, kernel=taylor(2), cu_seqlens=cut)
    assert plan.costs["recurrent"] == recurrent_cost(pair).then(recurrent_cost(work))


def test_the_crossover_is_where_the_forms_meet():
    for d, order in ((8, 2), (16, 3), (32, 2)):
        at = crossover(d, order)
        work = Workload(8, 1, at, at, d, d, num_features(d, order), order)
        assert chunked_cost(work).seconds < softmax_cost(work).seconds
        work = replace(work, num_queries=at - 1, num_keys=at - 1)
        assert chunked_cost(work).seconds >= softmax_cost(work).seconds
    assert crossover(16, 2, e=64) != crossover(16, 2)
    assert crossover(8, 1, heads=1) > crossover(8, 1, heads=64)
    with pytest.raises(ValueError, match="d must be an integer >= 1, got 0"):
        crossover(0, 2)
    with pytest.raises(ValueError, match="order"):
        crossover(8, -1)


def measured():
    with FILE.open() as file:
        return [{n: x and int(x) for n, x in row.items() if n not in ("machine", "torch")}
                for row in csv.DictReader(file)]  # fmt: skip


@pytest.mark.parametrize("row", measured(), ids=lambda row: f"d{row['d']}-order{row['order']}")
def test_the_prediction_is_within_twice_the_measured_crossover(row):
    predicted = crossover(row["d"], row["order"], heads=row["heads"])
    if row["tokens"]:
        assert row["tokens"] / 2 <= predicted <= 2 * row["tokens"]
    else:
        assert predicted > LIMIT / 2


def test_all_crossovers_were_measured():
    assert [(row["d"], row["order"]) for row in measured()] == [
        (d, order) for d in (8, 16, 32, 64) for order in (1, 2, 3, 4)
    ]


def test_a_crossover_beyond_the_limit_is_none():
    assert measure(16, 3, seconds=0.0, limit=32) is None


@pytest.mark.parametrize("arguments", [{"heads": 0}, {"e": -5}, {"d": 4.5}, {"d": True}])
def test_illegal_sizes_of_a_crossover_are_named(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"{name} must be an integer >= 1"):
        crossover(**{"d": 4, "order": 2, **arguments})
