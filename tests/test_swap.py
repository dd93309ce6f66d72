"""Swapping the attention of a Llama-family model: same logits, same cache contract, undone."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

from softattn_lib.cache import memory_bytes
from softattn_lib.llama import load_small_model, restore_attention, swap_attention
from softattn_lib.variants import VARIANTS

NAMES = [name for name, entry in VARIANTS.items() if not entry.unavailable]
NAMES += ["taylor_1", "taylor_2", "taylor_4", "power_2"]
quiet = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


def tiny_model(seed=0, **options):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=53,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=4,
        initializer_range=0.3,
        max_position_embeddings=20_000,
        pad_token_id=0,
        **options,
    )
    return LlamaForCausalLM(config).eval()


def tokens(*shape, seed=0):
    return torch.randint(1, 53, shape, generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_in_pieces(model, ids, mask, cuts):
    """Logits of a sequence handed to the model piece by piece through a cache."""
    cache, pieces = DynamicCache(config=model.config), []
    for start, stop in zip([0, *cuts], [*cuts, ids.shape[1]], strict=True):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, start:stop]
        out = model(
            ids[:, start:stop],
            attention_mask=mask[:, :stop],
            position_ids=positions,
            cache=cache,
            use_cache=True,
        )
        pieces.append(out.logits)
    return torch.cat(pieces, dim=1), cache


def test_softmax_gives_the_logits_of_the_untouched_model():
    model, ids = tiny_model(), tokens(2, 11)
    with torch.no_grad():
        expected = model(ids).logits
        swap_attention(model, "softmax")
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_left_padding_is_read_from_either_mask(implementation):
    model, ids = tiny_model(attn_implementation=implementation), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
        swap_attention(model, "softmax")
        got = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5)


@quiet
@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_decode_agree(name):
    model, ids = tiny_model().double(), tokens(3, 12)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    swap_attention(model, name)
    whole, _ = logits_in_pieces(model, ids, mask, cuts=[])
    pieces, _ = logits_in_pieces(model, ids, mask, cuts=[7, 8, 9])
    gap = (whole - pieces)[mask.bool()].abs().max().item()
    print(f"{name}: prefill and decode differ by {gap:.1e}")
    assert gap < 1e-4


@quiet
@pytest.mark.parametrize("name", ["softmax", "taylor_2", "gate", "linear_relu", "power_2_decay"])
def test_generate_with_a_padded_batch_equals_each_prompt_alone(name):
    model = tiny_model().double()
    swap_attention(model, name)
    prompts = [tokens(7, seed=1), tokens(4, seed=2)]
    padded = torch.stack([prompts[0], torch.cat([torch.zeros(3, dtype=torch.long), prompts[1]])])
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    together = model.generate(padded, attention_mask=(padded > 0).long(), **options)
    for row, prompt in enumerate(prompts):
        alone = model.generate(
            prompt[None], attention_mask=torch.ones(1, len(prompt), dtype=torch.long), **options
        )
        assert together[row, -6:].tolist() == alone[0, -6:].tolist()


def test_beam_search_reorders_the_state():
    model = tiny_model().double()
    swap_attention(model, "taylor_2")
    prompt = tokens(1, 6)
    options = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    mask = torch.ones_like(prompt)
    with_cache = model.generate(prompt, attention_mask=mask, use_cache=True, **options)
    without = model.generate(prompt, attention_mask=mask, use_cache=False, **options)
    assert with_cache.tolist() == without.tolist()


def test_the_state_has_the_same_size_after_ten_and_after_ten_thousand_tokens():
    model = tiny_model()
    swap = swap_attention(model, "taylor_2")
    sizes = []
    for length in (10, 10_000):
        ids = tokens(1, length)
        _, cache = logits_in_pieces(model, ids, torch.ones_like(ids), cuts=[length - 1])
        sizes.append(memory_bytes(cache))
    print(f"state bytes after 10 and 10,000 tokens: {sizes}")
    assert sizes[0] == sizes[1] == 3 * swap.state_size * 4


def test_keys_and_values_grow():
    model, sizes = tiny_model(), []
    swap_attention(model, "gate")
    for length in (10, 20):
        ids = tokens(1, length)
        sizes.append(memory_bytes(logits_in_pieces(model, ids, torch.ones_like(ids), [])[1]))
    assert sizes[1] == 2 * sizes[0]


def test_swap_reports_and_restore_undoes():
    model, ids = tiny_model(), tokens(2, 8)
    names, before = list(model.state_dict()), model(ids).logits
    swap = swap_attention(model, "gated_softmax", layers=[2, 0])
    assert (swap.layers, swap.memory, swap.state_size) == ((0, 2), "keys and values", None)
    assert swap.new_parameters == 2 * (24 * 6 + 6 + 24 * 2 + 2 + 4 + 4)
    assert not torch.allclose(model(ids).logits, before)
    swap_attention(model, "taylor_2", layers=[0])  # a swapped layer can be swapped again
    assert restore_attention(model) == (0, 2)
    assert list(model.state_dict()) == names
    torch.testing.assert_close(model(ids).logits, before, rtol=0, atol=0)


def test_a_swapped_model_trains_the_very_weights_of_the_original():
    model, ids = tiny_model(), tokens(2, 8)
    weight = model.model.layers[0].self_attn.q_proj.weight
    swap_attention(model, "l2")
    model(ids, labels=ids).loss.backward()
    assert weight.grad is not None and weight.grad.abs().max() > 0


def test_a_checkpoint_of_the_untouched_model_loads_into_the_swapped_one():
    source, target = tiny_model(seed=1), tiny_model(seed=2)
    swap_attention(target, "taylor_2")
    target.load_state_dict(source.state_dict())
    swap_attention(source, "taylor_2")
    ids = tokens(2, 8)
    torch.testing.assert_close(target(ids).logits, source(ids).logits)


@pytest.mark.parametrize(
    "break_it, message",
    [
        (lambda m: swap_attention(m, "softmax", layers=[3]), "0 to 2"),
        (lambda m: swap_attention(m.lm_head, "softmax"), "Linear"),
        (lambda m: swap_attention(m, "gated_softmax_plusplus"), "convolution"),
    ],
)
def test_what_cannot_be_swapped_says_why(break_it, message):
    with pytest.raises((ValueError, AttributeError, NotImplementedError), match=message):
        break_it(tiny_model())


def test_a_cache_filled_before_the_swap_is_refused():
    model, ids = tiny_model(), tokens(1, 4)
    _, cache = logits_in_pieces(model, ids, torch.ones_like(ids), [])
    swap_attention(model, "taylor_2")
    with pytest.raises(ValueError, match="before its attention was swapped"):
        model(ids, cache=cache, use_cache=True)


@pytest.mark.slow
def test_the_real_model_decodes_from_a_state_of_constant_size():
    model, tokenizer = load_small_model()
    ids = tokenizer("The recurrent view of attention says that", return_tensors="pt").input_ids
    with torch.no_grad():
        untouched = model(ids).logits
        swap_attention(model, "softmax")
        torch.testing.assert_close(model(ids).logits, untouched, rtol=0, atol=1e-4)
        swap = swap_attention(model, "taylor_2")
        whole, first = logits_in_pieces(model, ids, torch.ones_like(ids), [])
        pieces, last = logits_in_pieces(model, ids, torch.ones_like(ids), [4, 5, 6])
    assert (whole - pieces).abs().max() < 1e-3
    assert swap.state_size == 3 * 2145 * 65
    assert memory_bytes(first) == memory_bytes(last) == 30 * swap.state_size * 4
