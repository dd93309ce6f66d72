"""The formula of the library written as plain loops, sharing no code with it: an oracle."""

import math

import torch


def attention(q, k, v, *, weight, divide, scale, input_gate=None, output_gate=None,
              gate_position="after", log_decay=None, is_causal=True, key_mask=None):  # fmt: skip
    """q (T_q, d), k (T_k, d), v (T_k, e), one head; weight(q_t, k_s, scale) -> a number.

    divide(numerator, denominator, visible) -> (e,) stands for the normalizer.
    """
    num_queries, num_keys = len(q), len(k)
    visible_key = [True] * num_keys if key_mask is None else key_mask.tolist()
    out = torch.zeros(num_queries, v.shape[-1], dtype=v.dtype)
    for t in range(num_queries):
        last = num_keys - num_queries + t if is_causal else num_keys - 1
        numerator, denominator, visible = torch.zeros_like(v[0]), 0.0, 0
        for s in range(last + 1):
            if not visible_key[s]:
                continue
            w = weight(q[t], k[s], scale)
            if log_decay is not None:
                later = [log_decay[u].item() for u in range(s + 1, last + 1) if visible_key[u]]
                w = w * math.exp(sum(later))
            value = v[s] if input_gate is None else v[s] * input_gate[s]
            numerator, denominator, visible = numerator + w * value, denominator + w, visible + 1
        if output_gate is not None and gate_position == "before":
            numerator = numerator * output_gate[t]
        if visible:
            out[t] = divide(numerator, denominator, visible)
        if output_gate is not None and gate_position == "after":
            out[t] = out[t] * output_gate[t]
    return out
