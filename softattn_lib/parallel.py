"""The parallel form: all pairs of queries and keys at once, T_q x T_k weights."""

import torch
import torch.nn.functional as F

from .call import Call, attention_form
from .checks import check_shapes, check_tensors, expand
from .kernels import ExpKernel
from .recurrent import read
from .state import resolve_scale


@attention_form
def parallel_attention(call: Call):
    """Attention by its T_q x T_k matrix of weights.

        out_t = output_gate_t * NORMALIZER( sum_{s <= t} KERNEL(score_ts) * decay_{s..t} *
                                            input_gate_s * v_s )

    The recurrent and the chunked form take the same arguments and give the same numbers.

    Args:
        q: (..., T_q, d) queries, floating point; leading axes are free, as in
            torch.nn.functional.scaled_dot_product_attention.
        k: (..., T_k, d) keys, same dtype and device.
        v: (..., T_k, e) values; e need not be d.
        kernel: a `Polynomial` such as `taylor(4)`, a kernel object, or "exp", "identity", "relu",
            "elu_plus_one", "cosine".
        normalizer: "sum", "visible_keys", "none", "l2", "rms", "layer", or a normalizer object.
        scale: multiplies the score q . k; None means d ** -0.5.
        input_gate: (..., T_k) or broadcastable, multiplies v, not the denominator.
        output_gate: (..., T_q) or broadcastable, multiplies the output.
        gate_position: "after" the normalizer, or "before" it, on the numerator.
        log_decay: (..., T_k) or broadcastable: S_t = exp(log_decay_t) S_{t-1} + phi(k_t) [v_t, 1],
            so that a token enters undecayed. Works on numerator and denominator.
        is_causal: query t sees the keys up to its own; with T_q < T_k the last query stands at the
            last key. False: every query sees all keys (and reads the final state).
        enable_gqa: q has a multiple of k's heads (third axis from the end), consecutive query
            heads share a key head.
        key_mask: (..., T_k) bool or broadcastable, True = visible. A masked token leaves no trace;
            its query still reads the past.
        initial_state: the final state of the tokens before these, from any form.
        return_state: False saves the work (and the memory) of the final state; the chunked form
            needs states between its chunks all the same.

    Returns:
        (out, final_state): out (..., T_q, e) in the dtype of q; sums are kept in float32, or in
        float64 for float64 inputs. final_state is an `AttentionState`, or None for the kernel
        "exp" and with return_state=False. A row that sees no key gives zeros.

    Raises:
        ValueError, TypeError: an argument of wrong shape, type or value, named.
        OverflowError: finite inputs whose weights or sums leave the range of the dtype.

    Warns:
        SignedWeightsWarning: "sum" with weights of both signs.

    Source: the paper's O_t = G_t sum_s exp(q_t . k_s) v_s, with exp and G_t made replaceable.

    Example:
        >>> from softattn_lib import taylor
        >>> q, k, v = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))
        >>> out, state = parallel_attention(q, k, v, kernel=taylor(10))
        >>> out.shape, state.sums.shape
        (torch.Size([2, 5, 4]), torch.Size([2, 1001, 5]))
        >>> bool((out - softmax_attention(q, k, v)).abs().max() < 1e-2)
        True
    """
    return accumulate_parallel(call)


def softmax_attention(q, k, v, *, scale=None, is_causal=True, enable_gqa=False, key_mask=None):
    """Softmax attention through torch.nn.functional.scaled_dot_product_attention.

    As the forms of this library, and unlike SDPA alone: causal by default, the last query stands
    at the last key when T_q < T_k, and a row that sees no key gives zeros.

    Args:
        q, k, v: (..., T_q, d), (..., T_k, d), (..., T_k, e).
        scale: None means d ** -0.5.
        is_causal, enable_gqa, key_mask: as in `parallel_attention`.

    Returns:
        (..., T_q, e), the output alone: softmax attention has no finite state.

    Raises:
        ValueError, TypeError: as `parallel_attention`.

    Example:
        >>> x = torch.eye(2)
        >>> softmax_attention(x, x, x, scale=1.0)[0]  # the first token sees itself only
        tensor([1., 0.])
    """
    check_tensors(q, k, v)
    check_shapes(q, k, v, enable_gqa, is_causal)
    options = {"scale": resolve_scale(scale, q.shape[-1]), "enable_gqa": enable_gqa}
    key_mask = expand("key_mask", key_mask, k.shape[:-1], torch.bool)
    same_mask_as_sdpa = not is_causal or q.shape[-2] == k.shape[-2]
    if key_mask is None and same_mask_as_sdpa and k.shape[-2] > 0:
        four = map(_with_four_axes, (q, k, v))
        out = F.scaled_dot_product_attention(*four, is_causal=is_causal, **options)
        return out.reshape(*q.shape[:-1], v.shape[-1])
    if key_mask is not None:  # a weight of 0 does not hide a NaN
        k, v = (x.masked_fill(~key_mask.unsqueeze(-1), 0) for x in (k, v))
        if enable_gqa:
            key_mask = key_mask.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-2)
        key_mask = key_mask.unsqueeze(-2)
    hidden = _hidden_pairs(q.shape[-2], k.shape[-2], is_causal, key_mask, q.device)
    sees_nothing = hidden.all(-1, keepdim=True)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=~hidden | sees_nothing, **options)
    return out.masked_fill(sees_nothing, 0)


