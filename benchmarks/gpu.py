"""Every form on a GPU, checked and timed within 6 minutes: `python -m benchmarks.gpu`.

First correctness against float64 on the CPU, then times beside SDPA and FlexAttention. A check or
a time that fails is told in the table and the rest goes on; what there is no time for is named.
`--device cpu --tiny` runs the same code on a CPU in seconds, to try the script itself.
"""

import argparse
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache, partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import softattn_lib
from softattn_lib import (
    SignedWeightsWarning,
    chunked_attention,
    parallel_attention,
    recurrent_attention,
    taylor,
)

from .report import table
from .timing import processor

FORMS = {
    "chunked": chunked_attention,
    "parallel": parallel_attention,
    "recurrent": recurrent_attention,
}
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Case:
    """Width of the heads, order of the series, dtype of the inputs."""

    d: int
    order: int
    dtype: torch.dtype

    def __str__(self):
        return f"d={self.d} order {self.order} {str(self.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Sizes:
    """What is checked and timed; lengths in tokens."""

    checked: tuple[Case, ...]
    checked_length: int
    timed: tuple[Case, ...]  # the most important first: time may run out
    heads: int
    lengths: tuple[int, ...]
    flex: tuple[int, ...]  # lengths with FlexAttention, which is compiled anew for each
    parallel: int  # longest for the parallel form
    recurrent: int  # longest for the recurrent form
    cache: tuple[int, ...]  # lengths of the KV cache beside decoding
    repeats: int


FULL = Sizes(
    checked=tuple(Case(d, order, torch.float32) for d, order in [(16, 2), (16, 3), (64, 2)]),
    checked_length=300,
    timed=(
        Case(16, 2, torch.float32),
        *(
            Case(d, order, torch.bfloat16)
            for d, order in [(16, 2), (64, 2), (32, 2), (16, 3), (32, 3), (64, 3)]
        ),
    ),
    heads=8,
    lengths=(1024, 4096, 16_384, 65_536),
    flex=(4096, 16_384),
    parallel=4096,
    recurrent=1024,
    cache=(1024, 16_384),
    repeats=30,
)
TINY = Sizes(
    checked=(Case(4, 2, torch.float32),),
    checked_length=40,
    timed=(Case(4, 2, torch.float32), Case(4, 3, torch.bfloat16)),
    heads=2,
    lengths=(16, 32),
    flex=(32,),
    parallel=32,
    recurrent=16,
    cache=(16,),
    repeats=3,
)


@dataclass
class Run:
    """One run: where, how large, until when, and what did not fit."""

    device: torch.device
    sizes: Sizes
    deadline: float
    skipped: list[str] = field(default_factory=list)

    def cell(self, name: str, measure: Callable[..., str], *arguments) -> str:
        """What `measure` says, or why it says nothing."""
        if time.monotonic() > self.deadline:
            if name not in self.skipped:
                self.skipped.append(name)
            return "skipped"
        try:
            return measure(self, *arguments)
        except Exception as error:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # room for those that follow, after an error of memory
            return f"failed: {type(error).__name__}: {error}".splitlines()[0][:120]

    def inputs(self, case: Case, length: int, requires_grad=False):
        """q, k, v, each (1, H, T, d); the same numbers in every dtype, up to rounding."""
        generator = torch.Generator(self.device).manual_seed(0)
        shape = (3, 1, self.sizes.heads, length, case.d)
        tensors = torch.randn(shape, generator=generator, device=self.device, dtype=torch.float64)
        return [x.to(case.dtype).requires_grad_(requires_grad) for x in tensors]

    def milliseconds(self, function) -> str:
        """Median time of a call after two to warm up; fewer repeats of what takes long."""
        for _ in range(2):
            function()
        times, start = [], time.monotonic()
        while len(times) < 3 or (
            len(times) < self.sizes.repeats and time.monotonic() - start < 0.5
        ):
            times.append(self.once(function))
        return f"{statistics.median(times):.3g}"

    def once(self, function) -> float:
        """Milliseconds of one call, by the device's own clock where it has one."""
        if self.device.type != "cuda":
            before = time.perf_counter()
            function()
            return 1e3 * (time.perf_counter() - before)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop)


