"""What the library promises about speed and memory: one row of the table per promise."""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

import softattn_lib
from softattn_lib import (
    PolynomialKernel,
    SignedWeightsWarning,
    chunked_attention,
    init_state,
    num_features,
    recurrent_attention,
    taylor,
)
from softattn_lib.chunked import default_chunk_size

from . import crossover
from .cumulative import cumulative_attention
from .memory import peak_bytes
from .timing import interleaved

CHUNK = default_chunk_size(num_features(16, 2))
CHUNK_BUFFERS = 64  # the constant number of buffers that a training step may take
PIECE = 65_536  # tokens of a stream that are handed on at once


@dataclass(frozen=True)
class Goal:
    """A bound on the ratio of a row."""

    sense: str  # "at least" or "at most"
    bound: float

    def reached_by(self, ratio: float) -> bool:
        return ratio >= self.bound if self.sense == "at least" else ratio <= self.bound

    def __str__(self):
        return f"{self.sense} {self.bound:g}"


@dataclass(frozen=True)
class Measurement:
    """Two numbers in one unit, and the ratio that the goal is about."""

    ours: float
    rival: float
    ratio: float


@dataclass(frozen=True)
class Result:
    """A line of the table."""

    name: str
    work: str
    threads: int
    ours: str
    rival: str
    ratio: str
    goal: str
    verdict: str  # "reached", "missed" or "not measured: why"


@dataclass(frozen=True)
class Row:
    """A promise and how it is measured.

    Attributes:
        name: for `--only`.
        work: what is done.
        rival: what `Measurement.rival` is.
        unit: of both numbers, a key of `UNITS`.
        goal: what the ratio has to be.
        measure: seconds to spend -> Measurement.
        threads: the numbers of threads that the row is measured with.
    """

    name: str
    work: str
    rival: str
    unit: str
    goal: Goal
    measure: Callable[[float], Measurement]
    threads: tuple[int, ...] = (1, 2)

    def run(self, seconds: float) -> Result:
        """Measure; what goes wrong is told in the verdict, and the other rows go on."""
        known = {"name": self.name, "work": self.work, "threads": torch.get_num_threads()}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SignedWeightsWarning)  # odd orders are timed only
                measured = self.measure(seconds)
        except Exception as error:
            why = f"not measured: {type(error).__name__}: {error}".splitlines()[0]
            return Result(**known, ours="", rival="", ratio="", goal=str(self.goal), verdict=why)
        show = UNITS[self.unit]
        return Result(
            **known,
            ours=show(measured.ours),
            rival=f"{self.rival} {show(measured.rival)}",
            ratio=f"{measured.ratio:.3g}",
            goal=str(self.goal),
            verdict="reached" if self.goal.reached_by(measured.ratio) else "missed",
        )


UNITS = {
    "ms": lambda seconds: f"{1e3 * seconds:.3g} ms",
    "µs": lambda seconds: f"{1e6 * seconds:.3g} µs",
    "GFLOP/s": lambda rate: f"{1e-9 * rate:.3g} GFLOP/s",
    "MB": lambda nbytes: f"{1e-6 * nbytes:.3g} MB",
    "B/token": lambda nbytes: f"{nbytes:.4g} B/token",
    "tokens": lambda length: f"{length:.0f} tokens",
    "error": lambda error: f"{error:.1e}",
}


