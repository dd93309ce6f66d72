"""Real models of the Llama family: load the small one, and see what its attention layers compute.

Nothing of a model's code is copied. transformers lets the attention function of a model be chosen
by name; we register one that looks at queries, keys and values on their way and hands them on.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from softattn_lib import small_model


def load_small_model(device=None, *, from_hub: bool = False):
    """Load SmolLM2-135M-Instruct from the cache, in float32 and ready to evaluate.

    It is a Llama of 30 layers with 9 query heads that share 3 key and value heads of size 64. No
    network is used: ``softattn model`` on the command line, or :func:`small_model.fetch`, puts the
    model into the cache.

    Args:
        device: where the model goes; None is the CPU, where the notebooks' outputs were made.
        from_hub: load the hub's weights in place of the quantised ones (``--from-hub``).

    Returns:
        ``(model, tokenizer)``, a ``LlamaForCausalLM`` and its tokenizer.

    Raises:
        small_model.SmallModelError: the model is not in the cache, or part of it is missing.

    Example, once the model is there::

        model, tokenizer = load_small_model()
        captured = capture_attention(model, tokenizer, "The cat sat on the mat.", layers=[0])
        captured.layers[0].scores().shape  # torch.Size([9, 7, 7])
    """
    if problem := small_model.find_problem(from_hub):
        option = " --from-hub" if from_hub else ""
        raise small_model.SmallModelError(f"{problem}; to fetch it run `softattn model{option}`")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = small_model.model_dir(from_hub)
    with small_model.progress_bars(False):
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return model.to(device).eval(), tokenizer


@dataclass(frozen=True, eq=False)
class LayerAttention:
    """What one attention layer computed with, for one text of T tokens.

    Attributes:
        layer: index of the layer, from 0.
        query: (Hq, T, d), after the rotary position embedding (RoPE).
        key: (Hk, T, d), after RoPE. Hk divides Hq: query head h reads key head h // (Hq // Hk).
        value: (Hk, T, e).
        scale: what the layer multiplies q . k with, normally d ** -0.5.
        visible: (T, T) bool, True where the query of the row reads the key of the column.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    visible: Tensor

    def scores(self) -> Tensor:
        """(Hq, T, T): the scores q . k * scale that softmax receives, -inf where a key is hidden.

        In float32 at least. ``scores()[:, layer.visible]`` leaves the finite ones, (Hq, pairs).
        """
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        key = self.key_for_each_query_head().to(dtype)
        scores = self.query.to(dtype) @ key.mT * self.scale
        return scores.masked_fill(~self.visible, -torch.inf)

    def key_for_each_query_head(self) -> Tensor:
        """(Hq, T, d): the key that each query head reads."""
        return self.key.repeat_interleave(len(self.query) // len(self.key), dim=0)

    def value_for_each_query_head(self) -> Tensor:
        """(Hq, T, e): the value that each query head reads."""
        return self.value.repeat_interleave(len(self.query) // len(self.value), dim=0)


@dataclass(frozen=True, eq=False)
class CapturedAttention:
    """The attention of some layers of a model on one text.

    Attributes:
        tokens: the T pieces of the text, as strings for the axes of a plot. A token that is part
            of a character shows as the replacement character.
        layers: layer index -> :class:`LayerAttention`, in the model's order.
    """

    tokens: tuple[str, ...]
    layers: dict[int, LayerAttention]


def capture_attention(
    model, tokenizer, text: str | Tensor, layers: Iterable[int] | None = None
) -> CapturedAttention:
    """Run a text through a model and keep what its attention layers compute with.

    Works for the causal models of transformers whose layers go through its attention interface:
    Llama and its relatives. The model is left as it was, also when something fails: its attention
    implementation is put back and no gradient is taken.

    Args:
        model: a ``LlamaForCausalLM``, the ``LlamaModel`` inside, or a relative.
        tokenizer: the model's tokenizer; may be None where ``text`` is token ids.
        text: one text (a batch of one), or its token ids as an integer tensor (T,).
        layers: indices of the layers to keep, None for all. One layer takes
            (Hq + 2 Hk) * T * d numbers, scores are computed when asked for.

    Raises:
        ValueError: no tokens, a layer the model does not have, or a model whose layers do not go
            through the attention interface.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
    ...     num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2)
    >>> model = LlamaForCausalLM(config).eval()
    >>> captured = capture_attention(model, None, torch.tensor([7, 3, 9, 1, 4]), layers=[0, 2])
    >>> captured.tokens, list(captured.layers)
    (('7', '3', '9', '1', '4'), [0, 2])
    >>> layer = captured.layers[2]
    >>> layer.query.shape, layer.key.shape, layer.scores().shape
    (torch.Size([6, 5, 4]), torch.Size([2, 5, 4]), torch.Size([6, 5, 5]))
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    token_ids, tokens = _tokenize(tokenizer, text)
    wanted = _check_layers(layers, model.config.num_hidden_layers)
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    captured = {}

    def attention(module, query, key, value, attention_mask, *, scaling, **kwargs):
        if (layer := module.layer_idx) in wanted:
            visible = _visible(attention_mask, query)
            captured[layer] = LayerAttention(layer, query[0], key[0], value[0], scaling, visible)
        kwargs["dropout"] = 0.0
        return sdpa(module, query, key, value, attention_mask, scaling=scaling, **kwargs)

    with torch.no_grad(), _attention_function(model, attention):
        model.base_model(input_ids=token_ids[None].to(model.device), use_cache=False)
    if len(captured) != len(wanted):
        raise ValueError(
            f"model is a {type(model).__name__}, whose layers do not go through transformers' "
            "attention interface; a model of the Llama family does"
        )
    return CapturedAttention(tokens, captured)


@contextmanager
def _attention_function(model, function: Callable):
    """While this lasts, every attention layer of the model calls ``function``, then what it did."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    name = "softattn"
    before = model.config._attn_implementation
    # The mask goes by the same name, which transformers seeks among the registered ones only.
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    ALL_ATTENTION_FUNCTIONS[name] = function
    try:
        model.set_attn_implementation(name)
        yield
    finally:
        model.set_attn_implementation(before)
        del ALL_ATTENTION_FUNCTIONS[name]


def _visible(attention_mask: Tensor | None, query: Tensor) -> Tensor:
    """(T, T) bool from the mask that transformers hands to a layer; None means plainly causal."""
    if attention_mask is not None:  # (1, 1, T, T), True is visible; a sliding window comes so
        return attention_mask[0, 0]
    length = query.shape[-2]
    return torch.ones(length, length, dtype=torch.bool, device=query.device).tril()


def _tokenize(tokenizer, text: str | Tensor) -> tuple[Tensor, tuple[str, ...]]:
    ids = torch.tensor(tokenizer(text)["input_ids"]) if isinstance(text, str) else text
    if ids.dim() != 1 or len(ids) == 0:
        raise ValueError(
            f"text gave token ids of shape {tuple(ids.shape)}; it must be one text, or its token "
            "ids of shape (T,), with at least one token"
        )
    if tokenizer is None:
        return ids, tuple(str(i) for i in ids.tolist())
    return ids, tuple(tokenizer.decode([i]) for i in ids.tolist())


def _check_layers(layers: Iterable[int] | None, num_layers: int) -> set[int]:
    if isinstance(layers, int):
        raise ValueError(f"layers is {layers}; it takes a list, for one layer [{layers}]")
    wanted = set(range(num_layers) if layers is None else layers)
    if unknown := sorted(wanted - set(range(num_layers))):
        raise ValueError(f"layers names {unknown}; this model has the layers 0 to {num_layers - 1}")
    return wanted
