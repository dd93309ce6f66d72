"""Associative recall: the sequences, the training, the accuracy by variant."""

import math
import warnings

import pytest
import torch

from softattn_lib import VARIANTS, SignedWeightsWarning, VariantUnavailableError
from softattn_lib.tasks.recall import RecallModel, RecallSettings, recall, recall_batch

TINY = {"pairs": 3, "symbols": 5, "heads": 2, "head_dim": 4, "batch_size": 4, "steps": 3}
AVAILABLE = [name for name, entry in VARIANTS.items() if not entry.unavailable]
ORDERS = ["taylor_1", "taylor_2", "taylor_3", "taylor_4", "taylor_10", "power_2", "power_4"]


def test_every_query_asks_for_a_key_of_its_sequence_and_no_key_comes_twice():
    settings = RecallSettings(pairs=4, symbols=9, batch_size=50)
    keys, values, targets = recall_batch(settings, torch.Generator().manual_seed(1))
    assert keys.shape == values.shape == (50, 8)
    assert (values[:, 4:] == 9).all() and (values[:, :4] < 9).all()
    for row in range(50):
        pairs = dict(zip(keys[row, :4].tolist(), values[row, :4].tolist(), strict=True))
        assert len(pairs) == 4
        assert sorted(keys[row, 4:].tolist()) == sorted(pairs)
        assert [pairs[key] for key in keys[row, 4:].tolist()] == targets[row].tolist()
    assert (keys[:, :4] != keys[:, 4:]).any()  # the queries come in another order


@pytest.mark.parametrize("name", [*AVAILABLE, *ORDERS])
def test_every_variant_trains(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SignedWeightsWarning)
        result = recall(name, **TINY)
    assert len(result.losses) == 3
    assert all(map(math.isfinite, [*result.losses, result.loss]))
    assert result.row()["status"] == "finished"


def test_a_variant_that_cannot_be_built_or_is_unknown_is_refused():
    with pytest.raises(VariantUnavailableError, match="linear_mamba"):
        recall("linear_mamba", **TINY)
    with pytest.raises(KeyError, match="softmaxx"):
        recall("softmaxx", **TINY)


def test_a_run_follows_from_its_seed_alone():
    torch.manual_seed(5)
    first, drawn = recall("taylor_2", seed=3, **TINY), torch.rand(1)
    torch.manual_seed(5)
    assert torch.rand(1) == drawn  # the global generator was left alone
    assert recall("taylor_2", seed=3, **TINY).losses == first.losses
    assert recall("taylor_2", seed=4, **TINY).losses != first.losses


def test_variants_start_from_the_same_weights_and_see_the_same_sequences():
    first = {name: recall(name, **TINY) for name in ["softmax", "taylor_10", "gate"]}
    assert first["softmax"].losses[0] == pytest.approx(first["taylor_10"].losses[0], abs=1e-5)
    assert first["gate"].losses[0] != first["softmax"].losses[0]
    models = {}
    for name in ["softmax", "gate"]:
        torch.manual_seed(0)
        models[name] = RecallModel(name, RecallSettings()).state_dict()
    for name, weight in models["softmax"].items():
        assert torch.equal(weight, models["gate"][name]), name


@pytest.mark.slow
def test_softmax_learns_what_the_first_order_cannot():
    task = {"pairs": 6, "symbols": 12, "steps": 250, "batch_size": 32}
    assert recall("softmax", **task).accuracy > 0.95
    with pytest.warns(SignedWeightsWarning):
        assert recall("taylor_1", **task).accuracy < 0.6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lowest", "highest"),
    [("softmax", 0.99, 1), ("taylor_2", 0.95, 1), ("linear_relu", 0.4, 0.9), ("taylor_1", 0, 0.3)],
)
def test_accuracy_by_variant(name, lowest, highest):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SignedWeightsWarning)
        assert lowest <= recall(name).accuracy <= highest


def test_the_model_cannot_see_the_future():
    settings = RecallSettings(**TINY)
    model = RecallModel("softmax", settings)
    keys, values, _ = recall_batch(settings, torch.Generator().manual_seed(0))
    before = model(keys, values)
    keys[:, -1] = (keys[:, -1] + 1) % settings.symbols
    after = model(keys, values)
    assert torch.equal(after[:, :-1], before[:, :-1])
    assert not torch.equal(after[:, -1], before[:, -1])


def test_a_run_that_diverges_says_so():
    result = recall("no_denominator", learning_rate=1e8, **TINY | {"steps": 50})
    assert math.isnan(result.accuracy) and math.isnan(result.loss)
    assert result.row()["status"] == "diverged"
    assert len(result.losses) < 50


def test_progress_is_reported_step_by_step():
    seen = []
    result = recall("softmax", on_step=lambda *news: seen.append(news), **TINY)
    assert seen == list(enumerate(result.losses, start=1))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"pairs": 6, "symbols": 5}, "pairs is 6; there are only 5 symbols"),
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number >= 1, got 2.5"),
        ({"learning_rate": -1.0}, "learning_rate must be a number >= 0, got -1.0"),
    ],
)
def test_illegal_settings_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        recall("softmax", **settings)


def test_the_row_of_a_table_names_run_code_and_machine():
    row = recall("softmax", seed=7, **TINY).row()
    assert row["preset"].startswith("recall pairs=3 symbols=5 head_dim=4 batch_size=4 steps=3")
    assert (row["variant"], row["seed"], row["steps"]) == ("softmax", 7, 3)
    assert row["commit"] and f"torch {torch.__version__}" in row["machine"]
