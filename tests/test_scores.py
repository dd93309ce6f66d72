"""The read-outs of scores against loops and formulas, and what they say of a series."""

import math

import pytest
import torch
import transformers

from softattn_lib import parallel_attention, softmax_attention, taylor
from softattn_lib.llama import (
    CapturedAttention,
    LayerAttention,
    capture_attention,
    restore_attention,
    swap_attention,
)
from softattn_lib.scores import (
    all_scores,
    batch_scores,
    center_keys,
    misplaced_weight,
    next_token_loss,
    order_sizes,
    rank_heads,
    score_range,
    series_weights,
    smallest_order,
)

LAYERS, HEADS, KEY_HEADS, T, D = (2, 5), 6, 2, 7, 4
VISIBLE = torch.ones(T, T, dtype=torch.bool).tril()


def capture(seed=0, size=1.0):
    generator = torch.Generator().manual_seed(seed)
    layers = {}
    for index in LAYERS:
        query, key, value = (
            torch.randn(heads, T, D, generator=generator) * size
            for heads in (HEADS, KEY_HEADS, KEY_HEADS)
        )
        layers[index] = LayerAttention(index, query, key, value, D**-0.5, VISIBLE)
    return CapturedAttention(tuple("abcdefg"), layers)


@pytest.fixture
def captured():
    return capture()


@pytest.fixture
def scores(captured):
    return all_scores(captured)


def test_all_scores_stacks_the_layers_in_order(captured, scores):
    assert scores.shape == (2, HEADS, T, T) and scores.dtype == torch.float64
    for row, layer in enumerate(captured.layers.values()):
        assert torch.equal(scores[row], layer.scores().double())


def test_ranges_are_those_of_the_visible_pairs(scores):
    lowest, highest = score_range(scores)
    for row in range(2):
        for head in range(HEADS):
            seen = scores[row, head][VISIBLE]
            assert lowest[row, head] == seen.min() and highest[row, head] == seen.max()


def test_ranges_of_scores_that_are_all_positive_or_all_negative(scores):
    for shift in (20, -20):
        lowest, highest = score_range(scores + shift)
        expected = score_range(scores)
        torch.testing.assert_close((lowest, highest), tuple(x + shift for x in expected))


def test_heads_are_ranked_by_their_largest_score_in_size(captured, scores):
    ranked = rank_heads(captured)
    assert {(h.layer, h.head) for h in ranked} == {(n, h) for n in LAYERS for h in range(HEADS)}
    assert [h.radius for h in ranked] == sorted(h.radius for h in ranked)
    for h in ranked:
        seen = scores[LAYERS.index(h.layer), h.head][VISIBLE]
        assert (h.lowest, h.highest) == (seen.min(), seen.max())
        assert h.radius == seen.abs().max()
    assert any(h.radius == -h.lowest for h in ranked)
    assert any(h.radius == h.highest for h in ranked)


def test_centered_keys_leave_softmax_and_its_output(captured, scores):
    centered = center_keys(captured, capture(seed=1))
    moved = all_scores(centered)
    assert (moved - scores)[scores.isfinite()].abs().max() > 0.1
    torch.testing.assert_close(moved.softmax(-1), scores.softmax(-1), rtol=0, atol=1e-6)
    for index, layer in centered.layers.items():
        assert torch.equal(layer.value, captured.layers[index].value)
        assert torch.equal(layer.query, captured.layers[index].query)


def test_centered_on_themselves_keys_have_mean_zero(captured):
    for layer in center_keys(captured, captured).layers.values():
        assert layer.key.mean(-2).abs().max() < 1e-6


def test_center_keys_needs_the_layers_in_the_reference(captured):
    lacking = CapturedAttention(captured.tokens, {2: captured.layers[2]})
    with pytest.raises(KeyError):
        center_keys(captured, lacking)


def test_order_sizes_are_the_means_of_the_terms(scores):
    sizes = order_sizes(scores, 12)
    assert sizes.shape == (2, HEADS, 13)
    for n in range(13):
        terms = (scores**n / math.factorial(n)).abs()[..., VISIBLE]
        torch.testing.assert_close(sizes[..., n], terms.mean(-1))


def test_order_sizes_of_one_score_are_a_poisson_law():
    score = torch.tensor([[5.3]], dtype=torch.float64)
    law = torch.distributions.Poisson(score.squeeze()).log_prob(torch.arange(60.0)).exp()
    torch.testing.assert_close(order_sizes(score, 59) / score.exp().squeeze(), law.double())
    assert order_sizes(score, 59).argmax() == 5