# What is called


def attend(form, case: Case, q, k, v):
    return form(q, k, v, kernel=taylor(case.order), return_state=False)[0]


def sdpa(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@lru_cache
def flex(order: int, length: int, device: torch.device):
    """Softmax of the logarithm of the polynomial: the same function, for even orders."""
    polynomial = taylor(order)
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device=device)
    compiled = torch.compile(flex_attention, dynamic=False)

    def log_weight(score, *position):
        return polynomial(score).log()

    return lambda q, k, v: compiled(q, k, v, score_mod=log_weight, block_mask=mask)


def gradients(function, q, k, v):
    """Those of the sum of the squares of the output."""
    return torch.autograd.grad(function(q, k, v).float().square().sum(), (q, k, v))


def new_decoder(run: Run, case: Case):
    return softattn_lib.Decoder(
        taylor(case.order),
        d=case.d,
        e=case.d,
        batch_shape=(run.sizes.heads,),
        dtype=case.dtype,
        device=run.device,
    )


# Correctness, relative to float64 on the CPU


def check_output(run: Run, case: Case, form) -> str:
    qkv = run.inputs(case, run.sizes.checked_length)
    return verdict(distance([attend(form, case, *qkv)], [exact(case, *qkv)]), 1e-5)


def check_gradients(run: Run, case: Case, form) -> str:
    qkv = run.inputs(case, run.sizes.checked_length, requires_grad=True)
    doubles = [x.detach().cpu().double().requires_grad_() for x in qkv]
    truth = gradients(partial(attend, parallel_attention, case), *doubles)
    return verdict(distance(gradients(partial(attend, form, case), *qkv), truth), 1e-4)


def check_bfloat16(run: Run, case: Case, form) -> str:
    """At most twice the error that rounding the inputs and the output makes by itself."""
    unrounded = run.inputs(Case(case.d, case.order, torch.float64), run.sizes.checked_length)
    rounded = [x.bfloat16() for x in unrounded]
    truth = exact(case, *unrounded)
    unavoidable = distance([exact(case, *rounded).bfloat16()], [truth])
    return verdict(distance([attend(form, case, *rounded)], [truth]), 2 * unavoidable)


def check_decoder(run: Run, case: Case) -> str:
    q, k, v = (x[0] for x in run.inputs(case, run.sizes.checked_length))
    decoder = new_decoder(run, case)
    steps = [decoder.step(q[:, t], k[:, t], v[:, t]).clone() for t in range(q.shape[1])]
    return verdict(distance([torch.stack(steps, dim=1)], [exact(case, q, k, v)]), 1e-5)


def exact(case: Case, *tensors):
    return attend(parallel_attention, case, *(x.cpu().double() for x in tensors))


def distance(results, truths) -> float:
    """The largest relative distance of tensors from float64 ones on the CPU."""
    pairs = zip(results, truths, strict=True)
    return max(float((a.cpu().double() - b).norm() / b.norm()) for a, b in pairs)


def verdict(error: float, bound: float) -> str:
    return f"{'ok' if error <= bound else 'WRONG'}: {error:.1e}, at most {bound:.1e}"


CHECKS = {
    "output": check_output,
    "gradients": check_gradients,
    "bfloat16 inputs": check_bfloat16,
}


def checks(run: Run):
    """Lines of the table of checks."""
    for case in run.sizes.checked:
        for what, check in CHECKS.items():
            for form, function in FORMS.items():
                name = f"{what}, {form}, {case}"
                yield name, run.cell(name, check, case, function)
        name = f"Decoder, {case}"
        yield name, run.cell(name, check_decoder, case)


# Times


