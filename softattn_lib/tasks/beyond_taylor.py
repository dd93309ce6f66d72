"""How well other polynomials stand for exp in the small pretrained model, in tables.

`curves` measures the loss on held-out texts against the order, for each family. `damage` replaces
one head at a time; `replacement` replaces heads one after the other, the least harmful first.
Rows are appended as they are measured, and what a table already holds is not measured again.
"""

import warnings
from collections.abc import Iterable
from importlib.metadata import files
from pathlib import Path

import torch
from torch import Tensor

from softattn_lib.calibration import (
    FAMILIES,
    Calibration,
    Judgement,
    Sample,
    ScoresOutsideWarning,
    calibrate,
    judge,
    take_sample,
)
from softattn_lib.tasks.records import append_row, code_version, machine, read_rows
from softattn_lib.tasks.text import embedded_text

CONTEXT = 512
ORDERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
ONLY_EVEN = ("square", "sum_of_squares")


def calibration_texts() -> dict[str, str]:
    """Prose, code and licences to calibrate on: documents that come with Python, sympy and torch.

    >>> list(calibration_texts())
    ['python reference', 'sympy expr.py', 'licences with torch']
    """
    from pydoc_data.topics import topics

    chapters = ("assignment", "class", "exceptions", "execmodel", "objects", "specialnames")
    return {
        "python reference": "\n\n".join(topics[name] for name in chapters),
        "sympy expr.py": _read("sympy", "sympy/core/expr.py"),
        "licences with torch": _read("torch", "licenses/third_party/"),
    }


def held_out_texts() -> dict[str, str]:
    """Prose, code and a licence to judge on: the King James Bible, torch, numpy's licence.

    >>> list(held_out_texts())
    ['prose', 'code', 'licence']
    """
    return {
        "prose": embedded_text()[500_000:],
        "code": _read("torch", "torch/nn/modules/module.py"),
        "licence": _read("numpy", "licenses/LICENSE.txt"),
    }


def sequences(tokenizer, text: str, count: int, spread: bool = False) -> Tensor:
    """(count, 512) token ids from the beginning of a text, or spread over it.

    Raises:
        ValueError: the text is too short.
    """
    with warnings.catch_warnings():  # longer than the model's context, which we cut it to
        warnings.simplefilter("ignore")
        ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
    step = (len(ids) - CONTEXT) // max(count - 1, 1) if spread else CONTEXT
    if step < CONTEXT or len(ids) < count * CONTEXT:
        raise ValueError(f"text has {len(ids)} tokens, {count} sequences need {count * CONTEXT}")
    return torch.stack([ids[i * step : i * step + CONTEXT] for i in range(count)])


def standard_sample(model, tokenizer, count: int = 5, queries: int = 32) -> Sample:
    """The `Sample` that the committed calibrations were made from: 5 sequences of each text."""
    texts = calibration_texts().items()
    ids = {name: sequences(tokenizer, text, count, spread=True) for name, text in texts}
    return take_sample(model, ids, queries)


def held_out_sequences(tokenizer, count: int = 16) -> dict[str, Tensor]:
    """name -> (16, 512) token ids: 8,176 predicted tokens of each text."""
    return {name: sequences(tokenizer, text, count) for name, text in held_out_texts().items()}


def curves(
    model,
    tokenizer,
    results: str | Path,
    families: Iterable[str] = tuple(FAMILIES),
    orders: Iterable[int] = ORDERS,
    folder: str | Path | None = None,
    sample: Sample | None = None,
    report=lambda line: None,
) -> None:
    """Append the held-out losses of every family and order, all heads replaced, to a table.

    Args:
        model, tokenizer: as `llama.load_small_model` gives them.
        results: CSV file.
        families, orders: what to measure; odd orders are left out for the squares.
        folder: where the calibrations are stored, None for nowhere.
        sample: to calibrate on; None for `standard_sample`.
        report: called with a line for each row.
    """
    texts = held_out_sequences(tokenizer)
    done = {(row["family"], row["order"], row["text"]) for row in read_rows(results)}
    for name, ids in texts.items():
        if ("softmax", "", name) not in done:
            _record(results, report, "softmax", "", name, judge(model, ids, None))
    for order in orders:
        for family in families:
            keys = {name for name in texts if (family, str(order), name) not in done}
            if not keys or (order % 2 and family in ONLY_EVEN):
                continue
            sample = sample or standard_sample(model, tokenizer)
            calibration = calibrate(model, sample, order, family)
            if folder is not None:
                calibration.save(Path(folder) / f"{family}-{order}.safetensors")
            for name in texts:
                if name in keys:
                    result = quiet_judge(model, texts[name], calibration)
                    _record(results, report, family, order, name, result)


def quiet_judge(model, ids: Tensor, calibration: Calibration, heads=None) -> Judgement:
    """`judge` without its warning, for tables that have the share outside in a column."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScoresOutsideWarning)
        return judge(model, ids, calibration, heads)


def _record(results, report, family, order, text, result: Judgement) -> None:
    row = {
        "family": family,
        "order": order,
        "text": text,
        "held_out_loss": f"{result.loss:.4f}",
        "tokens": result.tokens,
        "rows_not_positive": result.not_positive,
        "rows": result.rows,
        "share_outside": f"{result.outside:.2e}",
        "commit": code_version(),
        "machine": machine(),
    }
    append_row(results, row)
    report(f"{family} {order} {text}: loss {result.loss:.4f}")


def _read(package: str, part: str) -> str:
    """The text of a file of an installed package, or of all files in a folder of it.

    Raises:
        FileNotFoundError: the package has no such file.
    """
    found = sorted(
        (path for path in files(package) or () if part in str(path)), key=lambda path: str(path)
    )
    if not found:
        raise FileNotFoundError(f"package {package} has no {part}; another version of it has")
    return "\n".join(path.read_text(encoding="utf-8") for path in found)