def test_order_sizes_of_large_scores_and_orders_are_finite():
    sizes = order_sizes(torch.tensor([[-74.0]], dtype=torch.float64), 200)
    assert sizes.isfinite().all() and sizes.argmax() in (73, 74)


@pytest.mark.parametrize("order", [0, 2, 4, 10])
def test_series_weights_are_those_of_parallel_attention(captured, scores, order):
    layer = captured.layers[5]
    values = torch.eye(T, dtype=torch.float64).expand(KEY_HEADS, T, T)  # the output is the weights
    weights, _ = parallel_attention(
        layer.query.double(),
        layer.key.double(),
        values,
        kernel=taylor(order),
        enable_gqa=True,
        return_state=False,
    )
    torch.testing.assert_close(series_weights(scores[1], order), weights, rtol=0, atol=1e-6)


def test_misplaced_weight_bounds_the_output_error(captured, scores):
    """|sum (p - w) v| <= 2 * misplaced weight * largest |v|, the reason to look at it."""
    layer = captured.layers[2]
    query, key, value = (
        x.double()
        for x in (
            layer.query,
            layer.key_for_each_query_head(),
            layer.value_for_each_query_head(),
        )
    )
    out = series_weights(scores[0], 2) @ value
    error = (out - softmax_attention(query, key, value)).norm(dim=-1)
    bound = 2 * misplaced_weight(scores[0], 2) * value.norm(dim=-1).max()
    assert (error <= bound + 1e-6).all() and error.max() > 0.01


def test_misplaced_weight_falls_to_nothing_and_is_at_most_one(scores):
    for order in range(0, 40, 2):
        misplaced = misplaced_weight(scores, order)
        assert misplaced.shape == (2, HEADS, T)
        assert misplaced.min() >= 0 and misplaced.max() <= 1
    assert misplaced.max() < 1e-12
    assert misplaced_weight(scores, 0).max() > 0.1


def test_smallest_order_is_the_first_that_is_good_enough(scores):
    found = smallest_order(3 * scores, tolerance=0.01, max_order=12)
    for row in range(2):
        for head in range(HEADS):
            good = [
                order
                for order in range(0, 14, 2)
                if misplaced_weight(3 * scores[row, head], order).mean() <= 0.01 and order <= 12
            ]
            assert found[row, head] == (good[0] if good else math.inf)
    assert found.isinf().any() and found.isfinite().any()


IDS = torch.tensor([5, 96, 0, 41, 7, 7, 63])


def make(kind="Llama", **settings):
    """A small model with random weights whose scores are as large as a trained model's."""
    sizes = {
        "vocab_size": 97,
        "hidden_size": 36,
        "intermediate_size": 23,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "initializer_range": 0.4,
    }
    config = getattr(transformers, f"{kind}Config")(**sizes, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


@pytest.fixture(scope="module")
def model():
    return make()


def plain_loss(model):
    with torch.no_grad():
        return model(IDS[None], labels=IDS[None]).loss.item()


def test_loss_with_exp_is_the_models_own(model):
    assert next_token_loss(model, IDS) == pytest.approx(plain_loss(model), rel=1e-5)


@pytest.mark.parametrize("order", [2, 4])
def test_loss_with_a_series_is_that_of_the_swapped_model(model, order):
    own = plain_loss(model)
    found = next_token_loss(model, IDS, taylor(order))
    swap_attention(model, f"taylor_{order}")
    assert found == pytest.approx(plain_loss(model), rel=1e-5)
    restore_attention(model)
    assert abs(found - own) > 0.01  # the series changes something
    assert plain_loss(model) == own  # and the model is as it was


def test_scores_of_a_batch_are_those_of_its_texts(model):
    batch = torch.stack([IDS, IDS.flip(0)])
    swap_attention(model, "taylor_2")
    scores = batch_scores(model, batch)
    for text, ids in enumerate(batch):
        assert torch.equal(scores[:, :, text], all_scores(capture_attention(model, None, ids)))
    restore_attention(model)
    assert not torch.allclose(scores, batch_scores(model, batch))  # without the series


def test_centered_keys_change_the_loss_of_a_series_only(model):
    reference = capture_attention(model, None, IDS.flip(0))
    own = plain_loss(model)
    assert next_token_loss(model, IDS, "exp", reference) == pytest.approx(own, rel=1e-4)
    gap = next_token_loss(model, IDS, taylor(2), reference) - next_token_loss(model, IDS, taylor(2))
    assert abs(gap) > 0.01


def test_loss_refuses_a_model_that_masks_more_than_the_future():
    with pytest.raises(ValueError, match="masks more than the future"):
        next_token_loss(make("Mistral", sliding_window=3), IDS)
