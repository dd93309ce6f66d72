"""How well other polynomials stand for exp in the small pretrained model, in tables.

`curves` measures the loss on held-out texts against the order, for each family. `damage` replaces
one head at a time; `replacement` replaces heads one after the other, the least harmful first.
Rows are appended as they are measured, and what a table already holds is not measured again.
`adapted_rows` tells what adapting has changed.
"""

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import files
from pathlib import Path

import plotly.graph_objects as go
import torch
from torch import Tensor

from softattn_lib.calibration import (
    FAMILIES,
    ONLY_EVEN,
    Calibration,
    Judgement,
    Sample,
    ScoresOutsideWarning,
    calibrate,
    judge,
    take_sample,
)
from softattn_lib.figures import lines_figure
from softattn_lib.tasks.records import append_row, code_version, machine, read_rows
from softattn_lib.tasks.text import embedded_text, read_text

CONTEXT = 512
ORDERS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
ADAPTED_COLUMNS = [  # of the table of `adapted_rows`
    "family", "order", "text", "steps", "softmax", "before", "after", "tokens", "seconds",
    "commit", "machine",
]  # fmt: skip


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


def pieces(tokenizer, paths: Iterable[str] | None, length: int) -> dict[str, Tensor]:
    """name -> token ids (n, length): files, or the calibration texts, cut into pieces.

    Raises:
        ValueError: a text shorter than one piece, or a length below 2.
        OSError: a file that cannot be read.
    """
    if length < 2:
        raise ValueError(f"length must be at least 2 tokens, got {length}")
    texts = calibration_texts()
    if paths is not None:
        texts = {str(path): read_text(path) for path in paths}
    found = {}
    for name, text in texts.items():
        ids = torch.tensor(tokenizer(text, verbose=False)["input_ids"])
        if len(ids) < length:
            raise ValueError(f"text {name!r} has {len(ids)} tokens; one sequence takes {length}")
        found[name] = ids[: len(ids) // length * length].view(-1, length)
    return found


def one_of_each(texts: Mapping[str, Tensor]) -> Tensor:
    """(number of texts, T): the sequence in the middle of each."""
    return torch.stack([ids[len(ids) // 2] for ids in texts.values()])


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


def above_softmax(rows: list[dict]) -> dict[str, dict[int, float]]:
    """What `curves` has measured: family -> order -> nats above softmax, mean over the texts.

    An order counts once it is measured on as many texts as softmax.

    >>> texts = [("softmax", "", "2.0"), ("square", "8", "2.5")]
    >>> names = ("family", "order", "held_out_loss")
    >>> above_softmax([dict(zip(names, values)) for values in texts])
    {'square': {8: 0.5}}
    """
    losses: dict[tuple, list[float]] = {}
    for row in rows:
        losses.setdefault((row["family"], row["order"]), []).append(float(row["held_out_loss"]))
    softmax = losses.pop(("softmax", ""))
    found: dict[str, dict[int, float]] = {name: {} for name in FAMILIES}
    for (family, order), values in losses.items():
        if len(values) == len(softmax):
            found[family][int(order)] = sum(values) / len(values) - sum(softmax) / len(softmax)
    return {family: dict(sorted(of.items())) for family, of in found.items() if of}


def loss_figure(rows: list[dict]) -> go.Figure:
    """What `above_softmax` finds, drawn: loss above softmax against order, one curve a family.

    >>> texts = [("softmax", "", "2.0"), ("square", "8", "2.5")]
    >>> names = ("family", "order", "held_out_loss")
    >>> loss_figure([dict(zip(names, values)) for values in texts]).data[0].name
    'square'
    """
    above = above_softmax(rows)
    orders = sorted({order for of in above.values() for order in of})
    curves = {
        family.replace("_", " "): [of.get(order, float("nan")) for order in orders]
        for family, of in reversed(above.items())
    }
    figure = lines_figure(
        orders,
        curves,
        log_x=True,
        log_y=True,
        title="A polynomial in place of exp, in all heads",
        caption="SmolLM2-135M, not trained further, on three texts that the fits have not seen.",
        x_title="order N",
        y_title="loss above softmax (nats)",
    )
    figure.update_traces(connectgaps=True)  # squares have even orders only
    return figure.update_xaxes(tickvals=orders)


def replaced_within(rows: list[dict], share: float) -> dict:
    """The last row of `replacement` before the loss has risen by more than a share of softmax's.

    Args:
        rows: of one family and order; the one without replaced heads among them.
        share: 0.01 for 1 %.

    >>> names = ("replaced", "held_out_loss")
    >>> rows = [dict(zip(names, values)) for values in (("0", "2"), ("10", "2.1"), ("20", "3"))]
    >>> replaced_within(rows, 0.1)["replaced"]
    '10'
    """
    rows = sorted(rows, key=lambda row: int(row["replaced"]))
    limit = (1 + share) * float(rows[0]["held_out_loss"])
    within = itertools.takewhile(lambda row: float(row["held_out_loss"]) <= limit, rows)
    return list(within)[-1]


def head_facts(sample: Sample) -> list[dict]:
    """What a sample tells of each head: how wide its scores are, how sharp and where it looks.

    Returns:
        A row a head: `lowest` and `highest` score; `row_spread`, the mean standard deviation of
        the scores of a row; `kept_keys`, exp of the mean entropy of a row, as if so many keys had
        equal weights; `first_token`, the mean weight of the first token; `distance`, the mean
        distance in tokens that weight comes from, the first token left out.
    """
    rows = []
    for layer in range(len(sample.layers)):
        scores = sample.scores(layer)
        seen = sample.visible.expand_as(scores)
        weights = scores.softmax(-1)
        entropy = -torch.xlogy(weights, weights).sum(-1).mean((1, 2))
        finite = scores.masked_fill(~seen, 0)
        count = seen.sum(-1)
        mean = finite.sum(-1) / count
        spread = ((finite.square().sum(-1) / count - mean.square()).clamp(min=0)).sqrt()
        keys = torch.arange(seen.shape[-1])
        position = sample.visible.sum(-1) - 1  # of each query
        far = (weights[..., 1:] * (position[:, None] - keys)[:, 1:]).sum(-1)
        rest = weights[..., 1:].sum(-1)
        for head in range(len(scores)):
            rows.append(
                {
                    "layer": layer,
                    "head": head,
                    "lowest": f"{scores[head][seen[head]].min():.2f}",
                    "highest": f"{scores[head].max():.2f}",
                    "row_spread": f"{spread[head].mean():.3f}",
                    "kept_keys": f"{entropy[head].exp():.2f}",
                    "first_token": f"{weights[head, ..., 0].mean():.4f}",
                    "distance": f"{far[head].sum() / rest[head].sum():.2f}",
                }
            )
    return rows


def damage(
    model, tokenizer, results: str | Path, calibration: Calibration, sample: Sample, count: int = 2
) -> None:
    """Append to a table what replacing each head alone does to the loss, and its `head_facts`.

    The loss is that of `count` sequences of each calibration text, between those of the sample, so
    that the held-out texts have no part in the ranking.
    """
    ids = ranking_sequences(tokenizer, count)
    done = {(row["order"], row["layer"], row["head"]) for row in read_rows(results)}
    facts = head_facts(sample)
    inputs = _layer_inputs(model, ids)
    base = judge(model, ids, None).loss
    for row in facts:
        layer, head = row["layer"], row["head"]
        if (str(calibration.order), str(layer), str(head)) in done:
            continue
        start = layer, inputs[layer]
        loss = quiet_judge(model, ids, calibration, {(layer, head)}, start).loss
        about = {"family": calibration.family, "order": calibration.order}
        append_row(
            results, about | row | {"damage": f"{loss - base:.5f}", "softmax": f"{base:.4f}"}
        )


def replacement(
    model, tokenizer, results: str | Path, calibration: Calibration, ranked: list[tuple[int, int]],
    counts: Iterable[int], count: int = 4, report=lambda line: None,
) -> None:  # fmt: skip
    """Append the held-out loss with the first n of the ranked heads replaced, for each n of counts.

    The loss is over `count` sequences of each held-out text.
    """
    ids = torch.cat(list(held_out_sequences(tokenizer, count).values()))
    key = (calibration.family, str(calibration.order))
    done = {(row["family"], row["order"], row["replaced"]) for row in read_rows(results)}
    for number in counts:
        if (*key, str(number)) in done:
            continue
        heads = set(ranked[:number])
        result = quiet_judge(model, ids, calibration, heads)
        row = {
            "family": calibration.family,
            "order": calibration.order,
            "replaced": number,
            "free_kv_heads": free_kv_heads(model.config, heads),
            "held_out_loss": f"{result.loss:.4f}",
            "tokens": result.tokens,
            "commit": code_version(),
            "machine": machine(),
        }
        append_row(results, row)
        report(f"order {calibration.order}, {number} heads: loss {result.loss:.4f}")


def adapted_rows(
    model, tokenizer, before: Calibration, after: Calibration, count: int, steps, seconds
) -> Iterator[dict]:
    """The losses before and after on `count` sequences of each held-out text, as rows of a table.

    Args:
        steps, seconds: of the adaptation.
    """
    for name, ids in held_out_sequences(tokenizer, count).items() if count else ():
        judged = [quiet_judge(model, ids, c) for c in (None, before, after)]
        losses = (f"{each.loss:.4f}" for each in judged)
        values = after.family, after.order, name, steps, *losses, judged[0].tokens, seconds
        values = *values, code_version(), machine(model.device)
        yield dict(zip(ADAPTED_COLUMNS, values, strict=True))


def free_kv_heads(config, heads: set[tuple[int, int]]) -> int:
    """How many key heads nobody needs any more: all their query heads are replaced.

    >>> from transformers import LlamaConfig
    >>> config = LlamaConfig(num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    >>> free_kv_heads(config, {(0, 0), (0, 1), (1, 1), (1, 2)})
    1
    """
    groups = config.num_attention_heads // config.num_key_value_heads
    return sum(
        all((layer, group * groups + member) in heads for member in range(groups))
        for layer in range(config.num_hidden_layers)
        for group in range(config.num_key_value_heads)
    )


def ranking_sequences(tokenizer, count: int = 2) -> Tensor:
    """(3 * count, 512) token ids of the calibration texts, from between those of the sample."""
    texts = calibration_texts().values()
    return torch.cat(
        [sequences(tokenizer, text, 2 * count + 1, spread=True)[1::2] for text in texts]
    )


@torch.no_grad()
def _layer_inputs(model, ids: Tensor) -> list[Tensor]:
    """(n, T, hidden size) that each layer of the model receives."""
    outputs = [
        model.base_model(text[None], output_hidden_states=True, use_cache=False).hidden_states
        for text in ids
    ]
    return [torch.cat(layer) for layer in zip(*outputs, strict=True)]


def quiet_judge(model, ids: Tensor, calibration, heads=None, start=None) -> Judgement:
    """`judge` without its warning, for tables that have the share outside in a column."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScoresOutsideWarning)
        return judge(model, ids, calibration, heads, start)


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
