"""One boundary for the three forms: arguments are checked and defaults resolved here, once.

`attention_form` turns a function that accumulates sums into a public form. Inside, heads are
grouped (G query heads share a key head; G = 1 without grouped queries), everything is in the dtype
of the state, masked tokens are zeroed, and values carry the column of ones of the denominator:

    q (..., G, T_q, d)    k (..., T_k, d)    values (..., T_k, e+1) = [input_gate * v, 1]
"""

import functools
import inspect
import math
import warnings
from dataclasses import dataclass, replace

import torch

from .checks import check_shapes, check_tensors, expand
from .kernels import Kernel, as_kernel
from .normalizers import Normalizer, as_normalizer
from .numerics import state_dtype
from .state import AttentionState, empty_sums, require_features, resolve_scale


class SignedWeightsWarning(UserWarning):
    """Weights of both signs are divided by their sum, which can vanish."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of attention after the boundary."""

    q: torch.Tensor  # (..., G, T_q, d)
    k: torch.Tensor  # (..., T_k, d)
    values: torch.Tensor  # (..., T_k, e+1)
    key_mask: torch.Tensor | None  # (..., T_k) bool
    log_decay: torch.Tensor | None  # (..., T_k)
    output_gate: torch.Tensor | None  # (..., T_q, 1), with the heads of q
    kernel: Kernel
    normalizer: Normalizer
    scale: float
    gate_position: str
    is_causal: bool
    state: AttentionState | None  # the past before the first key; None where there is none
    return_state: bool

    @property
    def num_keys(self) -> int:
        return self.k.shape[-2]

    @property
    def offset(self) -> int:
        """The key position of the first query: the last query stands at the last key."""
        return self.num_keys - self.q.shape[-2]

    def piece(self, start: int, stop: int, state: AttentionState) -> "Call":
        """The call on the keys start..stop, continuing `state`; if causal, on their queries."""
        keys, queries = slice(start, stop), slice(None)
        if self.is_causal:
            queries = slice(max(start - self.offset, 0), max(stop - self.offset, 0))
        return replace(
            self,
            q=self.q[..., queries, :],
            k=self.k[..., keys, :],
            values=self.values[..., keys, :],
            key_mask=None if self.key_mask is None else self.key_mask[..., keys],
            log_decay=None if self.log_decay is None else self.log_decay[..., keys],
            state=state,
            return_state=True,
        )

    def first_sums(self) -> torch.Tensor:
        """The sums of the state before the first key, zeros for an empty past."""
        if self.state is not None:
            return self.state.sums
        *batch_shape, _, d = self.k.shape
        e, like = self.values.shape[-1] - 1, {"dtype": self.k.dtype, "device": self.k.device}
        return empty_sums(self.kernel, batch_shape, d, e, **like)

    def state_with(self, sums: torch.Tensor) -> AttentionState:
        """The state after the last key, with the given sums."""
        if self.key_mask is None:
            visible = torch.full(self.k.shape[:-2], self.num_keys, device=self.k.device)
        else:
            visible = self.key_mask.sum(-1)
        if self.state is not None:
            visible = visible + self.state.visible
        return AttentionState(sums, visible, self.kernel.feature_set, self.scale)

    def visible_keys(self) -> torch.Tensor:
        """(..., 1, T_q, 1) or broadcastable: how many keys each query sees, the past included."""
        num_queries = self.q.shape[-2]
        if self.key_mask is not None:
            count = self.key_mask.cumsum(-1)
            if self.is_causal:
                count = count[..., self.offset :]
            else:
                count = self.key_mask.sum(-1, keepdim=True).expand(*count.shape[:-1], num_queries)
        elif self.is_causal:
            count = torch.arange(self.offset + 1, self.num_keys + 1, device=self.k.device)
        else:
            count = torch.full((num_queries,), self.num_keys, device=self.k.device)
        if self.state is not None:
            count = count + self.state.visible.unsqueeze(-1)
        return count.unsqueeze(-2).unsqueeze(-1)


