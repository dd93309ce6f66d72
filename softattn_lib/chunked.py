"""The chunked form: quadratic inside a chunk, a state between chunks."""

import torch

from .call import Call, attention_form
from .checks import check_count
from .kernels import PolynomialKernel
from .parallel import accumulate_parallel, final_state
from .recurrent import read
from .scan import scan
from .state import require_features


@attention_form
def chunked_attention(call: Call, *, chunk_size=None):
    """Attention chunk by chunk: the parallel form on each, continuing the state of the last one.

    Work grows linearly with T and most of it is matrix products. Arguments, results and errors are
    those of `parallel_attention`, and so are the numbers.

    A polynomial of the score takes the fast path of scan.py, unless it is unpacked or decays: there
    a training step keeps few states and no features; second-order gradients and forward-mode
    derivatives are refused.

    Args:
        chunk_size: tokens per chunk, >= 1; None means `default_chunk_size` of the kernel.

    Raises:
        ValueError: for a kernel without finite features ("exp"), or chunk_size < 1.

    Example:
        >>> from softattn_lib import parallel_attention, taylor
        >>> q, k, v = torch.randn(3, 50, 4, generator=torch.Generator().manual_seed(0)).double()
        >>> out, state = chunked_attention(q, k, v, kernel=taylor(2), chunk_size=16)
        >>> torch.allclose(out, parallel_attention(q, k, v, kernel=taylor(2))[0])
        True
    """
    require_features(call.kernel, "chunked_attention")
    size = chunk_size
    if size is None:
        size = default_chunk_size(call.kernel.num_features(call.k.shape[-1]))
    check_count("chunk_size", size, " or None")
    return _by_scan(call, size) if _has_scan(call) else _by_pieces(call, size)


def _by_pieces(call: Call, size: int):
    """Any kernel: the parallel form on each chunk."""
    state, reads = call.state, []
    for start in range(0, max(call.num_keys, 1), size):
        piece = call.piece(start, min(start + size, call.num_keys), state)
        if call.is_causal:
            sums, _, state = accumulate_parallel(piece)
            reads.append(sums)
        else:
            state = final_state(piece)
    if call.is_causal:
        sums = torch.cat(reads, dim=-2)
    else:
        sums = read(state.sums, call.kernel.query_features(call.q, call.scale))
    return sums, sums.new_zeros(()), state if call.return_state else None


def _has_scan(call: Call) -> bool:
    kernel = call.kernel
    return type(kernel) is PolynomialKernel and kernel.packed and call.log_decay is None


def _by_scan(call: Call, size: int):
    """A polynomial without decay: the fast path."""
    kernel, past = call.kernel, call.first_sums()
    tensors = (call.q, call.k, call.values, past.mT)
    batch = call.k.shape[:-2].numel()
    flat = [x.reshape(batch, *x.shape[call.k.dim() - 2 :]) for x in tensors]
    sums, final = scan(*flat, kernel.polynomial, call.scale, size, call.is_causal)
    sums = sums.reshape(*call.q.shape[:-1], sums.shape[-1])
    final = final.mT.reshape(past.shape).contiguous()
    state = call.state_with(final) if call.return_state else None
    return sums, sums.new_zeros(()), state


def default_chunk_size(num_features: int) -> int:
    """Tokens per chunk: the more, the larger the state, whose cost a longer chunk spreads.

    Measured on a CPU: 64 was fastest for D up to 969 features, 128 for D = 2145, 256 for D = 4845,
    all by less than a tenth.
    """
    return 64 if num_features < 1000 else 128 if num_features < 4000 else 256
