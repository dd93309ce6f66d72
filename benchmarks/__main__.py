"""`python -m benchmarks`: measure every promise and every peer, print and write the tables."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import torch

from .peers import PeerResult, compare
from .report import as_json, markdown
from .targets import Result, rows
from .timing import machine

RESULTS = Path(__file__).parent / "results"
THREADS = (1, 2)
PEERS = "peers"  # the name of the table of peers for --only


def main(arguments=None) -> None:
    options = parser().parse_args(arguments)
    if options.threads is not None:
        measure(options)
        return
    results, peers = [], []
    for threads in THREADS:
        found = in_new_process(threads, options)
        results += [Result(**result) for result in found["targets"]]
        peers += [PeerResult(**{**p, "times": tuple(p["times"])}) for p in found["peers"]]
    order = [row.name for row in rows()]
    results.sort(key=lambda result: order.index(result.name))
    here = machine()
    page = markdown(here, results, peers)
    print(page)
    if options.only:
        return
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{here.slug}.md"
    path.write_text(page)
    numbers = json.dumps(as_json(here, results, peers), indent=1, ensure_ascii=False)
    path.with_suffix(".json").write_text(numbers + "\n")
    print(f"written to {path} and {path.with_suffix('.json')}")


def parser() -> argparse.ArgumentParser:
    names = [*(row.name for row in rows()), PEERS]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--only", choices=names, action="append", help="measure this alone, and write no file"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="to spend on a row (default 2)")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)  # of the new process
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)  # its results
    return parser


def in_new_process(threads: int, options) -> dict:
    """The results of one number of threads: libraries read it when they are loaded."""
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "results.json"
        command = [sys.executable, "-m", "benchmarks", f"--threads={threads}", f"--into={into}"]
        command += [f"--seconds={options.seconds}", *(f"--only={n}" for n in options.only or [])]
        number = str(threads)
        environment = {**os.environ, "OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number}
        subprocess.run(command, env=environment, check=True)
        return json.loads(into.read_text())


def measure(options) -> None:
    """Measure with so many threads in this process, and tell how it goes."""
    torch.set_num_threads(options.threads)
    results, peers = [], []
    for row in rows():
        if options.threads in row.threads and row.name in (options.only or [row.name]):
            results.append(row.run(options.seconds))
            result = results[-1]
            print(f"{result.threads} threads, {row.name}: {result.ratio} {result.verdict}")
    if options.threads == THREADS[0] and PEERS in (options.only or [PEERS]):
        peers = compare(seconds=options.seconds / 4)
    found = {"targets": [asdict(r) for r in results], "peers": [asdict(p) for p in peers]}
    options.into.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
