"""Thin out the curves of finished runs into one table: `python -m tools.curves`.

Reads runs/SWEEP/VARIANT-seedSEED/, which `softattn sweep` leaves behind, and writes
experiments/curves.csv: of every ten steps the mean and the largest training loss and gradient norm.
"""

import json
from pathlib import Path

import numpy as np

from softattn_lib.tasks.records import read_rows, write_rows
from softattn_lib.tasks.training import CURVE, LOG_EVERY, RESULT

ROOT = Path(__file__).resolve().parent.parent
SWEEPS = ("small", "stability")
RUNS, TABLE = ROOT / "runs", ROOT / "experiments" / "curves.csv"


def main():
    rows = [row for sweep in SWEEPS for run in _runs(sweep) for row in thin(sweep, run)]
    write_rows(TABLE, rows)
    print(f"{TABLE.relative_to(ROOT)}: {len(rows)} rows")


def _runs(sweep: str) -> list[Path]:
    """Folders of its finished runs, by seed and variant."""
    finished = [path.parent for path in RUNS.glob(f"{sweep}/*/{RESULT}")]
    if not finished:
        raise SystemExit(
            f"runs/{sweep} holds no finished run; do them with "
            f"`softattn sweep experiments/{sweep}.yaml`"
        )
    return sorted(finished, key=lambda path: path.name.rsplit("-seed", 1)[::-1])


def thin(sweep: str, run: Path):
    """Rows of the table for one run; steps are the last ones of their ten, NaN stays NaN."""
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
            "train_loss": f"{np.mean(losses):.4f}",
            "largest_loss": f"{np.max(losses):.4f}",
            "gradient_norm": f"{np.mean(norms):.4f}",
            "largest_gradient_norm": f"{np.max(norms):.4f}",
        }


if __name__ == "__main__":
    main()
