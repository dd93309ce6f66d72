"""The chunked form: quadratic inside a chunk, a state between chunks."""

import torch

from .call import Call, attention_form
from .parallel import accumulate_parallel, final_state
from .recurrent import read
from .state import require_features

DEFAULT_CHUNK_SIZE = 128


@attention_form
def chunked_attention(call: Call, *, chunk_size=None):
    """Attention chunk by chunk: the parallel form on each, continuing the state of the last one.

    Work grows linearly with T and most of it is matrix products. Arguments, results and errors are
    those of `parallel_attention`, and so are the numbers.

    Args:
        chunk_size: tokens per chunk, >= 1; None means 128.

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
    size = DEFAULT_CHUNK_SIZE if chunk_size is None else chunk_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"chunk_size must be an integer >= 1 or None, got {chunk_size!r}")
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
