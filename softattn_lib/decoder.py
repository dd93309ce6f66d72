"""Decoding one token at a time at constant cost: the recurrent form with its sums updated in place.

`attention_step` returns a new state and lets gradients through. `Decoder` does neither: it checks
its arguments once, writes into buffers that it made at the start, and keeps its sums in two
levels, so that they stay right for millions of tokens (see `settle`).
"""

from functools import partial
from itertools import combinations_with_replacement

import torch

from .call import check_state, warn_of_signed_weights
from .checks import check_count
from .features import query_factors
from .kernels import Kernel, PolynomialKernel, as_kernel
from .normalizers import SumNormalizer, as_normalizer
from .recurrent import SETTLE_EVERY, settle
from .state import AttentionState, init_state, require_features


class Decoder:
    """The recurrent form for inference: `step` writes a token, reads the sums, and returns the out.

    Costs the same at every token. The numbers are those of `attention_step` up to rounding, and
    those of `recurrent_attention` also after millions of tokens. A decoder is one stream: it
    changes with every step, and `state` is a copy of what it has seen.

    Gates are not options, because they cost nothing outside: an input gate multiplies v, an output
    gate the result. With log_decay or key_mask use `attention_step`.

    Args:
        kernel: a Polynomial, a kernel with a finite state, or its name.
        d: width of queries and keys.
        e: width of values.
        batch_shape: the leading dimensions of k (its heads included).
        groups: query heads that share a key head; q has groups times the heads of k.
        normalizer: as in `parallel_attention`.
        scale: multiplies the score; None means d ** -0.5.
        dtype: of q, k, v and the output; sums are float32, or float64 for float64.
        device: of q, k and v.
        initial_state: the state to go on from, of any form; it is left as it is.

    Raises:
        ValueError, TypeError: for a kernel without finite state, an illegal option, or an
            initial_state of other settings.

    Warns:
        SignedWeightsWarning: "sum" with weights of both signs.

    Example:
        >>> from softattn_lib import recurrent_attention, taylor
        >>> q, k, v = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))
        >>> decoder = Decoder(taylor(2), d=4, e=4, batch_shape=(2,))
        >>> outs = [decoder.step(q[:, t], k[:, t], v[:, t]) for t in range(5)]
        >>> out, state = recurrent_attention(q, k, v, kernel=taylor(2))
        >>> torch.allclose(torch.stack(outs, dim=1), out, atol=1e-6)
        True
        >>> torch.allclose(decoder.state.sums, state.sums), decoder.state.visible
        (True, tensor([5, 5]))
    """

    def __init__(
        self,
        kernel,
        d: int,
        e: int,
        *,
        batch_shape=(),
        groups: int = 1,
        normalizer="sum",
        scale=None,
        dtype=torch.float32,
        device=None,
        initial_state=None,
    ):
        check_count("d", d)
        check_count("e", e)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError(f"dtype must be a floating point torch.dtype, got {dtype!r}")
        self._arguments = (kernel, d, e)
        self._options = {
            "batch_shape": tuple(batch_shape),
            "groups": groups,
            "normalizer": normalizer,
            "scale": scale,
            "dtype": dtype,
            "device": device,
        }
        kernel = require_features(as_kernel(kernel), "Decoder")
        normalizer, batch_shape = as_normalizer(normalizer), tuple(batch_shape)
        _check_groups(groups, batch_shape)
        warn_of_signed_weights(kernel, normalizer, stacklevel=3)
        empty = init_state(
            kernel, d, e, batch_shape=batch_shape, scale=scale, dtype=dtype, device=device
        )
        if initial_state is not None:
            sums = empty.sums
            check_state(initial_state, kernel, empty.scale, sums.shape, sums.dtype, sums.device)
        self._start = initial_state or empty
        self._normalizer, self._is_plain_sum = normalizer, normalizer == SumNormalizer()
        self._dtype, self._groups, self._num_steps = dtype, groups, 0
        query_shape = (*batch_shape[:-1], batch_shape[-1] * groups) if batch_shape else ()
        self._shapes = ((*query_shape, d), (*batch_shape, d), (*batch_shape, e))

        sums = empty.sums.reshape(torch.Size(batch_shape).numel(), *empty.sums.shape[-2:])
        rows = len(sums)
        self._settled = self._start.sums.detach().reshape(sums.shape).clone()
        self._lost, self._recent = torch.zeros_like(sums), torch.zeros_like(sums)
        self._value = sums.new_ones(rows, 1, e + 1)  # [v, 1]
        self._v = self._value[..., :-1].view(self._shapes[2])
        self._zero = sums.new_zeros(())  # a number would be made a tensor at every step
        self._read = sums.new_empty(rows, groups, e + 1)
        self._numerator = self._read[..., :-1].view(*query_shape, e)
        self._denominator = self._read[..., -1:].view(*query_shape, 1)
        is_packed = isinstance(kernel, PolynomialKernel) and kernel.packed
        features = _PackedPowers if is_packed else _Features
        self._features = features(kernel, empty.scale, self._shapes, (rows, groups), sums)

    def step(self, q, k, v) -> torch.Tensor:
        """Write one token and read the past, this token included.

        Args:
            q: (..., d), with groups times the heads of k.
            k: (..., d), its leading dimensions the batch_shape.
            v: (..., e).

        Returns:
            (..., e), in the dtype of the decoder, without a graph (an inference tensor).

        Raises:
            ValueError: for another shape, dtype or device.
            RuntimeError: for inputs that record gradients; a decoder has none.
            OverflowError: sums that are not finite, noticed at most 512 tokens late.
        """
        self._check(q, k, v)
        with torch.inference_mode():
            query, key = self._features(q, k)
            self._v.copy_(v)
            self._recent.addcmul_(key, self._value)
            torch.bmm(query, self._settled, out=self._read).baddbmm_(query, self._recent)
            self._num_steps += 1
            if self._num_steps % SETTLE_EVERY == 0:
                self._settled, self._lost = settle(self._settled, self._lost, self._recent)
                self._recent.zero_()
                self._check_finite(self._settled)
            return self._normalized()

    def __reduce__(self):
        """Pickled and copied as a new decoder that goes on from the state of this one."""
        return partial(Decoder, **self._options, initial_state=self.state), self._arguments

    @property
    def state(self) -> AttentionState:
        """The state after the last step, a copy that any form continues."""
        sums = self._settled + (self._recent + self._lost)
        self._check_finite(sums)
        start = self._start
        return AttentionState(
            sums=sums.view(start.sums.shape),
            visible=start.visible + self._num_steps,
            feature_set=start.feature_set,
            scale=start.scale,
        )

    def _normalized(self):
        numerator, denominator = self._numerator, self._denominator
        if self._is_plain_sum:  # `safe_divide`, without the care that gradients need
            is_zero = denominator == self._zero
            out = torch.div(numerator, denominator).masked_fill_(is_zero, self._zero)
            return out.to(self._dtype)
        visible = (self._start.visible + self._num_steps).unsqueeze(-1).unsqueeze(-1)
        visible = visible.expand(*visible.shape[:-2], self._groups, 1).reshape(denominator.shape)
        out = self._normalizer(numerator, denominator, visible, numerator.new_zeros(()))
        return out.to(self._dtype, copy=True)

    def _check(self, q, k, v):
        for name, x, shape in zip("qkv", (q, k, v), self._shapes, strict=True):
            if x.shape != shape or x.dtype != self._dtype or x.device != self._read.device:
                raise ValueError(
                    f"{name} must be {self._dtype} of shape {shape} on {self._read.device}, as the "
                    f"decoder was made; got {x.dtype} of shape {tuple(x.shape)} on {x.device}"
                )
            if x.requires_grad and torch.is_grad_enabled():
                raise RuntimeError(
                    f"{name} records gradients, and a Decoder has none: call it under "
                    "torch.no_grad(), or use attention_step"
                )

    def _check_finite(self, sums):
        if not sums.isfinite().all():
            raise OverflowError(
                "the sums of the decoder are not finite: an input was not, or powers of the inputs "
                f"leave the range of {sums.dtype}; use float64, a smaller scale or a lower order"
            )


