"""The fast path of the chunked form: a polynomial of the score, packed, without decay.

It computes what `chunked_attention` says, cut into tiles: as many chunks of as many sequences as
keep the buffers of tiles.py in the cache. A sequence goes through its tiles in order, and hands a
state from one to the next. For the backward pass the state before each tile is kept and everything
else is made again, from the last tile to the first: features exist for one tile at a time.

Here batch and heads are one axis B (G query heads share a key head), w = e + 1, and states are
transposed:

    q (B, G, T_q, d)    k (B, T_k, d)    values (B, T_k, w)    state (B, w, D)
"""

from dataclasses import dataclass

import torch
from torch.autograd import forward_ad

from .features import query_factors
from .polynomials import Polynomial
from .tiles import GradientTile, Layout, Tile, block_features

# How many numbers the buffers of a tile hold, if more than one chunk is in it. On a CPU buffers of
# more than a few MB leave the cache, and products take twice as long; a GPU wants large launches.
CPU_TILE = 2**20
GPU_TILE = 2**26


def scan(q, k, values, state, polynomial: Polynomial, scale: float, size: int, is_causal: bool):
    """Read every query from the sums over its past, and leave the state after the last key.

    Args:
        q: (B, G, T_q, d), k: (B, T_k, d), values: (B, T_k, w), state: (B, w, D), float32 or
            float64.
        polynomial: of the score; D counts the packed monomials of its powers.
        scale: multiplies the score.
        size: tokens per chunk.
        is_causal: query t reads the keys up to its own, the last query standing at the last key;
            else all read the final state.

    Returns:
        sums (B, G, T_q, w) and the final state (B, w, D). Differentiable once: the gradients
        themselves have none, and asking for one is an error.
    """
    inputs = (q, k, values, state)
    _refuse_forward_mode(inputs)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    coefficients = [float(c) for c in polynomial.coefficients]
    sums, final, _ = torch.ops.softattn.scan(*inputs, coefficients, scale, size, is_causal, keep)
    is_constant = not any(x.requires_grad for x in inputs[1:])  # whatever q does
    return sums, final.detach() if is_constant else final


