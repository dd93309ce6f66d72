"""The products of the fast path, for one tile: some chunks of some sequences at once.

Tokens lie last, so that one product of slices serves all tokens of a chunk. Rows and chunks are one
axis n, C is the size of a chunk, and w = e + 1 the width of [value, 1]:

    keys, queries (n, d, C)    values (n, w, C)    features (n, F, C)    states (n, S)

From order 3 on, the monomials of the highest degree N are never made. They are x_i times monomials
m of degree N-1, and the x_i can as well stand at the value:

    write   sum_t  v_t (x_i m)_t         =  sum_t (x_i v)_t m_t
    read    sum_i sum_m  S_im (x_i m)_t  =  sum_i x_it (sum_m S_im m_t)

which leaves wide matrix products of "sides", [v, x_1 v, ..., x_d v], and monomials of lower degree.
Neighbouring i share a product: they all take the monomials that the first of them needs. What the
others have too many is written and never read.
"""

import itertools

import torch

from .features import features_of_degree, made_once, order_slices
from .polynomials import Polynomial

MAX_WASTE = 0.12  # how much of the highest degree may be written and never read


class Layout:
    """Where everything lies, for tokens of width d, values of width w and a polynomial.

    Attributes:
        splits: whether the factors x_i of the highest degree stand at the values.
        starts: degree -> row of its first monomial among the features; degrees that meet no value
            themselves come first, the others are the rows `kept`.
        blocks: (rows of the sides, rows of the features, entries of a state), one matrix product
            each; the state holds its result (sides, features) row by row.
    """

    def __init__(self, d: int, w: int, polynomial: Polynomial):
        order, powers = polynomial.order, polynomial.powers
        self.d, self.w, self.splits = d, w, order >= 3
        made = range(max(order - self.splits, 1) + 1)
        kept = [n for n in powers if n in made]
        degrees = [n for n in made if n not in kept] + kept
        sizes = [features_of_degree(d, n) for n in degrees]
        ends = list(itertools.accumulate(sizes))
        self.starts = {n: end - size for n, end, size in zip(degrees, ends, sizes, strict=True)}
        self.num_features = ends[-1]
        self.num_sides = w * (1 + d) if self.splits else w
        num_kept = sum(features_of_degree(d, n) for n in kept)
        self.kept = slice(self.num_features - num_kept, self.num_features)
        self.blocks = [(slice(0, w), self.kept, slice(0, w * num_kept))]
        self.shared = _shared(d, order) if self.splits else 1
        for i in range(0, d if self.splits else 0, self.shared):
            size = features_of_degree(d - i, order - 1)
            end, first = self.starts[order - 1] + sizes[degrees.index(order - 1)], self.state_size
            sides = slice(w * (1 + i), w * (1 + i + self.shared))
            entries = slice(first, first + w * self.shared * size)
            self.blocks.append((sides, slice(end - size, end), entries))

    @property
    def state_size(self) -> int:
        """S, how many entries a state has."""
        return self.blocks[-1][2].stop


def _shared(d: int, order: int) -> int:
    """How many neighbouring x_i share a product: a power of 2 that divides d and wastes little."""
    count = 1
    while d % (2 * count) == 0:
        sizes = [features_of_degree(d - i, order - 1) for i in range(0, d, 2 * count)]
        if 2 * count * sum(sizes) > (1 + MAX_WASTE) * features_of_degree(d, order):
            break
        count *= 2
    return count


@made_once
def block_features(d: int, polynomial: Polynomial) -> list[torch.Tensor]:
    """Which packed feature each entry of a state is, for any width of the values.

    Returns:
        One (count, b) int64 for each block of a layout: the entries of a block are (count, w, b).
        -1 for what the block repeats and is never read.
    """
    layout, order = Layout(d, 1, polynomial), polynomial.order
    features = [torch.arange(layout.kept.stop - layout.kept.start).unsqueeze(0)]
    row = order_slices(d, polynomial)[order].start if layout.splits else 0
    for first in range(0, d if layout.splits else 0, layout.shared):
        size, block = features_of_degree(d - first, order - 1), []
        for i in range(first, first + layout.shared):
            own = features_of_degree(d - i, order - 1)
            place = torch.arange(size) - (size - own)
            block.append(torch.where(place < 0, -1, place + row))
            row += own
        features.append(torch.stack(block))
    return features


