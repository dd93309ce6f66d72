"""Thin out the curves of finished runs into one table: `python -m tools.curves`.

Reads runs/SWEEP/VARIANT-seedSEED/, which `softattn sweep` leaves behind, and writes
experiments/curves.csv: of every ten steps the mean and the largest training loss and gradient norm.
"""

import csv
import json
import math
from pathlib import Path

from softattn_lib.tasks.records import read_rows
from softattn_lib.tasks.training import CURVE, LOG_EVERY, RESULT

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = ("small", "stability")
TABLE = ROOT / "experiments" / "curves.csv"


def main():
    rows = [
        row for sweep in SWEEPS for run in _runs(ROOT / "runs" / sweep) for row in thin(sweep, run)
    ]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{TABLE.relative_to(ROOT)}: {len(rows)} rows")


def _runs(folder: Path) -> list[Path]:
    """Finished runs, by seed and variant."""
    finished = (path.parent for path in folder.glob(f"*/{RESULT}"))
    return sorted(finished, key=lambda path: path.name.rsplit("-seed", 1)[::-1])


def thin(sweep: str, run: Path):
    """Rows of the table for one run; steps are the last ones of their ten."""
    result = json.loads((run / RESULT).read_text())
    steps = read_rows(run / CURVE)
    for start in range(0, len(steps), LOG_EVERY):
        part = steps[start : start + LOG_EVERY]
        losses = [float(step["train_loss"]) for step in part]
        norms = [float(step["gradient_norm"]) for step in part]
        yield {
            "sweep": sweep,
            "variant": result["variant"],
            "seed": result["seed"],
            "step": part[-1]["step"],
            "train_loss": f"{math.fsum(losses) / len(losses):.4f}",
            "largest_loss": f"{max(losses):.4f}",
            "gradient_norm": f"{math.fsum(norms) / len(norms):.4f}",
            "largest_gradient_norm": f"{max(norms):.4f}",
        }


if __name__ == "__main__":
    main()
