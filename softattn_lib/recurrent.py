"""The recurrent form: token by token, with a state of constant size."""

import torch

from .call import Call, attention_form
from .checks import check_tensors
from .state import require_features

SETTLE_EVERY = 256  # tokens summed by themselves before they join the sums of all others


@attention_form
def recurrent_attention(call: Call):
    """Attention as a recurrent network: write a token into the state, then read the state.

        S_t = exp(log_decay_t) S_{t-1} + phi(k_t)^T [v_t, 1]
        [numerator, denominator]_t = phi(q_t) S_t

    Arguments, results and errors are those of `parallel_attention`, and so are the numbers. Not
    causal: all tokens are written first, then every query reads the final state. Tokens are summed
    256 at a time before they join the rest, so that float32 sums stay right for millions of them.
    torch.compile unrolls the loop over tokens: compile it for short sequences only.

    Raises:
        ValueError: for a kernel without finite features ("exp").

    Source: the paper's H_t^n = H_{t-1}^n + (k_t^n)^T v_t and O_t = G_t sum_n q_t^n H_t^n / n!,
    where x^n is the n-fold Kronecker power.

    Example:
        >>> from softattn_lib import parallel_attention, taylor
        >>> q, k, v = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)).double()
        >>> out, state = recurrent_attention(q, k, v, kernel=taylor(2))
        >>> same, same_state = parallel_attention(q, k, v, kernel=taylor(2))
        >>> torch.allclose(out, same), torch.allclose(state.sums, same_state.sums)
        (True, True)
    """
    require_features(call.kernel, "recurrent_attention")
    settled, reads = call.first_sums(), []
    lost = torch.zeros_like(settled)
    for start in range(0, call.num_keys, SETTLE_EVERY):
        block = call.piece(start, min(start + SETTLE_EVERY, call.num_keys), call.state)
        queries = block.kernel.query_features(block.q, block.scale) if block.is_causal else None
        recent, recent_reads = _walk(block, queries, torch.zeros_like(settled))
        if call.is_causal:
            reads.append(_read_settled(block, queries, settled) + recent_reads)
        if block.log_decay is not None:
            decay = block.log_decay.sum(-1).exp()[..., None, None]
            settled, lost = settled * decay, lost * decay
        settled, lost = settle(settled, lost, recent)
    if call.is_causal:
        reads.append(call.values.new_zeros((*call.q.shape[:-2], 0, settled.shape[-1])))
        sums = torch.cat(reads, dim=-2)
    else:
        sums = read(settled, call.kernel.query_features(call.q, call.scale))
    return sums, sums.new_zeros(()), call.state_with(settled) if call.return_state else None


def _walk(block: Call, queries, state):
    """Token by token, write it into the state, then read: (state, reads (..., G, T_q, e+1)).

    queries: the features of the block's queries, (..., G, T_q, D); not causal: None.
    """
    reads = [block.values.new_zeros((*block.q.shape[:-2], 0, state.shape[-1]))]
    keys, values = block.kernel.key_features(block.k).unbind(-2), block.values.unbind(-2)
    decays = [None] * len(keys) if block.log_decay is None else block.log_decay.unbind(-1)
    queries = queries.split(1, -2) if block.is_causal else ()
    for t, token in enumerate(zip(keys, values, decays, strict=True)):
        state = write(state, *token)
        if block.is_causal and t >= block.offset:
            reads.append(read(state, queries[t - block.offset]))
    return state, torch.cat(reads, dim=-2)


def _read_settled(block: Call, queries, settled):
    """What the queries of a block read from the sums before it, (..., G, T_q, e+1)."""
    past = read(settled, queries)
    if block.log_decay is None:
        return past
    return past * block.log_decay.cumsum(-1)[..., block.offset :].exp()[..., None, :, None]


def settle(settled, lost, recent):
    """Add the recent sums to the settled ones, with what rounding lost: (settled, lost).

    Sums over millions of tokens are so large that single tokens are lost beside them. So tokens
    are summed by themselves for a while, and the rounding error of adding that (Dekker's
    Fast2Sum) is kept for the next time. No gradient goes into the error: exactly, it is 0.
    """
    recent = recent + lost
    total = settled + recent
    return total, (recent - (total - settled)).detach()


def write(state, key_features, value, log_decay=None):
    """state (..., D, e+1), key_features (..., D), value (..., e+1), log_decay (...) -> state."""
    if log_decay is not None:
        state = state * log_decay.exp()[..., None, None]
    return torch.addcmul(state, key_features.unsqueeze(-1), value.unsqueeze(-2))


def read(state, query_features):
    """state (..., D, e+1), query_features (..., G, T_q, D) -> (..., G, T_q, e+1)."""
    return query_features @ state.unsqueeze(-3)


def _write_and_read(call: Call):
    """One token, with plain sums."""
    kernel = require_features(call.kernel, "attention_step")
    log_decay = None if call.log_decay is None else call.log_decay.squeeze(-1)
    key = kernel.key_features(call.k.squeeze(-2))
    state = write(call.first_sums(), key, call.values.squeeze(-2), log_decay)
    sums = read(state, kernel.query_features(call.q, call.scale))
    return sums, sums.new_zeros(()), call.state_with(state)


_step = attention_form(_write_and_read, "attention_step")


def attention_step(q, k, v, state, **options):
    """One token of recurrent attention, for decoding.

    Args:
        q, k, v: (..., d), (..., d), (..., e): one token, no time axis.
        state: the `AttentionState` before this token, from `init_state` or any form. None is an
            empty past.
        options: the keywords of `parallel_attention`; gates, log_decay and key_mask are (...),
            one number per head.

    Returns:
        (out, state): (..., e) and the state after this token; the given one is left as it was.
        Sums are plain, and drift in float32: where keys and values have a mean of 1, by 2e-6 of
        the state after 100,000 tokens, by 3e-4 after 10 million, and beyond 2**24 a count of
        tokens stands still. `Decoder` and `recurrent_attention` do not drift.

    Raises:
        ValueError, TypeError: as `parallel_attention`; TypeError for is_causal and initial_state,
            which one token does not have.

    Example:
        >>> from softattn_lib import init_state, taylor
        >>> q, k, v = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
        >>> state = init_state(taylor(2), d=4, e=4)
        >>> for t in range(5):
        ...     out, state = attention_step(q[t], k[t], v[t], state, kernel=taylor(2))
        >>> torch.allclose(out, recurrent_attention(q, k, v, kernel=taylor(2))[0][-1])
        True
    """
    for name in ("is_causal", "initial_state", "return_state"):
        if name in options:
            raise TypeError(f"attention_step has no option {name!r}: only a state")
    check_tensors(q, k, v, is_step=True)
    for name in ("input_gate", "output_gate", "log_decay", "key_mask"):
        if isinstance(options.get(name), torch.Tensor):
            options[name] = options[name].unsqueeze(-1)
    token = (x.unsqueeze(-2) for x in (q, k, v))
    out, state = _step(*token, initial_state=state, **options)
    return out.squeeze(-2), state
