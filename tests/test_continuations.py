"""A model goes on with a prompt, with its own attention and with others."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from softattn_lib.calibration import calibrate
from softattn_lib.continuations import continuations
from softattn_lib.llama import restore_attention


class Letters:
    """A tokenizer of the 26 letters."""

    def __call__(self, text, return_tensors=None):
        from transformers import BatchEncoding

        ids = torch.tensor([[ord(c) - 97 for c in text]])
        return BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def decode(self, ids):
        return "".join(chr(97 + i) for i in ids)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=26, hidden_size=12, intermediate_size=20, head_dim=4, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def fits(model):
    texts = {"letters": torch.arange(26)[None]}
    return {f"order {n}": calibrate(model, texts, n, "square") for n in (2, 8)}


def test_a_high_order_goes_on_as_softmax_does(model, fits):
    found = continuations(model, Letters(), "hello", fits, tokens=8)
    assert list(found) == ["softmax", "order 2", "order 8"]
    assert len(found["softmax"].text) == found["softmax"].agrees == 8
    assert found["order 8"].text == found["softmax"].text
    assert found["order 8"].agrees == 8


def test_the_memory_of_states_does_not_grow_with_the_text(model, fits):
    order_2 = {"order 2": fits["order 2"]}
    short, long = (
        continuations(model, Letters(), "ab" * n, order_2, tokens=4) for n in (2, 20)
    )  # fmt: skip
    assert short["order 2"].memory == long["order 2"].memory == 2 * 2 * 15 * 5 * 4
    assert short["softmax"].memory < long["softmax"].memory


def test_the_model_is_left_as_it_was(model, fits):
    continuations(model, Letters(), "abc", fits, layers=[1], tokens=2)
    assert restore_attention(model) == ()


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ValueError, match="prompt is empty"):
        continuations(model, Letters(), "", {})


def test_what_cannot_be_shown_is_refused(model, fits):
    for tokens in (0, -1, 1.5):
        with pytest.raises(ValueError, match=f"^tokens must be an integer >= 1, got {tokens}"):
            continuations(model, Letters(), "abc", {}, tokens=tokens)
    with pytest.raises(ValueError, match=r"^choices names 'softmax'"):
        continuations(model, Letters(), "abc", {"softmax": fits["order 2"]})
    with pytest.raises(ValueError, match=r"^layers is 1; it takes a list"):
        continuations(model, Letters(), "abc", fits, layers=1, tokens=2)