class _Features:
    """Features of any kernel: query (rows, groups, D), with the scale, and key (rows, D, 1)."""

    def __init__(self, kernel: Kernel, scale, shapes, rows_and_groups, like):
        self.kernel, self.scale, self.dtype = kernel, scale, like.dtype
        rows, groups = rows_and_groups
        num_features = like.shape[-2]
        self.query_shape, self.key_shape = (rows, groups, num_features), (rows, num_features, 1)

    def __call__(self, q, k):
        query = self.kernel.query_features(q.to(self.dtype), self.scale)
        key = self.kernel.key_features(k.to(self.dtype))
        return query.reshape(self.query_shape), key.reshape(self.key_shape)


class _PackedPowers:
    """The same for packed powers, in few operations: query and key at once, into buffers.

    A monomial of degree n <= N is a product of N entries of [1, x], n of them from x.
    """

    def __init__(self, kernel: PolynomialKernel, scale, shapes, rows_and_groups, like):
        polynomial, (rows, groups) = kernel.polynomial, rows_and_groups
        (*_, d), queries = shapes[1], rows * groups
        self.scale = like.new_tensor([scale])
        self.factors = query_factors(d, polynomial, True).to(like)
        self.first, *self.others = _tables(d, polynomial).to(like.device)
        self.inputs = like.new_ones(queries + rows, d + 1)  # [1, x] of queries, then of keys
        self.q = self.inputs[:queries, 1:].view(shapes[0])
        self.k = self.inputs[queries:, 1:].view(shapes[1])
        self.products = like.new_empty(queries + rows, len(self.factors))
        self.entries = torch.empty_like(self.products)
        self.query = self.products[:queries].view(rows, groups, len(self.factors))
        self.key = self.products[queries:].unsqueeze(-1)

    def __call__(self, q, k):
        torch.mul(q, self.scale, out=self.q)
        self.k.copy_(k)
        torch.index_select(self.inputs, -1, self.first, out=self.products)
        for table in self.others:
            torch.index_select(self.inputs, -1, table, out=self.entries)
            self.products.mul_(self.entries)
        self.query.mul_(self.factors)
        return self.query, self.key


def _tables(d: int, polynomial) -> torch.Tensor:
    """(max(order, 1), D): the entries of [1, x] whose product each packed monomial is."""
    width = max(polynomial.order, 1)
    monomials = [
        indices + (0,) * (width - n)
        for n in polynomial.powers
        for indices in combinations_with_replacement(range(1, d + 1), n)
    ]
    return torch.tensor(monomials, dtype=torch.int64).reshape(-1, width).T.contiguous()


def _check_groups(groups, batch_shape):
    check_count("groups", groups)
    if groups > 1 and not batch_shape:
        raise ValueError(f"groups={groups} needs key heads: batch_shape must not be empty")