class Tile:
    """Buffers for `chunks` chunks of `rows` rows, and the products that fill them.

    Args:
        writes: whether keys and values come with the queries.
        factors: (S), coefficient times multiplicity of each entry; 0 for those never read.
        new: makes an uninitialised tensor of the right dtype and device.
    """

    def __init__(self, layout, rows, chunks, size, writes, polynomial, scale, factors, new):
        n, d, w, top = rows * chunks, layout.d, layout.w, layout.d if layout.splits else 0
        self.layout, self.shape, self.writes, self.scale = layout, (rows, chunks), writes, scale
        self.coefficients = _constants(polynomial, factors)
        self.factors = [factors[entries] for _, _, entries in layout.blocks]
        self.keys, self.queries = new(n, d, size), new(n, d, size)
        self.features = Monomials(layout, n, size, new)
        self.sides = new(n, layout.num_sides, size)
        self.values = self.sides[:, :w]
        # Answers lie block by block: torch multiplies fast into contiguous memory alone.
        self.answer = new(n, w, size)
        self.answers = new(top // layout.shared, n, layout.shared, w, size)
        self.products = self.answers
        self.states = self._new_states(new)
        self.now, self.next = ([new(rows, len(f)) for f in self.factors] for _ in range(2))
        self.scores, self.weights = new(n, size, size), new(n, size, size)
        self.writing = self._blocks(self._split(self.sides), self.features, self.states)
        self.reading = self._blocks(self._answers(), self.features, self.states)

    def advance(self, k, values, state):
        """Write keys and values, and make `states`, those before each chunk, ready to be read.

        Args:
            k, values: (rows, chunks * C, d) and (rows, chunks * C, w).
            state: (rows, S) before the tile.

        Returns:
            (rows, S), the state after the tile.
        """
        if self.writes:
            self._load(self.keys, k)
            self._load(self.values, values)
            self.features.build(self.keys)
            self._spread(self.sides, self.keys)
            for side, feature, written in self.writing:
                torch.bmm(side, feature.mT, out=written)
        self._take(state)
        for chunk in self._chunks(self.states):
            for written, factor, now, after in zip(
                chunk, self.factors, self.now, self.next, strict=True
            ):
                if self.writes:
                    torch.add(now, written, out=after)
                torch.mul(now, factor, out=written)
            if self.writes:
                self.now, self.next = self.next, self.now
        return torch.cat(self.now, dim=1)

    def read(self, q, sums):
        """sums (rows, chunks * C, w) <- what queries read from states and keys of their chunk."""
        self._load_queries(q, self.features)
        for answer, feature, state in self.reading:
            torch.bmm(state, feature, out=answer)
        out = self._gather(self.queries)
        if self.writes:
            torch.bmm(self.keys.mT, self.queries, out=self.scores)
            out.baddbmm_(self.values, self._weigh(self.coefficients))
        self._store(sums, out)

    def _load(self, buffer, tokens):
        """buffer (n, width, C) <- tokens (rows, chunks * C, width)."""
        buffer.unflatten(0, self.shape).copy_(tokens.unflatten(1, (self.shape[1], -1)).mT)

    def _load_queries(self, q, features):
        self._load(self.queries, q)
        self.queries.mul_(self.scale)
        features.build(self.queries)

    def _store(self, tokens, buffer):
        """tokens (rows, chunks * C, width) <- buffer (n, width, C)."""
        tokens.unflatten(1, (self.shape[1], -1)).copy_(buffer.unflatten(0, self.shape).mT)

    def _new_states(self, new):
        """One state for each chunk, block by block: (rows, chunks, entries of the block)."""
        return [new(*self.shape, len(factor)) for factor in self.factors]

    def _chunks(self, states):
        """For each chunk its part (rows, entries) of each block."""
        return list(zip(*(block.unbind(1) for block in states), strict=True))

    def _take(self, state):
        """now <- state (rows, S)."""
        for now, (_, _, entries) in zip(self.now, self.layout.blocks, strict=True):
            now.copy_(state[:, entries])

    def _split(self, sides):
        return [sides[:, side] for side, _, _ in self.layout.blocks]

    def _answers(self):
        return [self.answer, *self.answers.flatten(2, 3)]

    def _blocks(self, sides, features, states):
        """For each block its sides (n, a, C), features (n, b, C) and state (n, a, b)."""
        rows = [features.buffer[:, rows] for _, rows, _ in self.layout.blocks]
        sizes = [
            (side.shape[1], feature.shape[1]) for side, feature in zip(sides, rows, strict=True)
        ]
        matrices = [x.flatten(0, 1).unflatten(1, s) for x, s in zip(states, sizes, strict=True)]
        return list(zip(sides, rows, matrices, strict=True))

    def _spread(self, sides, tokens):
        """[v] -> [v, x_1 v, ..., x_d v] in place."""
        if self.layout.splits:
            v, xv = sides[:, : self.layout.w], sides[:, self.layout.w :]
            xv = xv.unflatten(1, (self.layout.d, self.layout.w))
            torch.mul(tokens.unsqueeze(2), v.unsqueeze(1), out=xv)

    def _gather(self, tokens):
        """The answers [y, y_1, ..., y_d] -> y + x_1 y_1 + ... + x_d y_d in the place of y."""
        if self.layout.splits:
            x = tokens.unflatten(1, (-1, self.layout.shared)).transpose(0, 1).unsqueeze(3)
            self.answer.add_(torch.mul(self.answers, x, out=self.products).sum(0).sum(1))
        return self.answer

    def _weigh(self, coefficients):
        """(n, C_k, C_q): the polynomial of each score, 0 where the key comes after the query."""
        *lower, highest = coefficients
        if not lower:
            self.weights.fill_(highest)
        for coefficient in reversed(lower):
            highest = torch.addcmul(coefficient, self.scores, highest, out=self.weights)
        return self.weights.triu_()


class GradientTile(Tile):
    """A tile with room for the gradients."""

    def __init__(self, layout, rows, chunks, size, writes, polynomial, scale, factors, new):
        super().__init__(layout, rows, chunks, size, writes, polynomial, scale, factors, new)
        n, split = rows * chunks, self._split
        self.slopes = _constants(polynomial.derivative(), factors)
        self.query_features, self.grad_features = (Monomials(layout, n, size, new) for _ in "qg")
        self.grad_sides = torch.empty_like(self.sides)
        self.grad_out = self.grad_sides[:, : layout.w]
        self.products = torch.empty_like(self.answers)
        self.grad_keys, self.grad_values = torch.empty_like(self.keys), new(n, layout.w, size)
        self.grad_states, self.grad_weights = self._new_states(new), torch.empty_like(self.weights)
        self.reading = self._blocks(self._answers(), self.query_features, self.states)
        self.grad_reading = self._blocks(
            split(self.grad_sides), self.query_features, self.grad_states
        )
        self.grad_writing = self._blocks(self._answers(), self.features, self.grad_states)
        self.grad_features_read = self._blocks(
            split(self.grad_sides), self.grad_features, self.states
        )
        self.grad_features_written = self._blocks(
            split(self.sides), self.grad_features, self.grad_states
        )

    def start(self):
        for gradient in (*self.grad_states, self.grad_keys, self.grad_values):
            gradient.zero_()

    def read_backward(self, q, grad_sums, grad_q):
        """Add to the gradients of states, keys and values; grad_q <- that of the queries."""
        self._load_queries(q, self.query_features)
        self._load(self.grad_out, grad_sums)
        self._spread(self.grad_sides, self.queries)
        for side, feature, grad_state in self.grad_reading:
            grad_state.baddbmm_(side, feature.mT)
        grad_queries = self._features_backward(self.query_features, self.grad_features_read)
        if self.layout.splits:
            for answer, feature, state in self.reading[1:]:
                torch.bmm(state, feature, out=answer)
            grad_queries.add_(self._dot(self.grad_out))
        if self.writes:
            self._pairs_backward(grad_queries)
        self._store(grad_q, grad_queries.mul_(self.scale))

    def write_backward(self, grad_state, grad_k, grad_values):
        """grad_k, grad_values <- the gradients of keys and values.

        Args:
            grad_state: (rows, S), gradient of the state after the tile.

        Returns:
            (rows, S), the gradient of the state before the tile.
        """
        self._take(grad_state)
        for chunk in reversed(self._chunks(self.grad_states)):
            for read, factor, now in zip(chunk, self.factors, self.now, strict=True):
                before = torch.addcmul(now, read, factor)
                read.copy_(now)  # leave the gradient of the state after the chunk
                now.copy_(before)
        if self.writes:
            for answer, feature, after in self.grad_writing:
                torch.bmm(after, feature, out=answer)
            self.grad_keys += self._features_backward(self.features, self.grad_features_written)
            if self.layout.splits:
                self.grad_keys += self._dot(self.values)
            self.grad_values += self._gather(self.keys)
            self._store(grad_k, self.grad_keys)
            self._store(grad_values, self.grad_values)
        return torch.cat(self.now, dim=1)

    def _features_backward(self, monomials, blocks):
        """(n, d, C): from sides and states, through the features, to the tokens."""
        self.grad_features.buffer.zero_()
        for side, grad_feature, state in blocks:
            if grad_feature.is_contiguous():
                grad_feature.baddbmm_(state.mT, side)
            else:
                grad_feature.add_(torch.bmm(state.mT, side))
        return monomials.backward(self.grad_features)

    def _dot(self, values):
        """(n, d, C): <x_i's answer, value> for each token."""
        dots = torch.mul(self.answers, values.unsqueeze(1), out=self.products).sum(3)
        return dots.transpose(0, 1).flatten(1, 2)

    def _pairs_backward(self, grad_queries):
        """Add what the pairs inside a chunk contribute."""
        torch.bmm(self.keys.mT, self.queries, out=self.scores)
        self.grad_values.baddbmm_(self.grad_out, self._weigh(self.coefficients).mT)
        torch.bmm(self.values.mT, self.grad_out, out=self.grad_weights)
        grad_scores = self._weigh(self.slopes).mul_(self.grad_weights)
        grad_queries.baddbmm_(self.keys, grad_scores)
        self.grad_keys.baddbmm_(self.queries, grad_scores.mT)


class Monomials:
    """The monomials that a layout makes of tokens (n, d, C), in one buffer (n, F, C).

    A monomial of degree n is x_i times one of a suffix of degree n-1, as in `features`.
    """

    def __init__(self, layout: Layout, n: int, size: int, new):
        d, starts = layout.d, layout.starts
        self.buffer = new(n, layout.num_features, size)
        self.buffer[:, starts[0]] = 1
        self.tokens = self.buffer[:, starts[1] : starts[1] + d]
        self.products = []  # (x_i, suffix, product), views of the buffer
        for degree in range(2, len(starts)):
            row, end = starts[degree], starts[degree - 1] + features_of_degree(d, degree - 1)
            for i in range(d):
                length = features_of_degree(d - i, degree - 1)
                suffix, product = slice(end - length, end), slice(row, row + length)
                views = (self.tokens[:, i : i + 1], self.buffer[:, suffix], self.buffer[:, product])
                self.products.append(views)
                row += length

    def build(self, tokens):
        self.tokens.copy_(tokens)
        for x, suffix, product in self.products:
            torch.mul(x, suffix, out=product)

    def backward(self, gradients: "Monomials"):
        """From gradients of the monomials, which are used up, to those of the tokens."""
        pairs = list(zip(self.products, gradients.products, strict=True))
        for (x, suffix, _), (grad_x, grad_suffix, grad_product) in reversed(pairs):
            grad_suffix.addcmul_(x, grad_product)
            grad_x.add_(grad_product.mul_(suffix).sum(1, keepdim=True))
        return gradients.tokens


def _constants(polynomial: Polynomial, like):
    return [like.new_tensor(c) for c in polynomial.coefficients]
