"""Checks of tensors and shapes, with errors that say what was given and what is legal."""

import torch


def check_tensors(q, k, v, is_step: bool = False) -> None:
    """q, k, v are floating point tensors with a width and a time axis, of one dtype and device."""
    legal, axes = ("(..., width)", 1) if is_step else ("(..., T, width)", 2)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(tensor).__name__}")
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.dim() < axes:
            raise ValueError(f"{name} must be {legal}, got shape {tuple(tensor.shape)}")
        if tensor.dtype != q.dtype or tensor.device != q.device:
            raise ValueError(
                f"q, k, v must share dtype and device; q has {q.dtype} on {q.device}, "
                f"{name} has {tensor.dtype} on {tensor.device}"
            )


def check_shapes(q, k, v, enable_gqa, is_causal) -> tuple[int, ...]:
    """Check the shapes against each other; return the leading shape of grouped queries."""
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.shape[-1] != k.shape[-1] or q.shape[-1] == 0:
        raise ValueError(f"q and k must have the same width d >= 1 in the last axis; got {shapes}")
    if k.shape[:-1] != v.shape[:-1] or v.shape[-1] == 0:
        raise ValueError(f"v must be (..., T_k, e) with k's leading axes and T_k; got {shapes}")
    if is_causal and q.shape[-2] > k.shape[-2]:
        raise ValueError(
            f"a causal call needs at most as many queries as keys, got T_q={q.shape[-2]} > "
            f"T_k={k.shape[-2]}; the last query stands at the last key"
        )
    if not enable_gqa:
        if q.shape[:-2] != k.shape[:-2]:
            raise ValueError(
                "q and k must have the same leading axes (for fewer key heads than query heads "
                f"pass enable_gqa=True); got {shapes}"
            )
        return (*q.shape[:-2], 1)
    if q.dim() < 3 or q.dim() != k.dim() or q.shape[:-3] != k.shape[:-3]:
        raise ValueError(
            f"enable_gqa=True needs q (..., H_q, T_q, d) and k (..., H_k, T_k, d); got {shapes}"
        )
    query_heads, key_heads = q.shape[-3], k.shape[-3]
    if key_heads == 0 or query_heads % key_heads:
        raise ValueError(
            f"enable_gqa=True needs H_q divisible by H_k, got H_q={query_heads}, H_k={key_heads}"
        )
    return (*k.shape[:-2], query_heads // key_heads)


def check_count(name: str, value, alternative: str = "") -> None:
    """An integer >= 1; `alternative` says what else is legal, which the caller lets through."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1{alternative}, got {value!r}")


def expand(name, tensor, shape, dtype):
    """A gate, decay or mask at its full shape; None stays None."""
    if tensor is None:
        return None
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a tensor or None, got {type(tensor).__name__}")
    if (tensor.dtype == torch.bool) != (dtype == torch.bool) or tensor.is_complex():
        legal = "boolean, True = visible" if dtype == torch.bool else "real numbers"
        raise TypeError(f"{name} must be {legal}, got {tensor.dtype}")
    try:
        return tensor.to(dtype).expand(shape)
    except RuntimeError:
        raise ValueError(
            f"{name} must broadcast to {tuple(shape)}, one number per head and token; "
            f"got shape {tuple(tensor.shape)}"
        ) from None
