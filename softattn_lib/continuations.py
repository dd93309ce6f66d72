"""How a model goes on with a prompt, with softmax and other attention, and what it remembers."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from .cache import memory_bytes
from .checks import check_count
from .llama import restore_attention, swap_attention


@dataclass(frozen=True)
class Continuation:
    """What a model wrote, greedily.

    Attributes:
        text: the new tokens as text.
        agrees: how many of the first new tokens are those of softmax.
        memory: bytes that the cache held at the end, keys and values or states.
    """

    text: str
    agrees: int
    memory: int


def continuations(
    model,
    tokenizer,
    prompt: str,
    choices: Mapping[str, object],
    *,
    layers: Iterable[int] | None = None,
    tokens: int = 30,
) -> dict[str, Continuation]:
    """Let a model go on with a prompt, first as it is, then with each of some attentions in it.

    Args:
        model, tokenizer: as `llama.load_small_model` gives them; the model is left as it was.
        prompt: what to go on with.
        choices: name -> what `llama.swap_attention` takes, a variant or a calibration.
        layers: where to put it, None for all layers.
        tokens: how many new ones, fewer where the model ends by itself.

    Returns:
        "softmax" and the names of the choices -> `Continuation`.

    Raises:
        ValueError: an empty prompt, no new tokens, a choice named "softmax"; what `swap_attention`
            raises.

    Example, once the small model is there::

        model, tokenizer = load_small_model()
        both = continuations(model, tokenizer, "The cat sat on", {"order 8": calibration})
        both["order 8"].text
    """
    if not prompt:
        raise ValueError("prompt is empty; give at least one word to go on from")
    check_count("tokens", tokens)
    if "softmax" in choices:
        raise ValueError("choices names 'softmax', which is always there; give it another name")
    layers = tuple(layers) if isinstance(layers, Iterable) else layers
    given = tokenizer(prompt, return_tensors="pt").to(model.device)
    ids, memory = _generate(model, given, tokens)
    softmax = ids
    found = {"softmax": Continuation(tokenizer.decode(ids), len(ids), memory)}
    for name, choice in choices.items():
        swap_attention(model, choice, layers)
        try:
            ids, memory = _generate(model, given, tokens)
        finally:
            restore_attention(model)
        found[name] = Continuation(tokenizer.decode(ids), _agreement(softmax, ids), memory)
    return found


def _generate(model, given, tokens: int) -> tuple[list[int], int]:
    """The new token ids, and the bytes of the cache after them."""
    options = {"do_sample": False, "max_new_tokens": tokens, "return_dict_in_generate": True}
    with torch.no_grad():
        made = model.generate(**given, **options)
    new = made.sequences[0, given["input_ids"].shape[1] :].tolist()
    return new, memory_bytes(made["cache"] if "cache" in made else made["past_key_values"])


def _agreement(a: list[int], b: list[int]) -> int:
    """How long the common beginning is.

    >>> _agreement([5, 6, 7], [5, 6, 8, 9])
    2
    """
    differs = [x != y for x, y in zip(a, b, strict=False)]
    return differs.index(True) if True in differs else len(differs)
