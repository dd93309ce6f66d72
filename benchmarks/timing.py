"""Times that can be compared, and the name of the machine that they belong to."""

import os
import platform
import re
import statistics
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import torch

MIN_ROUNDS = 3


def interleaved(functions, seconds: float, clock=time.perf_counter) -> list[float]:
    """Median seconds of each function, called in turn: A B A B ...

    What else the machine does then falls on all of them alike. Each is called once before, to warm
    up; there are at least `MIN_ROUNDS` rounds, and new ones as long as `seconds` have not passed.

    Example:
        >>> fast, slow = interleaved([lambda: None, lambda: time.sleep(0.001)], seconds=0.01)
        >>> fast < slow
        True
    """
    for function in functions:
        function()
    times = [[] for _ in functions]
    start = clock()
    while len(times[0]) < MIN_ROUNDS or clock() - start < seconds:
        for function, mine in zip(functions, times, strict=True):
            before = clock()
            function()
            mine.append(clock() - before)
    return [statistics.median(mine) for mine in times]


@dataclass(frozen=True)
class Machine:
    """Where and when a table was measured."""

    name: str  # model of the processor
    cores: int
    system: str
    python: str
    torch: str
    date: str

    @property
    def slug(self) -> str:
        """The name of a file of results."""
        words = re.findall(r"[a-z0-9]+", self.name.lower())
        return "-".join([*words, f"{self.cores}-cores"])

    def __str__(self):
        return ", ".join(f"{name} {value}" for name, value in asdict(self).items())


def machine() -> Machine:
    """This machine, today."""
    return Machine(
        name=processor(),
        cores=os.cpu_count() or 1,
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        date=date.today().isoformat(),
    )


def processor(cpuinfo=Path("/proc/cpuinfo")) -> str:
    """The model of the processor, as Linux names it, or what Python knows elsewhere."""
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
