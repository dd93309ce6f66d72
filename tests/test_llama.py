"""What capture_attention sees is what the model computes, on small random models and a real one."""

import socket
import time
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from softattn_lib import small_model
from softattn_lib.llama import capture_attention, load_small_model, swap_attention
from softattn_lib.scores import series_weights

TEXT = "The cat sat on the mat. It was warm, and the cat was happy."
# Every size differs from every other, and Hq * d differs from the hidden size.
SIZES = {
    "vocab_size": 97,
    "hidden_size": 36,
    "intermediate_size": 23,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.4,  # so that scores are of the size they have in a trained model
}
IDS = torch.tensor([5, 96, 0, 41, 7, 7, 63])


def make(kind="Llama", **settings):
    """A small model with random weights, the same ones every time."""
    config = getattr(transformers, f"{kind}Config")(**SIZES, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 3},  # its mask hides the distant past too
    "Qwen3": {},  # normalises queries and keys before RoPE
}


@pytest.fixture(params=MODELS)
def model(request):
    return make(request.param, **MODELS[request.param])


@pytest.fixture(scope="module")
def real():
    """The real model, fetched when it is not there. Without a network this is an error."""
    small_model.fetch(progress=False)
    return load_small_model()


def attention_outputs(model, ids) -> list[Tensor]:
    """What each self_attn module of the model returns, seen by hooks on the modules."""
    outputs = []
    hooks = [
        layer.self_attn.register_forward_hook(lambda module, args, out: outputs.append(out[0][0]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids[None])
    for hook in hooks:
        hook.remove()
    return outputs


def assert_same_outputs(model, captured, ids, tolerance):
    for (index, layer), expected in zip(
        captured.layers.items(), attention_outputs(model, ids), strict=True
    ):
        heads = layer.scores().softmax(-1) @ layer.value_for_each_query_head()
        with torch.no_grad():
            out = model.model.layers[index].self_attn.o_proj(heads.transpose(0, 1).flatten(1))
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


def assert_same_weights(model, captured, ids, tolerance):
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(ids[None], output_attentions=True).attentions
    model.set_attn_implementation(before)
    assert len(expected) == len(captured.layers)
    for layer, weights in zip(captured.layers.values(), expected, strict=True):
        torch.testing.assert_close(layer.scores().softmax(-1), weights[0], rtol=0, atol=tolerance)


def test_shapes(model):
    captured = capture_attention(model, None, IDS)
    assert list(captured.layers) == [0, 1, 2]
    assert captured.tokens == ("5", "96", "0", "41", "7", "7", "63")
    for index, layer in captured.layers.items():
        assert layer.layer == index
        assert layer.query.shape == (6, 7, 8)
        assert layer.key.shape == layer.value.shape == (2, 7, 8)
        assert layer.scale == 8**-0.5
        assert layer.visible.shape == (7, 7) and layer.visible.dtype == torch.bool
        assert layer.scores().shape == (6, 7, 7)
        assert layer.key_for_each_query_head().shape == (6, 7, 8)


def test_each_query_head_reads_its_group(model):
    layer = capture_attention(model, None, IDS, layers=[1]).layers[1]
    for head in range(6):
        assert torch.equal(layer.key_for_each_query_head()[head], layer.key[head // 3])
        assert torch.equal(layer.value_for_each_query_head()[head], layer.value[head // 3])
        scores = layer.query[head] @ layer.key[head // 3].T * layer.scale
        visible = layer.visible
        torch.testing.assert_close(layer.scores()[head][visible], scores[visible])
        assert (layer.scores()[head][~visible] == -torch.inf).all()


def test_visible_is_causal_or_the_sliding_window(model):
    rows, columns = torch.arange(7)[:, None], torch.arange(7)
    expected = columns <= rows
    if model.config.model_type == "mistral":
        expected &= columns > rows - 3
    for layer in capture_attention(model, None, IDS).layers.values():
        assert torch.equal(layer.visible, expected)


def test_output_of_every_layer(model):
    assert_same_outputs(model, capture_attention(model, None, IDS), IDS, tolerance=1e-5)


def test_weights_of_every_layer(model):
    assert_same_weights(model, capture_attention(model, None, IDS), IDS, tolerance=1e-5)


def test_a_layer_swapped_for_softmax_shows_what_the_original_did():
    model = make()
    expected = capture_attention(model, None, IDS)
    swap_attention(model, "softmax", layers=[1, 2])  # layer 0 stays an original
    captured = capture_attention(model, None, IDS)
    assert list(captured.layers) == [0, 1, 2]
    for index, layer in captured.layers.items():
        was = expected.layers[index]
        assert layer.scale == was.scale and torch.equal(layer.visible, was.visible)
        for part in ("query", "key", "value"):
            torch.testing.assert_close(getattr(layer, part), getattr(was, part))
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_swapped_layers_compute_on_as_their_variant_does():
    model = make()
    before = capture_attention(model, None, IDS).layers[2].scores()
    swap_attention(model, "taylor_2")
    captured = capture_attention(model, None, IDS)
    for layer, expected in zip(
        captured.layers.values(), attention_outputs(model, IDS), strict=True
    ):
        heads = series_weights(layer.scores(), 2) @ layer.value_for_each_query_head()
        with torch.no_grad():
            out = model.model.layers[layer.layer].self_attn.o_proj(heads.transpose(0, 1).flatten(1))
        torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(captured.layers[2].scores(), before)
    swap_attention(model, "linear_relu")
    assert capture_attention(model, None, IDS).layers[0].scale == 1


def test_scores_of_a_half_precision_model_are_float32():
    layer = capture_attention(make().bfloat16(), None, IDS, layers=[0]).layers[0]
    assert layer.query.dtype == torch.bfloat16
    assert layer.scores().dtype == torch.float32
    exact = layer.query.double() @ layer.key_for_each_query_head().double().mT * layer.scale
    difference = (layer.scores().double() - exact)[:, layer.visible]
    assert difference.abs().max() < 1e-5


def test_a_dropped_out_layer_is_captured_without_dropout():
    model = make(attention_dropout=0.5)
    expected = capture_attention(model, None, IDS).layers[2]
    seen = capture_attention(model.train(), None, IDS).layers[2]
    assert model.training
    assert torch.equal(seen.query, expected.query)


def test_the_model_inside_is_enough():
    whole = make()
    inside = capture_attention(whole.model, None, IDS).layers
    for index, layer in capture_attention(whole, None, IDS).layers.items():
        assert torch.equal(inside[index].query, layer.query)


@pytest.mark.parametrize("layers", [[2, 0], (1,), range(3), {1, 2}, []])
def test_chosen_layers(layers):
    assert list(capture_attention(make(), None, IDS, layers).layers) == sorted(layers)


def test_a_tokenizer_gives_ids_and_labels():
    words = ["<s>", "a", "recurrent", "network"]

    def tokenize(text):
        return {"input_ids": [words.index(word) for word in text.split()]}

    class Tokenizer:
        __call__ = staticmethod(tokenize)
        decode = staticmethod(lambda ids: " ".join(words[i] for i in ids))

    model = make()
    captured = capture_attention(model, Tokenizer(), "a recurrent network")
    assert captured.tokens == ("a", "recurrent", "network")
    expected = capture_attention(model, None, torch.tensor([1, 2, 3]))
    assert torch.equal(captured.layers[2].query, expected.layers[2].query)
    with pytest.raises(ValueError, match=r"text gave token ids of shape \(0,\)"):
        capture_attention(model, Tokenizer(), "")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(implementation, fails):
    model = make()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        before = model(IDS[None]).logits
    if fails:
        hook = model.model.layers[1].mlp.register_forward_hook(lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            capture_attention(model, None, IDS)
        hook.remove()
    else:
        layer = capture_attention(model, None, IDS).layers[0]
        assert not any(t.requires_grad for t in (layer.query, layer.key, layer.value))
    assert model.config._attn_implementation == implementation
    assert model.model.config._attn_implementation == implementation
    assert "softattn" not in ALL_ATTENTION_FUNCTIONS
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.is_grad_enabled()
    with torch.no_grad():
        assert torch.equal(model(IDS[None]).logits, before)


@pytest.mark.parametrize("layers", [[3], [-1], [0, 7]])
def test_a_layer_that_is_not_there(layers):
    with pytest.raises(ValueError, match=rf"layers names \[{layers[-1]}\].* the layers 0 to 2"):
        capture_attention(make(), None, IDS, layers)


def test_a_single_number_for_layers():
    with pytest.raises(ValueError, match=r"layers is 1; .* for one layer \[1\]"):
        capture_attention(make(), None, IDS, layers=1)


@pytest.mark.parametrize("ids", [IDS[None], IDS[:0], IDS[0]])
def test_token_ids_of_another_shape(ids):
    with pytest.raises(ValueError, match="must be one text, or its token ids of shape"):
        capture_attention(make(), None, ids)


def test_a_model_of_another_family_is_named():
    config = transformers.BloomConfig(vocab_size=97, hidden_size=24, n_layer=2, n_head=3)
    model = transformers.BloomForCausalLM(config)
    with pytest.raises(ValueError, match="model is a BloomForCausalLM, whose layers do not"):
        capture_attention(model, None, IDS)
    assert model.config._attn_implementation != "softattn"


@pytest.mark.parametrize(("from_hub", "fix"), [(False, "model`"), (True, "model --from-hub`")])
def test_a_model_that_is_not_there_names_the_fix(tmp_path, monkeypatch, from_hub, fix):
    monkeypatch.setenv("SOFTATTN_CACHE", str(tmp_path))
    with pytest.raises(small_model.SmallModelError, match="is not in .*run `softattn " + fix):
        load_small_model(from_hub=from_hub)


def test_loading_takes_float32_from_the_hub_s_folder_too(tmp_path, monkeypatch):
    """bfloat16 on disk becomes float32; the tokenizer's loading is the real model's affair."""
    monkeypatch.setenv("SOFTATTN_CACHE", str(tmp_path))
    folder = small_model.model_dir(from_hub=True)
    make().bfloat16().save_pretrained(folder)
    small_model._write_manifest(folder, "made here")
    tokenizer = SimpleNamespace()
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda *args, **kwargs: tokenizer
    )
    model, same = load_small_model(from_hub=True)
    assert same is tokenizer
    assert model.dtype == torch.float32 and not model.training


@pytest.mark.slow
def test_the_real_model_loads_quickly_without_a_network(real, monkeypatch, capfd):
    def refuse(*args):
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    start = time.perf_counter()
    model, tokenizer = load_small_model()
    seconds = time.perf_counter() - start
    print(f"loaded in {seconds:.2f} s")
    assert seconds < 5  # about one; the rest is for a busy machine
    out, err = capfd.readouterr()
    assert (out.count("\n"), err) == (1, "")  # no progress bars in a notebook
    assert not model.training and model.dtype == torch.float32
    assert model.device.type == "cpu"
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        best = model(ids).logits[0, -1].argmax()
    assert tokenizer.decode([best]) == " Paris"


@pytest.mark.slow
def test_the_real_model_s_attention(real):
    model, tokenizer = real
    captured = capture_attention(model, tokenizer, TEXT)
    assert "".join(captured.tokens) == TEXT
    assert captured.tokens[:3] == ("The", " cat", " sat")
    assert list(captured.layers) == list(range(30))
    length = len(captured.tokens)
    assert captured.layers[0].query.shape == (9, length, 64)
    assert captured.layers[0].key.shape == captured.layers[0].value.shape == (3, length, 64)
    ids = torch.tensor(tokenizer(TEXT)["input_ids"])
    assert_same_outputs(model, captured, ids, tolerance=1e-5)
    assert_same_weights(model, captured, ids, tolerance=1e-5)