def _with_four_axes(x):
    """(..., H, T, width) -> (B, H, T, width): torch is ten times slower on three axes or five."""
    heads = x.shape[-3] if x.dim() > 2 else 1
    return x.reshape(x.shape[:-3].numel(), heads, *x.shape[-2:])


def accumulate_parallel(call: Call):
    """(sums, log_unit, final_state) of a call, see `attention_form`."""
    weights, log_unit = _pair_weights(call)
    sums = weights @ call.values.unsqueeze(-3)
    if call.state is not None:
        sums = sums + _read_past(call)
    return sums, log_unit, final_state(call) if call.return_state else None


def _pair_weights(call: Call):
    """Weights of all pairs, (..., G, T_q, T_k), masked and decayed, in units of exp(log_unit)."""
    key_mask = None if call.key_mask is None else call.key_mask.unsqueeze(-2).unsqueeze(-2)
    sizes = (call.q.shape[-2], call.num_keys)
    hidden = _hidden_pairs(*sizes, call.is_causal, key_mask, call.q.device)
    log_decay = _pair_log_decay(call)
    scores = call.kernel.scores(call.q, call.k.unsqueeze(-3), call.scale).masked_fill(hidden, 0)
    if not isinstance(call.kernel, ExpKernel):
        weights = call.kernel.weight(scores).masked_fill(hidden, 0)
        weights = weights if log_decay is None else weights * log_decay.exp()
        return weights, weights.new_zeros(())
    log_weights = call.kernel.log_weight(scores).masked_fill(hidden, -torch.inf)
    log_weights = log_weights if log_decay is None else log_weights + log_decay
    log_unit = log_weights.new_zeros(())
    if call.normalizer.cancels_unit and call.num_keys:
        log_unit = log_weights.detach().amax(-1, keepdim=True)
        log_unit = log_unit.masked_fill(log_unit == -torch.inf, 0)
    return (log_weights - log_unit).exp(), log_unit


def _hidden_pairs(num_queries: int, num_keys: int, is_causal, key_mask, device) -> torch.Tensor:
    """(..., T_q, T_k): True where a query must not see a key; key_mask is (..., 1, T_k) or None."""
    if is_causal:
        hidden = _future(num_queries, num_keys, device)
    else:
        hidden = torch.zeros(num_queries, num_keys, dtype=torch.bool, device=device)
    return hidden if key_mask is None else hidden | ~key_mask


def _future(num_queries: int, num_keys: int, device) -> torch.Tensor:
    """(T_q, T_k): True where a key comes after the query; the last ones stand at one position."""
    ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return ones.triu(num_keys - num_queries + 1)


def _pair_log_decay(call: Call):
    """(..., 1, T_q, T_k): sum of log_decay after the key up to the query, None without decay.

    Each column is a running sum of its own, not a difference of two: a log_decay of minus
    infinity, which forgets everything, then works, and small differences keep their digits.
    """
    if call.log_decay is None:
        return None
    if not call.is_causal:  # every query reads the final state
        return _decay_to_end(call.log_decay).unsqueeze(-2).unsqueeze(-2)
    size = call.num_keys
    steps = call.log_decay.unsqueeze(-1).expand(*call.log_decay.shape, size)
    after_key = torch.ones(size, size, dtype=torch.bool, device=steps.device).tril(-1)
    sums = steps.masked_fill(~after_key, 0).cumsum(-2)
    return sums[..., call.offset :, :].unsqueeze(-3)


def _decay_to_end(log_decay: torch.Tensor) -> torch.Tensor:
    """(..., T): the sum of log_decay over the tokens after each token."""
    after = F.pad(log_decay[..., 1:], (0, 1)) if log_decay.shape[-1] else log_decay
    return after.flip(-1).cumsum(-1).flip(-1)


def _read_past(call: Call) -> torch.Tensor:
    """What the queries read from the state before the first key, (..., G, T_q, e+1)."""
    past = read(call.state.sums, call.kernel.query_features(call.q, call.scale))
    if call.log_decay is None:
        return past
    if call.is_causal:
        decay = call.log_decay.cumsum(-1)[..., call.offset :]
    else:
        decay = call.log_decay.sum(-1, keepdim=True)
    return past * decay.exp().unsqueeze(-2).unsqueeze(-1)


def final_state(call: Call):
    """The state after the last key: the decayed past plus this call's keys and values."""
    features, past = call.kernel.key_features(call.k), call.first_sums()
    if call.log_decay is not None:
        features = features * _decay_to_end(call.log_decay).exp().unsqueeze(-1)
        past = past * call.log_decay.sum(-1).exp()[..., None, None]
    return call.state_with(past + features.transpose(-1, -2) @ call.values)