def rows(shorter: int = 1) -> list[Row]:
    """All rows, with sequences `shorter` times shorter than promised (for tests)."""

    def tokens(length):
        return max(length // shorter, 8)

    timed = [
        ("forward-d16-o2-4k", forward, (8, 16, 2, 4096), 3),
        ("forward-d16-o2-16k", forward, (8, 16, 2, 16_384), 12),
        ("forward-d16-o3-8k", forward, (8, 16, 3, 8192), 1.5),
        ("forward-d32-o2-8k", forward, (4, 32, 2, 8192), 3),
        ("training-d16-o2-4k", training, (8, 16, 2, 4096), 2.5),
    ]
    shares = [(8, 16, 3, 0.35), (4, 32, 2, 0.35), (4, 64, 2, 0.5), (2, 16, 4, 0.5)]
    long, middle, short = tokens(262_144), tokens(131_072), tokens(65_536)
    return [
        *(
            Row(
                name,
                f"{measure.__name__}, H={heads} d={d} order {order}, T={tokens(length)}",
                "SDPA",
                "ms",
                Goal("at least", bound),
                functools.partial(measure, heads, d, order, tokens(length)),
            )
            for name, measure, (heads, d, order, length), bound in timed
        ),
        *(
            Row(
                f"share-d{d}-o{order}",
                f"share of the matrix-product rate, H={heads} d={d} order {order} "
                f"(D={num_features(d, order)}), T={tokens(4096)}",
                "matrix product",
                "GFLOP/s",
                Goal("at least", bound),
                functools.partial(share, heads, d, order, tokens(4096), max(2048 // shorter, 64)),
            )
            for heads, d, order, bound in shares
        ),
        Row(
            "training-memory",
            f"memory of a training step, H=8 d=16 order 2, T={long}",
            f"T/{CHUNK} states + {CHUNK_BUFFERS} buffers",
            "MB",
            Goal("at most", 1),
            lambda _: bounded(training_memory(long), memory_bound(8, 16, 2, long)),
            threads=(1,),
        ),
        Row(
            "training-memory-growth",
            f"memory of a training step, H=8 d=16 order 2: a token more from T={middle} to {long}",
            f"from {short} to {middle}",
            "B/token",
            Goal("at most", 1.02),
            lambda _: bounded(growth(middle, long), growth(short, middle)),
            threads=(1,),
        ),
        Row(
            "decode",
            "decode one token, H=8 d=16 order 2",
            "SDPA over 1024 cached tokens",
            "µs",
            Goal("at most", 1),
            decode,
        ),
        Row(
            "decode-constant",
            f"decode token {tokens(1_000_000)}, H=8 d=16 order 2",
            f"token {tokens(1000)}",
            "µs",
            Goal("at most", 1.1),
            functools.partial(decode_late, tokens(1_000_000), tokens(1000)),
            threads=(1,),
        ),
        Row(
            "cumulative-time",
            f"forward, H=4 d=16 order 3, T={tokens(4096)}",
            "cumulative sum",
            "ms",
            Goal("at least", 100),
            functools.partial(cumulative_time, tokens(4096)),
        ),
        Row(
            "cumulative-memory",
            f"memory of the forward, H=4 d=16 order 3, T={tokens(4096)}",
            "cumulative sum",
            "MB",
            Goal("at most", 1 / 50),
            lambda _: bounded(*cumulative_memory(tokens(4096))),
            threads=(1,),
        ),
        *(
            Row(
                f"crossover-d{d}-o{order}",
                f"predicted crossover with SDPA, H={crossover.HEADS} d={d} order {order}",
                "measured",
                "tokens",
                Goal("at most", 2),
                functools.partial(predicted_crossover, d, order),
                threads=(1,),
            )
            for d, order in [(16, 2), (64, 1), (32, 2), (16, 3)]
        ),
        Row(
            "long-stream",
            f"recurrent form, float32 against float64 after {tokens(10_000_000)} tokens",
            "allowed",
            "error",
            Goal("at most", 1),
            lambda _: bounded(long_stream(tokens(10_000_000)), 1e-4),
            threads=(1,),
        ),
    ]


def random_inputs(heads: int, length: int, d: int, *, dtype=torch.float32, requires_grad=False):
    """q, k, v, each (1, heads, length, d)."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, heads, length, d)
    return [
        torch.randn(shape, generator=generator, dtype=dtype, requires_grad=requires_grad)
        for _ in range(3)
    ]


def bounded(ours: float, rival: float) -> Measurement:
    """The ratio is what ours takes of what the rival takes."""
    return Measurement(ours, rival, ours / rival)


def faster(ours, rival, seconds: float) -> Measurement:
    """The ratio says how many times faster ours is."""
    times = interleaved([ours, rival], seconds)
    return Measurement(*times, times[1] / times[0])


def ours(q, k, v, order: int):
    return chunked_attention(q, k, v, kernel=taylor(order), return_state=False)[0]


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def gradients(attend, q, k, v, grad_out):
    """The output and the gradients of q, k, v: what a training step leaves."""
    out = attend(q, k, v)
    return out, *torch.autograd.grad(out, (q, k, v), grad_out)


# The measurements


def forward(heads, d, order, length, seconds) -> Measurement:
    qkv = random_inputs(heads, length, d)
    return faster(lambda: ours(*qkv, order), lambda: sdpa(*qkv), seconds)


def training(heads, d, order, length, seconds) -> Measurement:
    qkv = random_inputs(heads, length, d, requires_grad=True)
    attend, grad_out = functools.partial(ours, order=order), torch.ones(1, heads, length, d)
    return faster(
        lambda: gradients(attend, *qkv, grad_out), lambda: gradients(sdpa, *qkv, grad_out), seconds
    )


def share(heads, d, order, length, side, seconds) -> Measurement:
    """Operations are counted as 4 D (e+1) + 64 (d+e) a token and head, whatever is really done."""
    qkv, square = random_inputs(heads, length, d), torch.randn(side, side)
    operations = heads * length * (4 * num_features(d, order) * (d + 1) + 64 * 2 * d)
    time, product_time = interleaved([lambda: ours(*qkv, order), lambda: square @ square], seconds)
    return bounded(operations / time, 2 * side**3 / product_time)


@functools.lru_cache
def training_memory(length) -> int:
    """Bytes of a training step beyond inputs, output and gradients; 8 heads, d = 16, order 2."""
    qkv, grad_out = random_inputs(8, length, 16, requires_grad=True), torch.ones(1, 8, length, 16)
    return peak_bytes(lambda: gradients(functools.partial(ours, order=2), *qkv, grad_out))


def growth(shorter, longer) -> float:
    """Bytes that one token more takes in a training step."""
    return (training_memory(longer) - training_memory(shorter)) / (longer - shorter)


def memory_bound(heads, d, order, length) -> float:
    """Bytes of one state per chunk, and of a constant number of buffers of features of a chunk."""
    features = num_features(d, order)
    states, buffers = length / CHUNK * features * (d + 1), CHUNK_BUFFERS * CHUNK * features
    return 4 * heads * (states + buffers)


def decode(seconds) -> Measurement:
    q, k, v = (x[0, :, 0] for x in random_inputs(8, 1, 16))
    _, keys, values = random_inputs(8, 1024, 16)
    query, decoder = q[None, :, None], decoder_after(0)
    return bounded(
        *interleaved(
            [
                lambda: decoder.step(q, k, v),
                lambda: F.scaled_dot_product_attention(query, keys, values),
            ],
            seconds,
        )
    )


def decode_late(late, early, seconds) -> Measurement:
    q, k, v = (x[0, :, 0] for x in random_inputs(8, 1, 16))
    decoders = [decoder_after(late), decoder_after(early)]
    steps = [functools.partial(decoder.step, q, k, v) for decoder in decoders]
    return bounded(*interleaved(steps, seconds))


def decoder_after(length):
    """A decoder that has seen so many tokens."""
    state = init_state(taylor(2), d=16, e=16, batch_shape=(8,))
    for start in range(0, length, PIECE):
        q, k, v = (x[0] for x in random_inputs(8, min(PIECE, length - start), 16))
        _, state = chunked_attention(q[:, :0], k, v, kernel=taylor(2), initial_state=state)
    return softattn_lib.Decoder(taylor(2), d=16, e=16, batch_shape=(8,), initial_state=state)


def cumulative_time(length, seconds) -> Measurement:
    qkv, kernel = random_inputs(4, length, 16), PolynomialKernel(taylor(3))
    return faster(lambda: ours(*qkv, 3), lambda: cumulative_attention(*qkv, kernel), seconds)


def cumulative_memory(length) -> tuple[int, int]:
    qkv, kernel = random_inputs(4, length, 16), PolynomialKernel(taylor(3))
    return (
        peak_bytes(lambda: ours(*qkv, 3)),
        peak_bytes(lambda: cumulative_attention(*qkv, kernel)),
    )


def predicted_crossover(d, order, seconds) -> Measurement:
    """The ratio is the larger over the smaller."""
    predicted = softattn_lib.crossover(d, order, heads=crossover.HEADS)
    measured = crossover.measure(d, order, seconds / 20)
    if measured is None:
        raise ValueError(f"no crossover at or below {crossover.LIMIT} tokens")
    return Measurement(predicted, measured, max(predicted / measured, measured / predicted))


def long_stream(length, d=4, queries=64) -> float:
    """Largest relative error of the last outputs and of the final state, float32 recurrent form.

    The float64 numbers come from the chunked form. Values have a mean of 1, so that sums grow.
    """
    generator, kernel = torch.Generator().manual_seed(0), taylor(2)
    single = exact = None
    for start in range(0, length, PIECE):
        size = min(PIECE, length - start)
        q, k, v = torch.randn(3, size, d, generator=generator)
        qkv = (q[-queries:], k, v + 1)
        with torch.inference_mode():
            out, single = recurrent_attention(*qkv, kernel=kernel, initial_state=single)
            qkv = (x.double() for x in qkv)
            exact_out, exact = chunked_attention(*qkv, kernel=kernel, initial_state=exact)
    pairs = [(out, exact_out), (single.sums, exact.sums)]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)
