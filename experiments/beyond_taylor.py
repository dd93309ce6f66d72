"""The tables about other polynomials: `python experiments/beyond_taylor.py PART`.

PART is curves, heads or replaced. Each goes on where it was stopped. `heads` needs the calibrations
of order 2 and 4 that `curves` stores, and `replaced` the table that `heads` writes.
"""

import argparse
from functools import partial
from pathlib import Path

from softattn_lib.calibration import FAMILIES, load_calibration
from softattn_lib.llama import load_small_model
from softattn_lib.tasks import beyond_taylor
from softattn_lib.tasks.records import read_rows

HERE = Path(__file__).parent
CALIBRATIONS = HERE / "calibrations"
say = partial(print, flush=True)


def curves(model, tokenizer, options):
    beyond_taylor.curves(
        model,
        tokenizer,
        HERE / "beyond_taylor.csv",
        options.families,
        options.orders,
        folder=CALIBRATIONS,
        report=say,
    )


def heads(model, tokenizer, options):
    sample = beyond_taylor.standard_sample(model, tokenizer)
    for order in options.orders:
        calibration = load_calibration(CALIBRATIONS / f"sum_of_squares-{order}.safetensors")
        beyond_taylor.damage(model, tokenizer, HERE / "heads.csv", calibration, sample)


def replaced(model, tokenizer, options):
    rows = read_rows(HERE / "heads.csv")
    for order in options.orders:
        calibration = load_calibration(CALIBRATIONS / f"sum_of_squares-{order}.safetensors")
        measured = [row for row in rows if row["order"] == str(order)]
        measured.sort(key=lambda row: float(row["damage"]))
        ranked = [(int(row["layer"]), int(row["head"])) for row in measured]
        counts = range(0, len(ranked) + 1, 10)
        table = HERE / "replaced.csv"
        beyond_taylor.replacement(model, tokenizer, table, calibration, ranked, counts, report=say)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(required=True, metavar="PART")
    for run, orders in ((curves, beyond_taylor.ORDERS), (heads, (2, 4)), (replaced, (2, 4))):
        part = parts.add_parser(run.__name__)
        part.add_argument("--orders", nargs="+", type=int, default=orders)
        part.add_argument("--families", nargs="+", default=tuple(FAMILIES))
        part.set_defaults(run=run)
    options = parser.parse_args()
    options.run(*load_small_model(), options)


if __name__ == "__main__":
    main()