def contenders(run: Run, case: Case, length: int) -> dict[str, Callable]:
    """The attentions (q, k, v) -> out that are timed at this length, by column."""
    longest = {"parallel": run.sizes.parallel, "recurrent": run.sizes.recurrent}
    found = {
        name: partial(attend, form, case)
        for name, form in FORMS.items()
        if length <= longest.get(name, length)
    }
    found["SDPA"] = sdpa
    if case.order % 2 == 0 and length in run.sizes.flex:
        found["FlexAttention"] = lambda *qkv: flex(case.order, length, run.device)(*qkv)
    return found


def time_forward(run: Run, case: Case, length: int, function) -> str:
    return run.milliseconds(partial(function, *run.inputs(case, length)))


def time_training(run: Run, case: Case, length: int, function) -> str:
    qkv = run.inputs(case, length, requires_grad=True)
    return run.milliseconds(partial(gradients, function, *qkv))


def time_decoding(run: Run, case: Case) -> str:
    token = [x[0, :, 0] for x in run.inputs(case, 1)]
    return run.milliseconds(partial(new_decoder(run, case).step, *token))


def time_cache(run: Run, case: Case, length: int) -> str:
    query, keys, values = run.inputs(case, length)
    query = query[..., :1, :]
    return run.milliseconds(partial(F.scaled_dot_product_attention, query, keys, values))


PASSES = {"forward": time_forward, "forward + backward": time_training}
COLUMNS = [*FORMS, "SDPA", "FlexAttention"]


def decoding(run: Run):
    """Lines of the table of decoding: one token with the state, and with a KV cache."""
    for case in run.sizes.timed:
        name = f"decode, {case}"
        cached = (run.cell(name, time_cache, case, length) for length in run.sizes.cache)
        yield str(case), run.cell(name, time_decoding, case), *cached


def timings(run: Run):
    """Lines of the table of times; a column is empty where a form is not timed."""
    for case in run.sizes.timed:
        for what, measure in PASSES.items():
            for length in run.sizes.lengths:
                name = f"{what}, {case}, T={length}"
                found = {
                    column: run.cell(name, measure, case, length, function)
                    for column, function in contenders(run, case, length).items()
                }
                yield what, str(case), str(length), *(found.get(c, "") for c in COLUMNS)


# The page and the command


def sections(run: Run):
    """The page in pieces, each as soon as it is measured."""
    yield (
        f"# Measured on {name_of(run.device)}\n\n"
        f"`python -m benchmarks.gpu`: torch {torch.__version__}, {date.today().isoformat()}; "
        f"batch 1, {run.sizes.heads} heads, causal, medians.\n"
    )
    caches = [f"KV cache of {length}" for length in run.sizes.cache]
    tables = [
        ("Correct", ["check", "error against float64, relative"], checks),
        ("Decoding, milliseconds a token", ["case", "state", *caches], decoding),
        ("Times, milliseconds", ["pass", "case", "T", *COLUMNS], timings),
    ]
    for title, header, rows in tables:
        yield f"\n## {title}\n\n{table(header, list(rows(run)))}\n"
    if run.skipped:
        yield "\nSkipped, at least in part, for lack of time:\n\n"
        yield "".join(f"* {name}\n" for name in run.skipped)


def name_of(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def main(arguments=None, folder=RESULTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, nothing compiled")
    parser.add_argument("--minutes", type=float, default=5.5, help="start nothing new after these")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here; --device cpu --tiny tries the script on a CPU", file=sys.stderr)
        return 2
    sizes, deadline = TINY if options.tiny else FULL, time.monotonic() + 60 * options.minutes
    run = Run(device, sizes, deadline)
    slug = "-".join(re.findall(r"[a-z0-9]+", name_of(device).lower()))
    path, page = folder / f"gpu-{slug}.md", ""
    folder.mkdir(exist_ok=True)
    with (
        warnings.catch_warnings(),
        torch.compiler.set_stance("force_eager" if options.tiny else "default"),
    ):
        warnings.simplefilter("ignore", SignedWeightsWarning)  # odd orders are timed only
        for section in sections(run):
            print(section, end="", flush=True)
            page += section
            path.write_text(page)  # what is measured is kept, whatever happens next
    print(f"\nwritten to {path}")
    return int("WRONG" in page)


if __name__ == "__main__":
    sys.exit(main())
