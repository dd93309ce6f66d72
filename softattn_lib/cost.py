"""What a call costs in each form, from its sizes alone: flops, working memory, state, time.

The model is four sums over tokens and pairs, R = rows (batch times key heads), G query heads a
key head, w = e + 1 (the column of ones of the denominator), D features, order N:

    write   R T_k (D + 2 D w)          make the features of a key, add them times its values
    read    R G T_q (D + 2 D w)        make the features of a query, multiply them by the state
    pairs   2 d + 2 N + 2 w            score, polynomial and sum of one query and one key
    steps   one each call, each token of the recurrent form, each tile of the chunked form

Flops are exact for these formulas, bytes name the largest buffers, and seconds are predictions for
one thread of one machine (the constants below). Use their ratios: another machine has other
seconds, while who is faster changes little. No tensor is touched here.
"""

from dataclasses import dataclass, replace

from .checks import check_count
from .chunked import default_chunk_size
from .features import num_features

# Measured in float32 with one thread of an AMD EPYC (Milan, 2.45 GHz), torch 2.13.
MATMUL_RATE = 60e9  # flops a second of large products: of states, and of all pairs
PAIR_MATMUL_RATE = 20e9  # of the small products inside a chunk
FEATURE_SECONDS = 0.35e-9  # to make one feature of one token in cache
SCORE_SECONDS = 0.25e-9  # a power of one score, inside a chunk
PARALLEL_PAIR_SECONDS = 10e-9  # mask, weigh and sum one pair, with T x T matrices in memory
SOFTMAX_PAIR_SECONDS = 1.0e-9  # of scaled_dot_product_attention, one pair ...
SOFTMAX_FLOP_SECONDS = 0.0103e-9  # ... and each of the 2 d + 2 e flops in it
SOFTMAX_BLOCK = 512  # it skips the future by blocks of keys
CALL_SECONDS = 700e-6  # checks, normalizer
SOFTMAX_CALL_SECONDS = 20e-6
PARALLEL_SECONDS = 100e-6  # mask and sum of the parallel form, beside its pairs
STEP_SECONDS = 60e-6  # a token of the recurrent form
TOKEN_SECONDS = 0.2e-6  # to bring one query to the chunked form and its sums to the output
TILE_SECONDS = 300e-6  # a tile of the chunked form, beside its arithmetic
STATE_SECONDS = 4e-9  # to make one number of a new state, which does not fit the cache
TILE_FEATURES = 2**19  # features in a tile of the chunked form, if it has more than one chunk


