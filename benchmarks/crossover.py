"""Where the chunked form overtakes softmax attention: measured, beside what the cost model says.

`python -m benchmarks.crossover` measures all of them and writes crossovers.csv beside this file.
Causal, forward, float32, one thread and the time of its processor, so that other work on the
machine counts less.
"""

import time
from pathlib import Path

import torch
import torch.nn.functional as F

from benchmarks.timing import interleaved, processor
from softattn_lib import chunked_attention, crossover, taylor
from softattn_lib.tasks.records import write_rows

FILE = Path(__file__).with_name("crossovers.csv")
COLUMNS = ("machine", "torch", "heads", "d", "order", "tokens")
WIDTHS, ORDERS = (8, 16, 32, 64), (1, 2, 3, 4)
HEADS = 8  # below 4096 tokens; longer calls take one, because what heads share no longer counts
LIMIT = 65536  # longer sequences are not measured


def ratio(d: int, order: int, length: int, seconds: float) -> float:
    """The time of the chunked form over that of softmax attention."""
    q, k, v = torch.randn(3, 1, HEADS if length < 4096 else 1, length, d)
    options = {"kernel": taylor(order), "normalizer": "l2", "return_state": False}
    functions = (
        lambda: chunked_attention(q, k, v, **options),
        lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    )
    with torch.no_grad():
        ours, softmax = interleaved(functions, seconds, time.process_time)
    return ours / softmax


def measure(d: int, order: int, seconds: float = 0.3, limit: int = LIMIT) -> int | None:
    """The length, within a tenth, above which the chunked form is faster; None above `limit`.

    Args:
        d, order: of the keys and the polynomial.
        seconds: spent on each length at least.
        limit: the longest sequence measured.
    """
    probe = 256  # time grows with T in chunks, and at most with T^2 for softmax
    if limit > probe and ratio(d, order, probe, seconds) > limit / probe:
        return None
    low, high = 16, limit
    while high > 1.1 * low:
        middle = round((low * high) ** 0.5)
        is_faster = ratio(d, order, middle, seconds) < 1
        low, high = (low, middle) if is_faster else (middle, high)
    return high if high < limit else None


def main():
    """Measure, print and write the table."""
    torch.set_num_threads(1)
    rows = []
    for d in WIDTHS:
        measured = 0
        for order in ORDERS:
            if measured is not None:  # higher orders only cost more
                measured = measure(d, order)
            values = processor(), torch.__version__, HEADS, d, order, measured
            rows.append(dict(zip(COLUMNS, values, strict=True)))
            predicted = crossover(d, order, heads=HEADS)
            print(f"d={d} order={order}: {measured}, predicted {predicted}", flush=True)
    write_rows(FILE, rows)


if __name__ == "__main__":
    main()
