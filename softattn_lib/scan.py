"""The fast path of the chunked form: a polynomial of the score, packed, without decay.

It computes what `chunked_attention` says, in an order that suits the machine:

* Features lie with the tokens last, (rows, D, C) for C tokens of a chunk. A monomial of all tokens
  is then one product of two contiguous slices of the same buffer, and writing a state,
  values (e+1, C) @ features (C, D), and reading it, state (e+1, D) @ features (D, C), are wide.
* Chunks are taken in tiles, as many at once as keep one buffer of features in the cache.
* Only the state before each tile is kept for the backward pass; everything else is made again.
  Memory grows by one state per tile, and features exist for one tile at a time.

Inside, batch and heads are one axis B (G query heads share a key head), and states are transposed:

    q (B, G, T_q, d)    k (B, T_k, d)    values (B, T_k, e+1)    state (B, e+1, D)
"""

from dataclasses import dataclass

import torch

from .features import features_of_degree, query_factors
from .polynomials import Polynomial

# How many numbers a buffer of features holds at most, if more than one chunk is in it.
CPU_TILE = (
    2**19
)  # 2 MB of float32: products of larger buffers leave the cache and take twice as long
GPU_TILE = 2**26  # 256 MB: enough work for one launch


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
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in inputs)
    coefficients = [float(c) for c in polynomial.coefficients]
    sums, final, _ = torch.ops.softattn.scan(*inputs, coefficients, scale, size, is_causal, keep)
    return sums, final


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
    sums, final = values.new_empty(*q.shape[:-1], values.shape[-1]), state.clone()
    kept = state.new_empty(len(plan.spans) if keep else 0, *state.shape)
    for rows in plan.rows:
        for i, span in enumerate(plan.spans):
            if keep:
                kept[i, rows] = final[rows]
            tile = plan.tile(rows, span)
            states = tile.advance(k[rows, span.keys], values[rows, span.keys], final[rows])
            if span.reads:
                for g in range(q.shape[1]):
                    tile.read(q[rows, g, span.queries], states, sums[rows, g, span.queries])
    return sums, final, kept


@torch.library.impl("softattn::scan_backward", "default")
def _scan_backward(grad_sums, grad_final, q, k, values, kept, coefficients, scale, size, is_causal):
    """Gradients of q, k, values and the first state, from the last tile to the first."""
    plan = _Plan(q, k, values, coefficients, scale, size, is_causal, _GradientTile)
    grads = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, values)]
    grad_q, grad_k, grad_values = grads
    grad_state = grad_final.clone(memory_format=torch.contiguous_format)
    for rows in plan.rows:
        for i, span in reversed(list(enumerate(plan.spans))):
            tile, keys = plan.tile(rows, span), (rows, span.keys)
            states = tile.advance(k[keys], values[keys], kept[i, rows].clone())
            tile.start()
            if span.reads:
                for g in range(q.shape[1]):
                    at = (rows, g, span.queries)
                    tile.read_backward(q[at], states, grad_sums[at], grad_q[at])
            tile.write_backward(grad_state[rows], grad_k[keys], grad_values[keys])
    return grad_q, grad_k, grad_values, grad_state


@torch.library.register_fake("softattn::scan")
def _(q, k, values, state, coefficients, scale, size, is_causal, keep):
    num_spans = len(_Plan(q, k, values, coefficients, scale, size, is_causal).spans) if keep else 0
    return (
        values.new_empty(*q.shape[:-1], values.shape[-1]),
        torch.empty_like(state),
        state.new_empty(num_spans, *state.shape),
    )


@torch.library.register_fake("softattn::scan_backward")
def _(grad_sums, grad_final, q, k, values, kept, coefficients, scale, size, is_causal):
    return (*(x.new_empty(x.shape) for x in (q, k, values)), grad_final.new_empty(grad_final.shape))


def _save(ctx, inputs, output):
    q, k, values, _, *ctx.settings, _ = inputs
    ctx.save_for_backward(q, k, values, output[-1])