def prepare(
    q,
    k,
    v,
    *,
    kernel,
    normalizer="sum",
    scale=None,
    input_gate=None,
    output_gate=None,
    gate_position="after",
    log_decay=None,
    is_causal=True,
    enable_gqa=False,
    key_mask=None,
    initial_state=None,
    return_state=True,
) -> Call:
    """Check the arguments of an attention call, named and explained at `parallel_attention`."""
    kernel, normalizer = as_kernel(kernel), as_normalizer(normalizer)
    check_tensors(q, k, v)
    groups = check_shapes(q, k, v, enable_gqa, is_causal)
    if gate_position not in ("after", "before"):
        raise ValueError(f'gate_position must be "after" or "before", got {gate_position!r}')
    warn_of_signed_weights(kernel, normalizer, stacklevel=4)
    dtype, key_shape = state_dtype(q.dtype), k.shape[:-1]
    input_gate = expand("input_gate", input_gate, key_shape, dtype)
    output_gate = expand("output_gate", output_gate, q.shape[:-1], dtype)
    log_decay = expand("log_decay", log_decay, key_shape, dtype)
    key_mask = expand("key_mask", key_mask, key_shape, torch.bool)

    keys, values, ones = k.to(dtype), v.to(dtype), k.new_ones(key_shape, dtype=dtype)
    if key_mask is not None:  # a masked token leaves no trace: nothing written, nothing decayed
        keys, values = (x.masked_fill(~key_mask.unsqueeze(-1), 0) for x in (keys, values))
        input_gate, log_decay = (
            x if x is None else x.masked_fill(~key_mask, 0) for x in (input_gate, log_decay)
        )
        ones = ones * key_mask
    if input_gate is not None:
        values = values * input_gate.unsqueeze(-1)
    values = torch.cat([values, ones.unsqueeze(-1)], dim=-1)
    call = Call(
        q=q.to(dtype).reshape(*groups, *q.shape[-2:]),
        k=keys,
        values=values,
        key_mask=key_mask,
        log_decay=log_decay,
        output_gate=None if output_gate is None else output_gate.unsqueeze(-1),
        kernel=kernel,
        normalizer=normalizer,
        scale=resolve_scale(scale, q.shape[-1]),
        gate_position=gate_position,
        is_causal=is_causal,
        state=initial_state,
        return_state=return_state and kernel.has_features,
    )
    if initial_state is not None:
        require_features(kernel, "initial_state")
        shape = (*k.shape[:-2], kernel.num_features(k.shape[-1]), values.shape[-1])
        check_state(initial_state, kernel, call.scale, shape, dtype, k.device)
    return call


def attention_form(accumulate, name=None):
    """Make a public form of `accumulate(call, ...) -> (sums, log_unit, final_state)`.

    sums is (..., G, T_q, e+1), numerators and denominators before the normalizer. The form takes
    the arguments of `prepare` and those that accumulate has beside the call. Errors call it by
    `name`, which is that of accumulate unless given.

    torch.compile traces a form without a graph break. A compiled form does not warn of signed
    weights, which sympy finds out, and an overflow in it is a RuntimeError, on CUDA one that ends
    the process.
    """
    own = list(inspect.signature(accumulate).parameters.values())[1:]
    signature = inspect.Signature([*inspect.signature(prepare).parameters.values(), *own])
    own_names = [p.name for p in own]
    names = [name for name in signature.parameters if name not in ("q", "k", "v")]

    @functools.wraps(accumulate)
    def form(q, k, v, **options):
        _check_names(name or accumulate.__name__, options, names)
        own_options = {name: options.pop(name) for name in own_names if name in options}
        call = prepare(q, k, v, **options)
        # Mixed precision would take the products inside to bfloat16, sums of states included.
        with torch.autocast(call.q.device.type, enabled=False):
            sums, log_unit, final_state = accumulate(call, **own_options)
            out = _finish(call, sums, log_unit, q.shape[:-1]).to(q.dtype)
        if final_state is not None:
            _check_finite(call, final_state.sums, "the sums of the final state")
        if out.dtype == torch.float16:
            _check_finite(call, out, "the outputs")
        return out, final_state

    form.__signature__ = signature
    return form


