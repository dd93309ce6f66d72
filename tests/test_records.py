"""Summaries over seeds: means and ranges, runs that diverged, tables that do not fit."""

import math

import pytest

from softattn_lib.tasks.records import Summary, summarize

ROWS = [
    {"variant": "softmax", "seed": "0", "loss": "1.5"},
    {"variant": "gate", "seed": "0", "loss": "3.0"},
    {"variant": "softmax", "seed": "1", "loss": "1.75"},
    {"variant": "gate", "seed": "1", "loss": "nan"},
    {"variant": "softmax", "seed": "2", "loss": "1.25"},
]


def test_mean_and_range_by_variant_in_the_order_of_the_rows():
    summaries = summarize(ROWS, "loss")
    assert list(summaries) == ["softmax", "gate"]
    assert summaries["softmax"] == Summary(1.5, 1.25, 1.75, (1.5, 1.75, 1.25))


@pytest.mark.parametrize("values", [(3.0, math.nan), (math.nan, 3.0)])
def test_one_run_that_diverged_shows_in_every_number(values):
    summary = Summary.of(values)
    assert math.isnan(summary.mean) and math.isnan(summary.lowest) and math.isnan(summary.highest)
    assert summary.values is values
    assert not summary.overlaps(summary) and not summary.overlaps(Summary.of([1.0, 4.0]))


def test_any_column_can_tell_the_groups_apart():
    by_seed = summarize(ROWS[:3], "loss", by="seed")
    assert {seed: summary.mean for seed, summary in by_seed.items()} == {"0": 2.25, "1": 1.75}


def test_ranges_that_touch_overlap_and_others_do_not():
    low, high = Summary.of([1.0, 2.0]), Summary.of([2.0, 3.0])
    assert low.overlaps(high) and high.overlaps(low)
    far = Summary.of([3.5])
    assert not high.overlaps(far) and not far.overlaps(high)


def test_tables_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="rows is empty"):
        summarize([], "loss")
    with pytest.raises(KeyError, match="no column 'los'; the table has variant, seed, loss"):
        summarize(ROWS, "los")
    with pytest.raises(KeyError, match="no column 'text'"):
        summarize(ROWS, "loss", by="text")


def test_a_mean_lies_within_the_range():
    equal = Summary.of([0.1, 0.1, 0.1])
    assert equal.lowest == equal.mean == equal.highest
