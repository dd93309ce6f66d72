"""The recurrent form: token by token, with a state of constant size."""

import torch

from .call import Call, attention_form
from .checks import check_tensors
from .state import require_features


@attention_form
def recurrent_attention(call: Call):
    """Attention as a recurrent network: write a token into the state, then read the state.

        S_t = exp(log_decay_t) S_{t-1} + phi(k_t)^T [v_t, 1]
        [numerator, denominator]_t = phi(q_t) S_t

    Arguments, results and errors are those of `parallel_attention`, and so are the numbers. Not
    causal: all tokens are written first, then every query reads the final state.

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
    kernel = require_features(call.kernel, "recurrent_attention")
    state, reads = call.first_sums(), []
    for t in range(call.num_keys):
        state = write(
            state,
            kernel.key_features(call.k[..., t, :]),
            call.values[..., t, :],
            None if call.log_decay is None else call.log_decay[..., t],
        )
        if call.is_causal and t >= call.offset:
            query = call.q[..., t - call.offset, :].unsqueeze(-2)
            reads.append(read(state, kernel.query_features(query, call.scale)))
    if call.is_causal:
        reads.append(call.values.new_zeros((*call.q.shape[:-2], 0, state.shape[-1])))
        sums = torch.cat(reads, dim=-2)
    else:
        sums = read(state, kernel.query_features(call.q, call.scale))
    return sums, sums.new_zeros(()), call.state_with(state) if call.return_state else None


def write(state, key_features, value, log_decay=None):
    """state (..., D, e+1), key_features (..., D), value (..., e+1), log_decay (...) -> state."""
    if log_decay is not None:
        state = state * log_decay.exp()[..., None, None]
    return state + key_features.unsqueeze(-1) * value.unsqueeze(-2)


def read(state, query_features):
    """state (..., D, e+1), query_features (..., G, T_q, D) -> (..., G, T_q, e+1)."""
    return query_features @ state.unsqueeze(-3)


def attention_step(q, k, v, state, **options):
    """One token of recurrent attention, for decoding.

    Args:
        q, k, v: (..., d), (..., d), (..., e): one token, no time axis.
        state: the `AttentionState` before this token, from `init_state` or any form.
        options: the keywords of `parallel_attention`; gates, log_decay and key_mask are (...),
            one number per head.

    Returns:
        (out, state): (..., e) and the state after this token; the given one is left as it was.

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
    out, state = recurrent_attention(*token, initial_state=state, **options)
    return out.squeeze(-2), state
