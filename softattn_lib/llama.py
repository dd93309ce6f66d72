"""Real models of the Llama family: load the small one, look inside attention, and swap it.

Nothing of a model's code is copied. transformers lets the attention function of a model be chosen
by name; we register one that looks at queries, keys and values on their way and hands them on.
"""

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softattn_lib import small_model
from softattn_lib.kernels import HeadPolynomialsKernel
from softattn_lib.layers import SoftAttention
from softattn_lib.variants import AttentionVariant, variant

if TYPE_CHECKING:
    from softattn_lib.calibration import Calibration


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

    Works for the causal models of transformers whose layers go through its attention interface,
    Llama and its relatives, and for swapped layers, which compute on as the variant does: of these
    queries, keys and values are those before clamp, feature map and gates. The model is left as it
    was, also when something fails: its attention implementation is put back and no gradient is
    taken.

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

    def swapped_attention(module, args, inputs):
        if (layer := module.layer_idx) in wanted:
            query, key, value = module._heads(
                inputs["hidden_states"], inputs["position_embeddings"], None
            )
            scale = module.head_dim**-0.5 if module.variant.scale is None else module.variant.scale
            visible = _visible(inputs["attention_mask"], query)
            captured[layer] = LayerAttention(layer, query[0], key[0], value[0], scale, visible)

    hooks = [
        module.register_forward_pre_hook(swapped_attention, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, _SwappedAttention)
    ]
    try:
        with torch.no_grad(), attention_function(model, attention):
            model.base_model(input_ids=token_ids[None].to(model.device), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    if len(captured) != len(wanted):
        raise ValueError(
            f"model is a {type(model).__name__}, whose layers do not go through transformers' "
            "attention interface; a model of the Llama family does"
        )
    return CapturedAttention(tokens, captured)


@contextmanager
def attention_function(model, function: Callable):
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


@dataclass(frozen=True)
class Swap:
    """What `swap_attention` did.

    Attributes:
        variant: name of the variant.
        layers: indices of the layers that now have it.
        new_parameters: how many learnable numbers came in beside the kept projections.
        memory: "state" of constant size, or "keys and values".
        state_size: numbers in the state of one layer for one sequence, None without a state.
    """

    variant: str
    layers: tuple[int, ...]
    new_parameters: int
    memory: str
    state_size: int | None


def swap_attention(
    model,
    variant_name: "str | AttentionVariant | Calibration",
    layers: Iterable[int] | None = None,
) -> Swap:
    """Replace the attention of a Llama-family model in place, keeping its weights.

    The projections stay the very same modules; gates, decay and learned norms of the variant come
    in freshly initialised. `generate` works: variants with a state of affordable size decode from
    it, through transformers' cache, the others from keys and values. A layer swapped already is
    swapped again. `restore_attention` puts everything back.

    Args:
        model: a ``LlamaForCausalLM``, the ``LlamaModel`` inside, or a relative whose attention
            has only the projections q_proj, k_proj, v_proj, o_proj.
        variant_name: a name as in `variants.variant`, an `AttentionVariant`, or a
            `calibration.Calibration` of this model: a polynomial of its own for each head.
        layers: indices of the layers to swap, None for all.

    Raises:
        VariantUnavailableError, KeyError: for a variant that cannot be built or is not known.
        ValueError: a layer the model does not have, a model of another kind, or a calibration of
            another model.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
    ...     num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
    >>> model = LlamaForCausalLM(config).eval()
    >>> swap_attention(model, "taylor_2", layers=[1])
    Swap(variant='taylor_2', layers=(1,), new_parameters=0, memory='state', state_size=150)
    >>> restore_attention(model)
    (1,)
    """
    decoder = decoder_layers(model)
    wanted = sorted(_check_layers(layers, len(decoder)))
    originals = {index: _original(decoder[index].self_attn) for index in wanted}
    if hasattr(variant_name, "check"):  # a Calibration, whose module imports this one
        variant_name.check(model)
        swapped = {index: _calibrated(originals[index], variant_name, index) for index in wanted}
    else:
        chosen = variant(variant_name)
        swapped = {index: _swapped(attention, chosen) for index, attention in originals.items()}
    for index, attention in swapped.items():
        decoder[index].self_attn = attention
    kept = {id(p) for attention in originals.values() for p in attention.parameters()}
    new = [p for a in swapped.values() for p in a.parameters() if id(p) not in kept]
    first = next(iter(swapped.values()), None)
    has_state = first is not None and first.keeps_state
    size = first.variant.state_size(first.head_dim, first.head_dim) if has_state else None
    return Swap(
        variant=_name(variant_name),
        layers=tuple(wanted),
        new_parameters=sum(p.numel() for p in new),
        memory="state" if has_state else "keys and values",
        state_size=size * first.num_key_heads if has_state else None,
    )


def restore_attention(model) -> tuple[int, ...]:
    """Undo `swap_attention` and return the indices of the layers that got their own module back."""
    restored = []
    for index, layer in enumerate(decoder_layers(model)):
        if isinstance(layer.self_attn, _SwappedAttention):
            layer.self_attn = layer.self_attn.original
            restored.append(index)
    return tuple(restored)


class _SwappedAttention(SoftAttention):
    """`SoftAttention` that answers to the calls of a transformers decoder layer."""

    def forward(
        self,
        hidden_states,
        position_embeddings=None,
        attention_mask=None,
        cache=None,
        past_key_values=None,  # the name of `cache` in earlier versions
        **kwargs,
    ):
        from softattn_lib.cache import memory_layer

        cache = past_key_values if cache is None else cache
        slot = None if cache is None else memory_layer(cache, self.layer_idx)
        out, memory = super().forward(
            hidden_states,
            rotary=position_embeddings,
            key_mask=_new_key_mask(attention_mask, hidden_states.shape[1]),
            memory=None if slot is None else slot.memory,
            remember=slot is not None,
        )
        if slot is not None:
            slot.remember(memory, hidden_states.shape[1])
        return out, None

    @property
    def original(self):
        return self.__dict__["_original"][0]


class _CalibratedAttention(_SwappedAttention):
    """A swapped layer whose keys are shifted and whose heads have a constant gate."""

    def calibrate(self, key_shift: Tensor, gate: Tensor, like: Tensor) -> None:
        self.register_buffer("key_shift", key_shift.to(like).unsqueeze(1), persistent=False)
        self.register_buffer("gate", gate.to(like).unsqueeze(1), persistent=False)

    def _heads(self, x, rotary, memory):
        q, k, v = super()._heads(x, rotary, memory)
        return q, k - self.key_shift, v

    def _output_gate(self, x, position, visible, past):
        return self.gate.expand(len(x), -1, x.shape[1]), None


def _calibrated(attention, calibration, index: int) -> _CalibratedAttention:
    """One layer of a `calibration.Calibration` in place of a layer's attention."""
    layer = calibration.layers[index]
    chosen = AttentionVariant(
        name=_name(calibration),
        formula=r"\frac{\sum_s p_h(l_s) v_s}{\sum_s p_h(l_s)}",
        kernel=HeadPolynomialsKernel(layer.polynomials),
    )
    new = _swapped(attention, chosen, _CalibratedAttention)
    new.calibrate(layer.key_shift, layer.gate, like=attention.q_proj.weight)
    return new


def _name(chosen) -> str:
    if hasattr(chosen, "check"):
        return f"{chosen.family}_{chosen.order}"
    return variant(chosen).name


def _swapped(attention, chosen: AttentionVariant, kind=_SwappedAttention) -> _SwappedAttention:
    _check_attention(attention)
    weight = attention.q_proj.weight
    with torch.device("meta"):  # the projections are about to be replaced
        new = kind(
            chosen,
            hidden_size=attention.q_proj.in_features,
            num_heads=attention.q_proj.out_features // attention.head_dim,
            num_key_value_heads=attention.k_proj.out_features // attention.head_dim,
            head_dim=attention.head_dim,
        )
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(new, name, getattr(attention, name))
    new.reset_learnables(weight.device, weight.dtype)
    new.layer_idx = attention.layer_idx
    new.__dict__["_original"] = (attention,)  # not a submodule: its weights are counted once
    return new.train(attention.training)


def _check_attention(attention) -> None:
    lacking = [n for n in ("q_proj", "k_proj", "v_proj", "o_proj") if not hasattr(attention, n)]
    beyond = [n for n in ("q_norm", "k_norm") if hasattr(attention, n)]
    if lacking or beyond or not hasattr(attention, "head_dim"):
        raise ValueError(
            f"model has {type(attention).__name__} layers, which are not plain Llama attention "
            f"(lacking {lacking}, beyond it {beyond})"
        )
    if getattr(attention, "sliding_window", None):
        raise ValueError(f"model attends in a sliding window of {attention.sliding_window}")
    if abs(attention.scaling - attention.head_dim**-0.5) > 1e-9:
        raise ValueError(f"model scales scores by {attention.scaling} instead of head_dim ** -0.5")


def _original(attention):
    return attention.original if isinstance(attention, _SwappedAttention) else attention


def decoder_layers(model):
    layers = getattr(model.base_model, "layers", None)
    if layers is None or not all(hasattr(layer, "self_attn") for layer in layers):
        raise ValueError(f"model is a {type(model).__name__}; it has no Llama decoder layers")
    return layers


def _new_key_mask(attention_mask: Tensor | None, length: int) -> Tensor | None:
    """(B, length) bool for the newest tokens, from the mask that transformers hands to a layer."""
    if attention_mask is None:
        return None
    last_row = attention_mask[:, 0, -1] if attention_mask.dim() == 4 else attention_mask
    visible = last_row if last_row.dtype == torch.bool else last_row >= 0
    return visible[:, -length:]
