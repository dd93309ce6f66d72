"""The cumulative-sum formulation: the state of every token in memory, T x D x (e+1) numbers.

The usual way to write causal linear attention in parallel: outer products, their running sum, one
read per token.
"""

import torch

from softattn_lib import Kernel


def cumulative_attention(q, k, v, kernel: Kernel) -> torch.Tensor:
    """Causal attention with the normalizer "sum": q, k (..., T, d), v (..., T, e) -> (..., T, e).

    Example:
        >>> from softattn_lib import PolynomialKernel, chunked_attention, taylor
        >>> q, k, v = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0)).double()
        >>> out = cumulative_attention(q, k, v, PolynomialKernel(taylor(2)))
        >>> torch.allclose(out, chunked_attention(q, k, v, kernel=taylor(2))[0])
        True
    """
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
    written = torch.einsum("...d, ...e -> ...de", kernel.key_features(k), values)
    states = written.cumsum(dim=-3)  # (..., T, D, e+1)
    queries = kernel.query_features(q, q.shape[-1] ** -0.5)
    sums = torch.einsum("...d, ...de -> ...e", queries, states)
    return sums[..., :-1] / sums[..., -1:]
