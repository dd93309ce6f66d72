"""Sequences of many lengths in one tensor, end to end, cut by `cu_seqlens`.

Sequences of nearly the same length are padded to the longest of them and go through attention
together, one batch for each power of two: less than twice the tokens, and few calls.
"""

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from .checks import expand
from .numerics import state_dtype
from .state import AttentionState


@dataclass(frozen=True)
class Bucket:
    """Sequences that are padded to one length.

    Attributes:
        sequences: their numbers.
        length: of the longest.
    """

    sequences: tuple[int, ...]
    length: int


def check_edges(cu_seqlens, num_queries: int, num_keys: int) -> list[int]:
    """The cumulative lengths as a list of integers: sequence i holds tokens edges[i]..edges[i+1].

    Args:
        cu_seqlens: (N + 1,) int32 or int64: 0, then the end of each of N sequences.
        num_queries, num_keys: T_q and T_k of the tensors that it cuts.

    Raises:
        TypeError, ValueError: if it does not cut them, saying why.

    Example:
        >>> check_edges(torch.tensor([0, 3, 3, 5]), 5, 5)
        [0, 3, 3, 5]
    """
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"cu_seqlens must be a tensor or None, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be int32 or int64, got {cu_seqlens.dtype}")
    if cu_seqlens.dim() != 1 or len(cu_seqlens) == 0:
        raise ValueError(f"cu_seqlens must be (N + 1,), got shape {tuple(cu_seqlens.shape)}")
    if num_queries != num_keys:
        raise ValueError(
            "cu_seqlens cuts queries and keys alike, so T_q must equal T_k; "
            f"got T_q={num_queries}, T_k={num_keys}"
        )
    edges = cu_seqlens.tolist()
    if edges[0] != 0:
        raise ValueError(f"cu_seqlens must start with 0, got {edges[0]}")
    for before, after in pairwise(edges):
        if after < before:
            raise ValueError(f"cu_seqlens must not decrease, got {before} before {after}")
    if edges[-1] != num_keys:
        raise ValueError(
            f"cu_seqlens must end with the number of tokens, {num_keys}, got {edges[-1]}"
        )
    return edges


def buckets(edges: list[int]) -> list[Bucket]:
    """Sequences with the same number of binary digits in their length, together.

    Example:
        >>> buckets([0, 3, 5, 105])  # lengths 3, 2, 100
        [Bucket(sequences=(0, 1), length=3), Bucket(sequences=(2,), length=100)]
    """
    lengths = [stop - start for start, stop in pairwise(edges)]
    alike = defaultdict(list)
    for i, length in enumerate(lengths):
        alike[length.bit_length()].append(i)
    if not lengths:  # one empty batch, so that results have their shapes
        return [Bucket((), 0)]
    return [Bucket(tuple(ids), max(lengths[i] for i in ids)) for ids in alike.values()]


def attend_by_length(
    attend, q, k, v, edges: list[int], hides_padding, *, initial_state=None, **options
):
    """`attend(q, k, v, **options)` on each sequence by itself.

    Args:
        attend: a form of attention; its key_mask hides the padding.
        q, k, v: (..., T_total, d), (..., T_total, d), (..., T_total, e).
        edges: as `check_edges` returns them, for N sequences.
        hides_padding: whether tokens that are padded behind a sequence have to be masked.
        initial_state: sums (N, ..., D, e+1), one state for each sequence, or None.
        options: of `attend`; those of each token are (..., T_total) or broadcastable.

    Returns:
        (out, final_state): (..., T_total, e), and a state with N in front, as initial_state has it.
    """
    _check_states(initial_state, len(edges) - 1)
    per_token = _at_full_shape(q, k, options)
    outs, states, tokens, sequences = [], [], [], []
    for bucket in buckets(edges):
        index, is_token = _positions(edges, bucket, q.device)
        own = {name: x if x is None else _take(x, index, -1) for name, x in per_token.items()}
        if hides_padding and not is_token.all():
            visible = is_token.view(len(is_token), *[1] * (k.dim() - 2), bucket.length)
            mask = own["key_mask"]
            own["key_mask"] = visible if mask is None else mask & visible
        if initial_state is not None:
            own["initial_state"] = _map(initial_state, lambda x, at=bucket.sequences: x[list(at)])
        out, state = attend(*(_take(x, index, -2) for x in (q, k, v)), **{**options, **own})
        outs.append(out.movedim(0, -3).flatten(-3, -2)[..., is_token.flatten(), :])
        states.append(state)
        tokens.append(index[is_token])
        sequences.extend(bucket.sequences)
    out = torch.cat(outs, dim=-2)[..., torch.cat(tokens).argsort(), :]
    if states[0] is None:
        return out, None
    order = torch.tensor(sequences, dtype=torch.int64, device=q.device).argsort()
    sums, visible = (
        torch.cat([getattr(state, name) for state in states])[order] for name in ("sums", "visible")
    )
    return out, replace(states[0], sums=sums, visible=visible)


def _at_full_shape(q, k, options) -> dict:
    """The options that have one number for each token, with all their axes."""
    dtype = state_dtype(q.dtype)
    kinds = {
        "input_gate": (k.shape[:-1], dtype),
        "output_gate": (q.shape[:-1], dtype),
        "log_decay": (k.shape[:-1], dtype),
        "key_mask": (k.shape[:-1], torch.bool),
    }
    return {name: expand(name, options.get(name), *kind) for name, kind in kinds.items()}


def _positions(edges, bucket: Bucket, device):
    """(sequences, length): which token stands where, and whether one does; padding repeats some."""
    ends = torch.tensor(edges, dtype=torch.int64, device=device)
    ids = torch.tensor(bucket.sequences, dtype=torch.int64, device=device)
    positions = ends[ids].unsqueeze(-1) + torch.arange(bucket.length, device=device)
    last = ends[ids + 1].unsqueeze(-1) - 1
    return positions.minimum(last), positions <= last


def _take(x, index, axis: int):
    """The tokens of a bucket as a batch in front: T_total on `axis` -> (sequences, ..., length)."""
    taken = x.index_select(axis, index.flatten()).unflatten(axis, index.shape)
    return taken.movedim(axis - 1, 0)


def _map(state: AttentionState, function) -> AttentionState:
    return replace(state, sums=function(state.sums), visible=function(state.visible))


def _check_states(state, num_sequences: int) -> None:
    if state is None:
        return
    if not isinstance(state, AttentionState):
        raise TypeError(f"initial_state must be an AttentionState, got {type(state).__name__}")
    if state.sums.shape[0] != num_sequences:
        raise ValueError(
            f"initial_state must hold one state for each of the {num_sequences} sequences of "
            f"cu_seqlens on its first axis; its sums have shape {tuple(state.sums.shape)}"
        )