def _backward(ctx, grad_sums, grad_final, _):
    grads = torch.ops.softattn.scan_backward(
        grad_sums, grad_final, *ctx.saved_tensors, *ctx.settings
    )
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

    def __init__(self, q, k, values, coefficients, scale, size, is_causal, tile=None):
        self.polynomial, self.scale = Polynomial(tuple(coefficients)), scale
        self.d, self.w, self.like = k.shape[-1], values.shape[-1], values.detach()
        numbers = CPU_TILE if k.device.type == "cpu" else GPU_TILE
        degrees = range(self.polynomial.order + 1)
        numbers_per_chunk = size * sum(features_of_degree(self.d, n) for n in degrees)
        chunks = max(1, numbers // numbers_per_chunk)
        batch = k.shape[0]
        rows = max(1, min(batch, chunks))
        self.rows = [slice(i, min(i + rows, batch)) for i in range(0, batch, rows)]
        self.spans = _spans(q.shape[2], k.shape[1], size, max(1, chunks // rows), is_causal)
        self._tile, self._tiles = tile or _Tile, {}

    def tile(self, rows: slice, span: _Span) -> "_Tile":
        sizes = (rows.stop - rows.start, span.chunks, span.size, span.writes)
        if sizes not in self._tiles:
            self._tiles[sizes] = self._tile(*sizes, self)
        return self._tiles[sizes]


class _Tile:
    """Buffers for a number of chunks of some rows, and the products that fill them.

    Rows and chunks are one axis of the buffers, with tokens last: values are (rows * chunks, w, C).
    """

    def __init__(self, rows: int, chunks: int, size: int, writes: bool, plan: _Plan):
        new, d, w, batch = plan.like.new_empty, plan.d, plan.w, rows * chunks
        self.shape, self.new, self.writes = (rows, chunks), new, writes
        self.scale = plan.scale
        self.coefficients = [plan.like.new_tensor(c) for c in plan.polynomial.coefficients]
        self.factors = query_factors(d, plan.polynomial, True).to(plan.like)
        self.features = _Monomials(batch, d, size, plan.polynomial, new)
        self.keys, self.queries = new(batch, d, size), new(batch, d, size)
        self.values, self.out = new(batch, w, size), new(batch, w, size)
        self.states = new(rows, chunks, w, len(self.factors))
        self.scores, self.weights = new(batch, size, size), new(batch, size, size)

    def load(self, buffer, tokens):
        """buffer (rows * chunks, width, C) <- tokens (rows, chunks * C, width)."""
        rows, chunks = self.shape
        width, size = buffer.shape[1:]
        buffer.view(rows, chunks, width, size).copy_(tokens.unflatten(1, (chunks, size)).mT)

    def store(self, tokens, buffer):
        """tokens (rows, chunks * C, width) <- buffer (rows * chunks, width, C)."""
        rows, chunks = self.shape
        width, size = buffer.shape[1:]
        tokens.unflatten(1, (chunks, size)).copy_(buffer.view(rows, chunks, width, size).mT)

    def advance(self, k, values, state):
        """Write keys and values into `state` (rows, w, D), in place.

        Returns the state before each chunk times coefficients and multiplicities, all ready to be
        read: (rows * chunks, w, D).
        """
        if self.writes:
            self.load(self.keys, k)
            self.load(self.values, values)
            self.features.build(self.keys)
        keys, all_values = (x.unflatten(0, self.shape) for x in (self.features.kept, self.values))
        for chunk in range(self.shape[1]):
            torch.mul(state, self.factors, out=self.states[:, chunk])
            if self.writes:
                state.baddbmm_(all_values[:, chunk], keys[:, chunk].mT)
        return self.states.flatten(0, 1)

    def read(self, q, states, sums):
        """sums <- what the queries read from the states and from the keys of their chunk."""
        self.load(self.queries, q)
        self.queries.mul_(self.scale)
        self.features.build(self.queries)
        torch.bmm(states, self.features.kept, out=self.out)
        if self.writes:
            torch.bmm(self.keys.mT, self.queries, out=self.scores)
            self.out.baddbmm_(self.values, self.weigh(self.coefficients, out=self.weights))
        self.store(sums, self.out)

    def weigh(self, coefficients, out):
        """out (rows * chunks, C_k, C_q) <- the polynomial of each score, 0 for later keys."""
        *lower, highest = coefficients
        if not lower:
            out.fill_(highest)
        for coefficient in reversed(lower):
            torch.addcmul(coefficient, self.scores, highest, out=out)
            highest = out
        return out.triu_()


class _GradientTile(_Tile):
    """A tile with room for the gradients."""

    def __init__(self, rows: int, chunks: int, size: int, writes: bool, plan: _Plan):
        super().__init__(rows, chunks, size, writes, plan)
        settings = (rows * chunks, plan.d, size, plan.polynomial, plan.like.new_empty)
        self.query_features, self.grad_features = (_Monomials(*settings) for _ in range(2))
        self.slopes = [plan.like.new_tensor(c) for c in plan.polynomial.derivative().coefficients]
        self.grad_out, self.grad_values = torch.empty_like(self.out), torch.empty_like(self.values)
        self.grad_queries, self.grad_keys = (torch.empty_like(self.keys) for _ in range(2))
        self.grad_states, self.grad_weights = (
            torch.empty_like(x) for x in (self.states, self.weights)
        )

    def start(self):
        for gradient in (self.grad_states, self.grad_keys, self.grad_values):
            gradient.zero_()

    def read_backward(self, q, states, grad_sums, grad_q):
        """Add to the gradients of the states, keys and values; grad_q <- that of the queries."""
        self.load(self.queries, q)
        self.queries.mul_(self.scale)
        self.load(self.grad_out, grad_sums)
        self.query_features.build(self.queries)
        self.grad_states.flatten(0, 1).baddbmm_(self.grad_out, self.query_features.kept.mT)
        torch.bmm(states.mT, self.grad_out, out=self.grad_features.kept)
        self.grad_queries.copy_(self.query_features.backward(self.grad_features))
        if self.writes:
            self.pairs_backward()
        self.store(grad_q, self.grad_queries.mul_(self.scale))

    def pairs_backward(self):
        """What the pairs inside a chunk add to the gradients."""
        torch.bmm(self.keys.mT, self.queries, out=self.scores)
        weights = self.weigh(self.coefficients, out=self.weights)
        self.grad_values.baddbmm_(self.grad_out, weights.mT)
        torch.bmm(self.values.mT, self.grad_out, out=self.grad_weights)
        grad_scores = self.weigh(self.slopes, out=self.weights).mul_(self.grad_weights)
        self.grad_queries.baddbmm_(self.keys, grad_scores)
        self.grad_keys.baddbmm_(self.queries, grad_scores.mT)

    def write_backward(self, grad_state, grad_k, grad_values):
        """grad_state (rows, w, D): from that after the tile to that before it, in place."""
        grad_states = self.grad_states.mul_(self.factors)
        for chunk in reversed(range(self.shape[1])):
            later = grad_state.clone()
            grad_state.add_(grad_states[:, chunk])
            grad_states[:, chunk] = later
        if not self.writes:
            return
        after = grad_states.flatten(0, 1)  # the gradient of each chunk's state, as it leaves it
        self.grad_values.baddbmm_(after, self.features.kept)
        torch.bmm(after.mT, self.values, out=self.grad_features.kept)
        self.grad_keys.add_(self.features.backward(self.grad_features))
        self.store(grad_k, self.grad_keys)
        self.store(grad_values, self.grad_values)


class _Monomials:
    """The packed monomials of tokens (batch, d, C) in one buffer (batch, all of them, C).

    Degrees that the polynomial lacks lie before the others, so that `kept`, those it has, is one
    slice. A monomial of degree n is x_i times a suffix of degree n-1, as in `features`.
    """

    def __init__(self, batch: int, d: int, size: int, polynomial: Polynomial, new):
        degrees, powers = range(max(polynomial.order, 1) + 1), polynomial.powers
        sizes = [features_of_degree(d, n) for n in degrees]
        start, starts = 0, {}
        for n in sorted(degrees, key=lambda n: (n in powers, n)):
            starts[n], start = start, start + sizes[n]
        self.buffer = new(batch, start, size)
        self.others, self.kept = self.buffer.split_with_sizes(
            [sum(sizes[n] for n in degrees if n not in powers), sum(sizes[n] for n in powers)], 1
        )
        self.buffer[:, starts[0]] = 1
        self.tokens = self.buffer[:, starts[1] : starts[1] + d]
        self.products = []  # (x_i, suffix, product), views of the buffer
        for n in degrees[2:]:
            row, end = starts[n], starts[n - 1] + sizes[n - 1]
            for i in range(d):
                length = features_of_degree(d - i, n - 1)
                rows = (slice(end - length, end), slice(row, row + length))
                suffix, product = (self.buffer[:, s] for s in rows)
                self.products.append((self.tokens[:, i : i + 1], suffix, product))
                row += length

    def build(self, tokens):
        self.tokens.copy_(tokens)
        for x, suffix, product in self.products:
            torch.mul(x, suffix, out=product)

    def backward(self, gradients: "_Monomials"):
        """From gradients of the kept monomials, which are used up, to those of the tokens."""
        gradients.others.zero_()
        pairs = list(zip(self.products, gradients.products, strict=True))
        for (x, suffix, _), (grad_x, grad_suffix, grad_product) in reversed(pairs):
            grad_suffix.addcmul_(x, grad_product)
            grad_x.add_(grad_product.mul_(suffix).sum(1, keepdim=True))
        return gradients.tokens
