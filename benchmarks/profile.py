"""`python -m benchmarks.profile`: where the time of the chunked form goes, one table per machine.

For each row of the share of the matrix-product rate, by the kind of operation.
"""

import warnings
from collections import Counter

import torch
from torch.profiler import ProfilerActivity, profile

from softattn_lib import SignedWeightsWarning, num_features

from .report import table
from .targets import ours, random_inputs
from .timing import machine

CASES = ((8, 16, 3), (4, 32, 2), (4, 64, 2), (2, 16, 4))  # heads, d, order
LENGTH = 4096
KINDS = {
    "matrix products": ("bmm", "baddbmm_", "addmm_"),
    "element by element": (
        "mul",
        "mul_",
        "add",
        "add_",
        "addcmul",
        "addcmul_",
        "triu_",
        "sum",
        "div",
    ),
    "moving": ("copy_", "cat", "index", "fill_", "index_put_"),
}
REST = "calls, views, checks"


def shares(heads: int, d: int, order: int, length: int = LENGTH) -> dict[str, float]:
    """Kind of operation -> its share of the time of a forward pass; they sum to 1."""
    qkv = random_inputs(heads, length, d)
    ours(*qkv, order)
    with profile(activities=[ProfilerActivity.CPU]) as record:
        ours(*qkv, order)
    times = Counter()
    for event in record.key_averages():
        name = event.key.removeprefix("aten::")
        kind = next((kind for kind, names in KINDS.items() if name in names), REST)
        times[kind] += event.self_cpu_time_total
    return {kind: times[kind] / times.total() for kind in (*KINDS, REST)}


def page() -> str:
    """The table as Markdown, for one and two threads."""
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for heads, d, order in CASES:
            found = shares(heads, d, order)
            work = f"H={heads} d={d} order {order} (D={num_features(d, order)})"
            rows.append([work, str(threads), *(f"{share:.0%}" for share in found.values())])
    head = ["forward, T=4096", "threads", *KINDS, REST]
    return f"# Where the time goes on {machine().name}\n\n{machine()}.\n\n{table(head, rows)}\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore", SignedWeightsWarning)
    from .__main__ import RESULTS

    text = page()
    print(text)
    (RESULTS / f"profile-{machine().slug}.md").write_text(text)
