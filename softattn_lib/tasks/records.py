"""Results as rows of one tidy table: where they come from, and how they are kept."""

import csv
import math
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass
from pathlib import Path

import torch

import softattn_lib

PACKAGE_FOLDER = Path(softattn_lib.__file__).parent


def code_version() -> str:
    """The last commit that changed the package, with "+changes" if files differ from it.

    Outside a git repository that holds the package, its version.

    >>> code_version() != ""
    True
    """
    commit = _git("log", "-1", "--format=%h", "--", ".")
    if not commit:
        return softattn_lib.__version__
    return commit + ("+changes" if _git("status", "--porcelain", "--", ".") else "")


def _git(*arguments) -> str:
    command = ["git", "-C", PACKAGE_FOLDER, *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:  # no git on this machine
        return ""


def machine(device: torch.device | str = "cpu") -> str:
    """Processor or accelerator, threads and torch version, for instance to compare seconds.

    >>> machine().endswith(f"torch {torch.__version__}")
    True
    """
    device = torch.device(device)
    if device.type == "cuda":
        worker = torch.cuda.get_device_name(device)
    else:
        worker = f"{_processor()}, {torch.get_num_threads()} of {os.cpu_count()} threads"
        worker += ", mps" if device.type == "mps" else ""
    return f"{platform.system()}, {worker}, torch {torch.__version__}"


def _processor() -> str:
    try:  # platform.processor() is empty or only "x86_64" on Linux
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def check_columns(path: str | Path, columns: list[str]) -> None:
    """Check that a table is not there yet, or has these columns.

    Raises:
        ValueError: it has others.
    """
    found = _columns(Path(path))
    if found and found != list(columns):
        raise ValueError(f"{path} has the columns {found}; this result has {list(columns)}")


def append_row(path: str | Path, row: dict) -> None:
    """Append one result to a CSV file, which is made, header first, if it is not there.

    Raises:
        ValueError: the file has other columns.
    """
    check_columns(path, list(row))
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    _write(path, [row], "a")


def write_rows(path: str | Path, rows: list[dict]) -> None:
    """Write a CSV file anew, of at least one row; all have the same columns.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_rows(f"{folder}/table.csv", [{"seed": 0, "loss": "1.5"}])
    ...     read_rows(f"{folder}/table.csv")
    [{'seed': '0', 'loss': '1.5'}]
    """
    _write(path, rows, "w")


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The results in a CSV file, values as text; none if there is no such file."""
    if not Path(path).exists():
        return []
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def grouped(rows: list[dict], by: str) -> dict[str, list[dict]]:
    """The rows that share a value of one column, by that value, in the order of the table.

    >>> grouped([{"order": "2", "loss": "4.0"}, {"order": "4", "loss": "1.9"}], by="order")["4"]
    [{'order': '4', 'loss': '1.9'}]
    """
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row[by], []).append(row)
    return groups


@dataclass(frozen=True)
class Summary:
    """One number of several runs that differ in their seed.

    Attributes:
        values: one a run, in the order of the rows; NaN where a run diverged.
        mean, lowest, highest: of the values; NaN, all three, as soon as one of them is.
    """

    mean: float
    lowest: float
    highest: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values) -> "Summary":
        """The summary of one number a run."""
        values = tuple(values)
        if any(map(math.isnan, values)):
            return cls(math.nan, math.nan, math.nan, values)
        return cls(statistics.mean(values), min(values), max(values), values)

    def overlaps(self, other: "Summary") -> bool:
        """Whether the two ranges from lowest to highest share a number; never with a NaN.

        >>> Summary.of([1.0, 2.0]).overlaps(Summary.of([1.5, 3.0]))
        True
        """
        return self.lowest <= other.highest and other.lowest <= self.highest


def summarize(rows: list[dict], column: str, by: str = "variant") -> dict[str, Summary]:
    """Mean and range over the seeds, for each variant.

    Args:
        rows: of a table, as `read_rows` gives them.
        column: whose numbers to summarize.
        by: column whose values tell the groups apart, in the order in which they appear.

    Raises:
        ValueError: there are no rows, or a value is not a number.
        KeyError: a column is not there.

    >>> rows = [{"variant": "l2", "loss": "1.0"}, {"variant": "l2", "loss": "2.0"}]
    >>> summarize(rows, "loss")["l2"]
    Summary(mean=1.5, lowest=1.0, highest=2.0, values=(1.0, 2.0))
    """
    if not rows:
        raise ValueError("rows is empty; is the table where it was looked for?")
    missing = [name for name in (column, by) if name not in rows[0]]
    if missing:
        raise KeyError(f"no column {missing[0]!r}; the table has {', '.join(rows[0])}")
    return {
        name: Summary.of(float(row[column]) for row in group)
        for name, group in grouped(rows, by).items()
    }


def _write(path, rows: list[dict], mode: str) -> None:
    with Path(path).open(mode, newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)


def _columns(path: Path) -> list[str]:
    """Names of the columns, none for a file that is empty or not there."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return next(csv.reader(file), [])