def _refuse_forward_mode(inputs) -> None:
    """The operator would take tangents for zero, without a word."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in inputs):
        raise NotImplementedError(
            "the chunked form has no forward-mode derivatives for packed polynomials; "
            "use parallel_attention or recurrent_attention, which have"
        )


# Operators of their own, so that torch.compile takes them as they are. (torch.library.custom_op
# would do the same with less text, but its first call imports the compiler, which takes seconds.)
_SETTINGS = "float[] coefficients, float scale, int size, bool is_causal"
torch.library.define(
    "softattn::scan",
    f"(Tensor q, Tensor k, Tensor values, Tensor state, {_SETTINGS}, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "softattn::scan_backward",
    "(Tensor grad_sums, Tensor grad_final, Tensor q, Tensor k, Tensor values, Tensor kept, "
    f"{_SETTINGS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@torch.library.impl("softattn::scan", "default")
def _scan(q, k, values, state, coefficients, scale, size, is_causal, keep):
    """(sums, final state, the state before each tile if `keep`)."""
    plan = _Plan(q, k, values, coefficients, scale, size, is_causal)
    shop = _Workshop(plan, values, Tile)
    running, sums = shop.unpack(state), values.new_empty(*q.shape[:-1], values.shape[-1])
    kept = running.new_empty(len(plan.spans) if keep else 0, *running.shape)
    for rows in plan.rows:
        for i, span in enumerate(plan.spans):
            if keep:
                kept[i, rows] = running[rows]
            tile = shop.tile(rows, span)
            keys = (rows, span.keys)
            running[rows] = tile.advance(k[keys], values[keys], running[rows])
            for g in range(q.shape[1] if span.reads else 0):
                at = (rows, g, span.queries)
                tile.read(q[at], sums[at])
    return sums, shop.pack(running, state.shape), kept


@torch.library.impl("softattn::scan_backward", "default")
def _scan_backward(grad_sums, grad_final, q, k, values, kept, coefficients, scale, size, is_causal):
    """Gradients of q, k, values and the first state, from the last tile to the first."""
    plan = _Plan(q, k, values, coefficients, scale, size, is_causal)
    shop = _Workshop(plan, values, GradientTile)
    grad_q, grad_k, grad_values = (
        torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, values)
    )
    grad_state = shop.unpack(grad_final)
    for rows in plan.rows:
        for i, span in reversed(list(enumerate(plan.spans))):
            tile, keys = shop.tile(rows, span), (rows, span.keys)
            tile.advance(k[keys], values[keys], kept[i, rows])
            tile.start()
            for g in range(q.shape[1] if span.reads else 0):
                at = (rows, g, span.queries)
                tile.read_backward(q[at], grad_sums[at], grad_q[at])
            grad_state[rows] = tile.write_backward(
                grad_state[rows], grad_k[keys], grad_values[keys]
            )
    return grad_q, grad_k, grad_values, shop.pack(grad_state, grad_final.shape)


@torch.library.register_fake("softattn::scan")
def _(q, k, values, state, coefficients, scale, size, is_causal, keep):
    plan = _Plan(q, k, values, coefficients, scale, size, is_causal)
    kept = (len(plan.spans) if keep else 0, len(k), plan.layout.state_size)
    sums = values.new_empty(*q.shape[:-1], values.shape[-1])
    return sums, state.new_empty(state.shape), state.new_empty(kept)


@torch.library.register_fake("softattn::scan_backward")
def _(grad_sums, grad_final, q, k, values, kept, coefficients, scale, size, is_causal):
    return (*(x.new_empty(x.shape) for x in (q, k, values)), grad_final.new_empty(grad_final.shape))


def _save(ctx, inputs, output):
    q, k, values, _, *ctx.settings, _ = inputs
    ctx.save_for_backward(q, k, values, output[-1])
    ctx.shapes = [x.shape for x in output[:2]]
    ctx.set_materialize_grads(False)  # no zeros for the states that were kept


def _backward(ctx, grad_sums, grad_final, _):
    saved = ctx.saved_tensors  # read once: a checkpoint unpacks them once
    grads = [
        saved[0].new_zeros(shape) if grad is None else grad
        for grad, shape in zip((grad_sums, grad_final), ctx.shapes, strict=True)
    ]
    with torch.autocast(saved[0].device.type, enabled=False):
        grads = torch.ops.softattn.scan_backward(*grads, *saved, *ctx.settings)
    return (*grads, *[None] * 5)


torch.library.register_autograd("softattn::scan", _backward, setup_context=_save)


def _refuse(ctx, *grads):
    raise NotImplementedError(
        "the chunked form has no second-order gradients for packed polynomials; "
        "use parallel_attention or recurrent_attention, which have"
    )


torch.library.register_autograd("softattn::scan_backward", _refuse)


@dataclass(frozen=True)
class _Span:
    """`chunks` chunks of `size` tokens, written to the state, read from it, or both."""

    keys: slice
    queries: slice
    chunks: int
    size: int

    @property
    def writes(self) -> bool:
        return self.keys.start < self.keys.stop

    @property
    def reads(self) -> bool:
        return self.queries.start < self.queries.stop


def _spans(num_queries: int, num_keys: int, size: int, chunks: int, is_causal: bool):
    """The spans of one row in the order of time, at most `chunks` chunks in each.

    Causal: keys before the first query are written, then keys and queries go together. Not
    causal: all keys are written, then all queries read.
    """
    offset = num_keys - num_queries if is_causal else num_keys
    pieces = [(slice(a, b), slice(0, 0), n, c) for a, b, n, c in _cut(0, offset, size, chunks)]
    for start, stop, n, c in _cut(0, num_queries, size, chunks):
        keys = slice(offset + start, offset + stop) if is_causal else slice(offset, offset)
        pieces.append((keys, slice(start, stop), n, c))
    return [_Span(*piece) for piece in pieces]


def _cut(start: int, stop: int, size: int, chunks: int):
    """(start, stop, chunks, size) of runs of whole chunks, then of a shorter last chunk."""
    whole = stop - (stop - start) % size
    for begin in range(start, whole, chunks * size):
        end = min(begin + chunks * size, whole)
        yield begin, end, (end - begin) // size, size
    if whole < stop:
        yield whole, stop, 1, stop - whole


class _Plan:
    """How the work is cut into tiles, with the buffers of each size of tile, made when needed."""

    def __init__(self, q, k, values, coefficients, scale, size, is_causal):
        self.polynomial, self.scale = Polynomial(tuple(coefficients)), scale
        self.layout = Layout(k.shape[-1], values.shape[-1], self.polynomial)
        numbers = CPU_TILE if k.device.type == "cpu" else GPU_TILE
        layout, batch = self.layout, k.shape[0]
        per_chunk = size * (layout.num_features + 2 * layout.num_sides) + layout.state_size
        chunks = max(1, numbers // per_chunk)
        rows = max(1, min(batch, chunks))
        self.rows = [slice(i, min(i + rows, batch)) for i in range(0, batch, rows)]
        self.spans = _spans(q.shape[2], k.shape[1], size, max(1, chunks // rows), is_causal)


class _Workshop:
    """The tiles of a plan, made when needed, and the states in its layout, S numbers each."""

    def __init__(self, plan: _Plan, like, kind):
        self._plan, self._kind, self._tiles, self._new = plan, kind, {}, like.new_empty
        d, w = plan.layout.d, plan.layout.w
        self._features = [f.to(like.device) for f in block_features(d, plan.polynomial)]
        self._is_read = [f >= 0 for f in self._features]
        factors = query_factors(d, plan.polynomial, True).to(like)
        self._factors = self.unpack(factors.expand(1, w, -1)).squeeze(0)

    def tile(self, rows: slice, span: _Span):
        sizes = (rows.stop - rows.start, span.chunks, span.size, span.writes)
        if sizes not in self._tiles:
            plan = self._plan
            self._tiles[sizes] = self._kind(
                plan.layout, *sizes, plan.polynomial, plan.scale, self._factors, self._new
            )
        return self._tiles[sizes]

    def unpack(self, state):
        """(B, w, D) -> (B, S); 0 where the layout repeats an entry that it never reads."""
        blocks = [
            (state[:, :, feature.clamp(min=0)] * is_read).transpose(1, 2).flatten(1)
            for feature, is_read in zip(self._features, self._is_read, strict=True)
        ]
        return torch.cat(blocks, dim=1)

    def pack(self, state, shape):
        """(B, S) -> (B, w, D)."""
        packed = state.new_empty(shape)
        for (_, _, entries), feature, is_read in zip(
            self._plan.layout.blocks, self._features, self._is_read, strict=True
        ):
            count, b = feature.shape
            block = state[:, entries].unflatten(1, (count, shape[1], b)).transpose(1, 2)
            packed[:, :, feature[is_read]] = block[:, :, is_read]
        return packed
