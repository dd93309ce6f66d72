"""How much memory a computation needs at its peak: counted, not guessed from the process."""

from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves


def peak_bytes(function) -> int:
    """Bytes that a call of `function` needs at its peak beyond its inputs and its results.

    Every allocation and release of torch's CPU allocator is counted, those inside operations too;
    only what the matrix library takes for itself is not seen. The results are the tensors that
    `function` returns, the gradients of a training step for instance.

    Example:
        >>> import torch
        >>> peak_bytes(lambda: torch.zeros(1000).exp())  # the zeros: 4000 bytes beside the result
        4000
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        results = {tensor.untyped_storage() for tensor in tree_leaves(function())}
    live = peak = 0
    for _, nbytes in sorted(_allocations(record)):
        live += nbytes
        peak = max(peak, live)
    return peak - sum(storage.nbytes() for storage in results)


def _allocations(record):
    """(time, bytes) of every allocation, and of every release with negative bytes."""
    for event in record.profiler.kineto_results.events():
        if event.name() == "[memory]":
            yield event.start_ns(), event.nbytes()