@dataclass(frozen=True)
class Workload:
    """The sizes of one attention call.

    Attributes:
        rows: batch times key heads.
        groups: query heads per key head.
        num_queries, num_keys: T_q and T_k.
        d, e: widths of keys and values.
        num_features: D, the rows of a state; None for a kernel without a finite state.
        order: of the polynomial; 0 for feature maps and exp.
        is_causal, return_state: as in the call.
        has_past: whether the call continues a state.
        itemsize: bytes of one number of the state, 4 or 8.
    """

    rows: int
    groups: int
    num_queries: int
    num_keys: int
    d: int
    e: int
    num_features: int | None = None
    order: int = 0
    is_causal: bool = True
    return_state: bool = True
    has_past: bool = False
    itemsize: int = 4

    @property
    def width(self) -> int:
        """e + 1: a value and its one."""
        return self.e + 1

    @property
    def state_size(self) -> int:
        """Numbers in the states of all rows."""
        return self.rows * self.num_features * self.width

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key, the hidden ones too."""
        return self.rows * self.groups * self.num_queries * self.num_keys

    @property
    def touches(self) -> int:
        """Features times tokens that write to a state or read from one, both sides."""
        return self.rows * self.num_features * (self.num_keys + self.groups * self.num_queries)


@dataclass(frozen=True)
class Cost:
    """What one form of a call costs.

    Attributes:
        flops: multiplications and additions.
        bytes: the largest working memory beyond inputs and results.
        state_bytes: what has to be kept for the tokens to come: the state, or keys and values.
        seconds: predicted for the machine named in this file.
    """

    flops: float
    bytes: float
    state_bytes: float
    seconds: float

    def then(self, other: "Cost") -> "Cost":
        """The cost of one call after the other; working memory is used again."""
        return Cost(
            self.flops + other.flops,
            max(self.bytes, other.bytes),
            self.state_bytes + other.state_bytes,
            self.seconds + other.seconds,
        )


def parallel_cost(work: Workload) -> Cost:
    """All pairs at once, and, if it returns a state, the features of every key.

    Example:
        >>> sizes = Workload(1, 1, num_queries=10, num_keys=10, d=4, e=4, num_features=15, order=2)
        >>> parallel_cost(sizes).flops  # 100 pairs of 8 + 4 + 10, 10 keys of 15 + 150
        3850
    """
    pair_flops = work.pairs * _flops_of_pair(work)
    num_bytes = work.pairs * (3 * work.itemsize + 1) + _bytes_of_sums(work)
    seconds = CALL_SECONDS + PARALLEL_SECONDS
    seconds += work.pairs * PARALLEL_PAIR_SECONDS + pair_flops / MATMUL_RATE
    if work.num_features is None:
        return Cost(pair_flops, num_bytes, _cache_bytes(work), seconds)
    keys = work.num_keys if work.return_state else 0
    queries = work.num_queries if work.has_past else 0
    touched = replace(work, num_keys=keys, num_queries=queries)
    return Cost(
        pair_flops + _flops_of_states(touched),
        num_bytes + touched.touches * work.itemsize,
        work.state_size * work.itemsize,
        seconds + _seconds_of_states(touched) + work.return_state * work.state_size * STATE_SECONDS,
    )


def recurrent_cost(work: Workload) -> Cost:
    """Token by token: a write for each key, a read for each query.

    Example:
        >>> sizes = Workload(1, 1, num_queries=10, num_keys=10, d=4, e=4, num_features=15, order=2)
        >>> recurrent_cost(sizes).flops  # 10 keys and 10 queries of 15 + 150
        3300
    """
    flops = _flops_of_states(work)
    return Cost(
        flops,
        3 * work.state_size * work.itemsize + _bytes_of_sums(work),
        work.state_size * work.itemsize,
        CALL_SECONDS + work.num_keys * (STEP_SECONDS + work.state_size * STATE_SECONDS),
    )


def chunked_cost(work: Workload, chunk_size: int | None = None) -> Cost:
    """Pairs inside a chunk, states between chunks, some chunks at a time.

    Example:
        >>> sizes = Workload(1, 1, num_queries=10, num_keys=10, d=4, e=4, num_features=15, order=2)
        >>> chunked_cost(sizes, chunk_size=5).flops  # 3300 as above, 50 pairs of 8 + 4 + 10
        4400
    """
    chunk_size = chunk_size_of(work, chunk_size)
    longest = min(chunk_size, work.num_keys)
    pairs = work.rows * work.groups * work.num_queries * longest if work.is_causal else 0
    pair_flops = pairs * _flops_of_pair(work)
    chunks = work.rows * -(-work.num_keys // chunk_size)
    in_tile = max(1, min(chunks, TILE_FEATURES // (chunk_size * work.num_features)))
    tiles = -(-chunks // in_tile)
    tile_size = longest * (work.num_features + 2 * work.width + 2 * work.d + 2 * longest)
    return Cost(
        _flops_of_states(work) + pair_flops,
        in_tile * (tile_size + 2 * work.num_features * work.width) * work.itemsize
        + _bytes_of_sums(work),
        work.state_size * work.itemsize,
        CALL_SECONDS
        + tiles * TILE_SECONDS
        + work.rows * work.groups * work.num_queries * TOKEN_SECONDS
        + 3 * work.state_size * STATE_SECONDS
        + _seconds_of_states(work)
        + pair_flops / PAIR_MATMUL_RATE
        + pairs * work.order * SCORE_SECONDS,
    )


def chunk_size_of(work: Workload, chunk_size: int | None) -> int:
    """The chunk size asked for, or the one that the chunked form takes by itself."""
    return default_chunk_size(work.num_features) if chunk_size is None else chunk_size


def softmax_cost(work: Workload) -> Cost:
    """Softmax attention on the same tensors, in torch's scaled_dot_product_attention.

    Example:
        >>> sizes = Workload(1, 1, num_queries=1024, num_keys=1024, d=4, e=4)
        >>> softmax_cost(sizes).flops / 16 / 1024**2  # the future is skipped by blocks of 512 keys
        0.75
    """
    pairs = work.pairs
    if work.is_causal:
        seen = work.num_keys + min(work.num_keys, SOFTMAX_BLOCK)
        pairs = work.rows * work.groups * work.num_queries * seen / 2
    flops = pairs * 2 * (work.d + work.e)
    seconds = SOFTMAX_CALL_SECONDS + pairs * SOFTMAX_PAIR_SECONDS + flops * SOFTMAX_FLOP_SECONDS
    return Cost(flops, 0, _cache_bytes(work), seconds)


def crossover(d: int, order: int, e: int | None = None, *, heads: int = 8) -> int | None:
    """The number of tokens above which the chunked form is faster than softmax attention.

    Causal, forward, float32, the orders 0..order.

    Args:
        d: width of queries and keys.
        order: highest power kept.
        e: width of values; None means d.
        heads: batch times heads, which share the cost of a call.

    Returns:
        T, or None if it lies above 2**40.

    Raises:
        ValueError: if d, e or heads is not an integer >= 1, or order not one >= 0.

    Example:
        >>> crossover(16, 2) < crossover(16, 3) < crossover(32, 3)
        True
    """
    e = d if e is None else e
    for name, value in (("d", d), ("e", e), ("heads", heads)):
        check_count(name, value)
    return workload_crossover(Workload(heads, 1, 1, 1, d, e, num_features(d, order), order))


def workload_crossover(work: Workload, chunk_size: int | None = None) -> int | None:
    """`crossover` at the sizes of a workload, whatever its number of tokens."""

    def chunked_wins(length):
        at = replace(work, num_queries=length, num_keys=length, is_causal=True)
        return chunked_cost(at, chunk_size).seconds < softmax_cost(at).seconds

    low, high = 0, 1
    while not chunked_wins(high):
        low, high = high, 2 * high
        if high > 2**40:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if chunked_wins(middle) else (middle, high)
    return high


def _flops_of_pair(work: Workload) -> int:
    return 2 * work.d + 2 * work.order + 2 * work.width


def _flops_of_states(work: Workload) -> int:
    return work.touches * (1 + 2 * work.width)


def _seconds_of_states(work: Workload) -> float:
    return work.touches * (FEATURE_SECONDS + 2 * work.width / MATMUL_RATE)


def _bytes_of_sums(work: Workload) -> int:
    """Values with their ones, and the sums before the normalizer."""
    tokens = work.rows * (work.num_keys + work.groups * work.num_queries)
    return tokens * work.width * work.itemsize


def _cache_bytes(work: Workload) -> int:
    """Keys and values, which a kernel without a finite state has to keep."""
    return work.rows * work.num_keys * (work.d + work.e) * work.itemsize