def _check_names(function: str, options: dict, legal: list[str]) -> None:
    for name in options:
        if name not in legal:
            raise TypeError(f"{function} has no option {name!r}; it has {', '.join(legal)}")
    if "kernel" not in options:
        raise TypeError(f"{function} needs the option 'kernel', for instance kernel=taylor(4)")


def _finish(call: Call, sums, log_unit, rows):
    """Normalizer and output gate on the sums: (..., G, T_q, e+1) -> (*rows, e), heads in a row."""
    _check_finite(call, sums, "its weights or their sums")
    visible = call.visible_keys().expand(*sums.shape[:-1], 1).reshape(*rows, 1)
    log_unit = log_unit.reshape(*rows, 1) if log_unit.dim() else log_unit
    sums = sums.reshape(*rows, sums.shape[-1])
    numerator, denominator = sums.split_with_sizes([sums.shape[-1] - 1, 1], dim=-1)
    if call.output_gate is not None and call.gate_position == "before":
        numerator = numerator * call.output_gate
    out = call.normalizer(numerator, denominator, visible, log_unit)
    if call.output_gate is not None and call.gate_position == "after":
        out = out * call.output_gate
    return out


def _check_finite(call: Call, result, what: str) -> None:
    is_compiling = torch.compiler.is_compiling()
    if not is_compiling and _is_finite(result):
        return
    inputs = [call.q, call.k, call.values]
    if call.state is not None:
        inputs.append(call.state.sums)
    if call.log_decay is not None:  # minus infinity is legal there: it forgets everything
        inputs.append(call.log_decay.clamp(min=0))
    if is_compiling:
        return _assert_finite(result, inputs, what)
    if not all(tensor.isfinite().all() for tensor in inputs):
        return  # what comes out of infinite or undefined inputs is the caller's to see
    raise OverflowError(
        f"with kernel {call.kernel!r} {what} leave the range of {result.dtype}: "
        "pass float64 inputs, a smaller scale or a lower order; exp overflows only with the "
        "normalizers 'visible_keys' and 'none', because only 'sum' and the norms let its row be "
        "shifted, and a clamp on it helps too"
    )


def _is_finite(tensor) -> bool:
    """Whether all entries are finite; nearly always their sum tells, which costs far less."""
    tensor = tensor.detach()
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def _assert_finite(result, inputs, what: str) -> None:
    """The same check in a compiled graph, which cannot branch on numbers: a RuntimeError."""
    is_legal = result.detach().isfinite().all()
    for tensor in inputs:
        is_legal = is_legal | ~tensor.detach().isfinite().all()
    torch._assert_async(is_legal, f"{what} leave the range of {result.dtype}")


def check_state(state, kernel, scale: float, shape, dtype, device) -> None:
    """Refuse a state of other settings; shape, dtype and device are those of its sums."""
    if not isinstance(state, AttentionState):
        raise TypeError(f"initial_state must be an AttentionState, got {type(state).__name__}")
    pairs = {
        "feature_set": (state.feature_set, kernel.feature_set),
        "scale": (state.scale, scale),
        "shape": (tuple(state.sums.shape), tuple(shape)),
        "dtype": (state.sums.dtype, dtype),
        "device": (state.sums.device, device),
    }
    for name, (given, needed) in pairs.items():
        if given != needed:
            raise ValueError(f"initial_state has {name} {given}, this call needs {needed}")


def warn_of_signed_weights(kernel, normalizer, stacklevel: int) -> None:
    if torch.compiler.is_compiling():  # the sign of a polynomial is decided by sympy
        return
    if not normalizer.needs_nonnegative_weights or kernel.is_nonnegative:
        return
    warnings.warn(
        f"normalizer 'sum' divides by a sum of weights that can vanish: {kernel!r} has weights of "
        "both signs. Better: an even order of taylor, the kernels 'relu' or 'elu_plus_one', or "
        "the normalizers 'l2', 'rms', 'visible_keys' or SumNormalizer(floor=1.0)",
        SignedWeightsWarning,
        stacklevel=stacklevel,
    )
