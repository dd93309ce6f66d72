"""Our memory of a layer in the place that transformers' cache keeps for keys and values."""

from collections.abc import Callable

from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from softattn_lib.layers import LayerMemory


class MemoryLayer(CacheLayerMixin):
    """A `LayerMemory` in the place that transformers keeps for keys and values."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.memory: LayerMemory | None = None
        self.length = 0

    def remember(self, memory: LayerMemory, new_tokens: int) -> None:
        self.memory, self.length = memory, self.length + new_tokens
        self.is_initialized = True

    def get_seq_length(self) -> int:
        return self.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.memory, self.length, self.is_initialized = None, 0, False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._select(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._select(lambda x: x.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._select(lambda x: x[indices])

    def _select(self, choose: Callable) -> None:
        if self.memory is not None:
            self.memory = self.memory.map(choose)

    def lazy_initialization(self, key_states, value_states) -> None:
        raise NotImplementedError("a swapped layer remembers by itself")

    def update(self, key_states, value_states, *args, **kwargs):
        raise NotImplementedError("a swapped layer remembers by itself")


def memory_layer(cache, index: int):
    """The cache's layer that holds our memory; a fresh one takes the place of an empty default."""
    if cache.layer_class_to_replicate is not None:
        while len(cache.layers) <= index:
            cache.layers.append(cache.layer_class_to_replicate())
    if not isinstance(cache.layers[index], MemoryLayer):
        if cache.layers[index].get_seq_length() > 0:
            raise ValueError(
                f"cache was filled for layer {index} before its attention was swapped; "
                "pass a new one"
            )
        cache.layers[index] = MemoryLayer()
    return cache.layers[index]


def memory_bytes(cache) -> int:
    """Bytes that a model's cache holds: states of constant size, or keys and values.

    Args:
        cache: a transformers ``Cache``, for instance a ``DynamicCache`` that a model has filled.

    >>> from transformers import DynamicCache
    >>> memory_bytes(DynamicCache())
    0
    """
    return sum(_layer_bytes(layer) for layer in cache.layers if layer.is_initialized)


def _layer_bytes(layer) -> int:
    if isinstance(layer, MemoryLayer):
        return layer.memory.nbytes
    return sum(x.numel() * x.element_size() for x in (layer.keys, layer.values))
