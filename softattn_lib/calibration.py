"""One polynomial for each head of a pretrained model: observe its scores, fit, store, judge.

`calibrate` looks at what the attention of a model computes with on some texts and fits, head by
head, the polynomial that is to stand where exp stood. `judge` measures the model's loss with them
on other texts, `llama.swap_attention` puts them in for good.
"""

import hashlib
import json
import warnings
from collections.abc import Collection, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .families import ChebyshevPolynomial, chebyshev, minimax, on_interval
from .fitting import ObservedScores, least_squares, observe, square, taylor_about_best_center
from .llama import CapturedAttention, attention_function, capture_attention, decoder_layers
from .matching import match_outputs
from .polynomials import check_order, taylor

FAMILIES = {
    "taylor": (),
    "taylor_centered": ("weight", "score"),
    "chebyshev": (),
    "minimax": (),
    "least_squares": ("weight", "score"),
    "square": ("weight", "score"),
    "sum_of_squares": ("output",),
}  # family -> its criteria, the default first
ONLY_EVEN = ("square", "sum_of_squares")
ROWS = 128  # queries whose scores are made at once: they stay in a core's cache


class ScoresOutsideWarning(UserWarning):
    """Scores lie outside of the interval that a polynomial was fitted on."""


@dataclass(frozen=True, eq=False)
class LayerCalibration:
    """What stands for exp in one layer.

    Attributes:
        polynomials: one a query head.
        key_shift: (H_k, d) float32, subtracted from the keys after the rotary embedding.
        gate: (H_q,) float32, a factor of each head's output.
    """

    polynomials: tuple[ChebyshevPolynomial, ...]
    key_shift: Tensor
    gate: Tensor


@dataclass(frozen=True, eq=False)
class Calibration:
    """Polynomials for the heads of one model, and where they come from.

    Attributes:
        family, order, criterion: how they were fitted, before they were adapted; criterion is ""
            where the family has none.
        model: `fingerprint` of the model they are for.
        texts: name of each text -> the number of its tokens and their sha256.
        layers: one `LayerCalibration` for each layer of the model.
        adaptations: what `tasks.adapt` has trained them with since, the first one first: "steps",
            "learning_rate", "batch_size", "seed", and "texts" like those above.
    """

    family: str
    order: int
    criterion: str
    model: str
    texts: dict[str, dict]
    layers: tuple[LayerCalibration, ...]
    adaptations: tuple[dict, ...] = ()

    def check(self, model) -> None:
        """
        Raises:
            ValueError: the calibration is of another model, or of another revision of it.
        """
        if (found := fingerprint(model)) != self.model:
            raise ValueError(
                f"calibration is for the model {self.model} and this one is {found}: other weights "
                "give other scores; run calibrate on this model"
            )

    def save(self, path: str | Path) -> None:
        """Write a safetensors file: numbers as tensors, provenance as its metadata."""
        from safetensors.torch import save_file

        heads = [p for layer in self.layers for p in layer.polynomials]
        tensors = {
            "terms": torch.tensor([p.terms for p in heads], dtype=torch.float64),
            "low": torch.tensor([p.low for p in heads], dtype=torch.float64),
            "high": torch.tensor([p.high for p in heads], dtype=torch.float64),
            "basis": torch.tensor([p.basis for p in heads], dtype=torch.float64),
            "key_shift": torch.stack([layer.key_shift for layer in self.layers]),
            "gate": torch.stack([layer.gate for layer in self.layers]),
        }
        about = {name: getattr(self, name) for name in ("family", "criterion", "model")}
        about |= {"order": str(self.order), "texts": json.dumps(self.texts)}
        about["adaptations"] = json.dumps(self.adaptations, default=lambda number: number.item())
        about["is_squared"] = str(heads[0].is_squared)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, about)


def load_calibration(path: str | Path) -> Calibration:
    """Read what `Calibration.save` has written.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a calibration.
    """
    from safetensors import SafetensorError, safe_open

    if not Path(path).is_file():
        raise FileNotFoundError(f"calibration is {str(path)!r}, and there is no such file")
    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return _read(about, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"calibration {str(path)!r} is not one, or is broken: {error}") from None


def _read(about: dict, tensors: dict[str, Tensor]) -> Calibration:
    layers, heads = tensors["gate"].shape
    parts = (tensors[name].tolist() for name in ("low", "high", "terms", "basis"))
    is_squared = about["is_squared"] == "True"
    polynomials = [
        ChebyshevPolynomial(low, high, tuple(map(tuple, terms)), is_squared, tuple(basis))
        for low, high, terms, basis in zip(*parts, strict=True)
    ]
    if len(polynomials) != layers * heads or len(tensors["key_shift"]) != layers:
        raise ValueError("the parts of it have different numbers of layers or heads")
    for name in ("key_shift", "gate"):
        if not tensors[name].isfinite().all():
            raise ValueError(f"{name} must be finite numbers")
    return Calibration(
        **{name: about[name] for name in ("family", "criterion", "model")},
        order=int(about["order"]),
        texts=json.loads(about["texts"]),
        adaptations=tuple(map(dict, json.loads(about.get("adaptations", "[]")))),
        layers=tuple(
            LayerCalibration(tuple(polynomials[row * heads :][:heads]), shift, gate)
            for row, (shift, gate) in enumerate(
                zip(tensors["key_shift"], tensors["gate"], strict=True)
            )
        ),
    )


def fingerprint(model) -> str:
    """Class and size of a model and a hash of its query and key projections, rounded to bfloat16.

    So the same weights have one fingerprint in float32 and in bfloat16, on any device.
    """
    digest = hashlib.sha256()
    for layer in decoder_layers(model):
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            weight = projection.weight.detach().bfloat16().cpu().contiguous()
            digest.update(weight.view(torch.uint8).numpy().tobytes())
    config = model.config
    return (
        f"{config.model_type} of {config.num_hidden_layers} layers, {config.num_attention_heads} "
        f"heads, {digest.hexdigest()[:16]}"
    )


def common_length(texts: Mapping[str, Tensor]) -> int:
    """T of texts (n, T).

    Raises:
        ValueError: there are none, one is empty or has another shape, or they differ in T.

    Example:
        >>> common_length({"one": torch.ones(3, 5), "two": torch.ones(1, 5)})
        5
    """
    lengths = {ids.shape[-1] for ids in texts.values()}
    if len(lengths) != 1 or any(ids.dim() != 2 or not ids.numel() for ids in texts.values()):
        shapes = {name: tuple(ids.shape) for name, ids in texts.items()}
        raise ValueError(
            f"texts must be token ids of shape (n, T) with one T, none empty; got {shapes}"
        )
    return lengths.pop()


def describe(texts: Mapping[str, Tensor]) -> dict[str, dict]:
    """name -> the number of tokens of each text and their sha256, as in `Calibration.texts`.

    Example:
        >>> describe({"digits": torch.arange(20)[None]})["digits"]["tokens"]
        20
    """
    found = {}
    for name, ids in texts.items():
        digest = hashlib.sha256(ids.cpu().numpy().astype("<i8").tobytes()).hexdigest()
        found[name] = {"tokens": ids.numel(), "sha256": digest}
    return found


def head_mixing(project: Tensor, heads: int) -> Tensor:
    """(Hq, e, e) float32 on the CPU: what keeps, head by head, lengths after a projection.

    |o @ mixing[h]| is the length of what the projection makes of an output o of head h.

    Args:
        project: (hidden size, Hq * e), the weight of a layer's output projection.
        heads: Hq.

    Example:
        >>> project = torch.tensor([[3.0, 1.0], [4.0, 0.0]])
        >>> head_mixing(project, 2).abs().flatten().tolist()
        [5.0, 1.0]
    """
    by_head = project.detach().float().cpu().unflatten(1, (heads, -1)).transpose(0, 1)
    return torch.linalg.qr(by_head, mode="r").R.mT


@dataclass(frozen=True, eq=False)
class Sample:
    """What the attention of a model computes with on some texts, for a part of the queries.

    Attributes:
        model: `fingerprint` of the model.
        texts: as in `Calibration`.
        layers: of each layer (q, k, v, mixing): (Hq, n, R, d), (Hk, n, T, d), (Hk, n, T, e), and
            (Hq, e, e), which turns a head's output into coordinates whose length is that of what
            the output projection makes of it.
        visible: (R, T) bool.
        scale: of the scores.
    """

    model: str
    texts: dict[str, dict]
    layers: tuple[tuple[Tensor, Tensor, Tensor, Tensor], ...]
    visible: Tensor
    scale: float

    def scores(self, layer: int) -> Tensor:
        """(Hq, n, R, T) float64, minus infinity at hidden keys."""
        q, k, _, _ = self.layers[layer]
        k = k.repeat_interleave(len(q) // len(k), 0)
        return (q.double() * self.scale @ k.double().mT).masked_fill(~self.visible, -torch.inf)


def take_sample(model, texts: Mapping[str, Tensor], queries: int = 16) -> Sample:
    """Run texts through a model and keep its keys, values and some queries, evenly spread.

    Args:
        model: as in `llama.capture_attention`.
        texts: name -> token ids (n, T), integers; T the same for all.
        queries: at how many of the T positions to keep queries, at most.

    Raises:
        ValueError: no texts, texts of different lengths, or no queries.
    """
    length = common_length(texts)
    if queries < 1:
        raise ValueError(f"queries must be at least 1, got {queries}")
    step = -(-length // queries)
    rows = torch.arange(step - 1, length, step)
    captured = [capture_attention(model, None, ids) for group in texts.values() for ids in group]
    layers = [_layer_sample(model, captured, index, rows) for index in captured[0].layers]
    return Sample(
        model=fingerprint(model),
        texts=describe(texts),
        layers=tuple(layers),
        visible=torch.arange(length) <= rows.unsqueeze(-1),
        scale=captured[0].layers[0].scale,
    )


def calibrate(
    model,
    texts: Mapping[str, Tensor] | Sample,
    order: int,
    family: str = "sum_of_squares",
    criterion: str | None = None,
) -> Calibration:
    """Fit one polynomial to each head of a model.

    The intervals of the families that have one run from the lowest to the highest score that the
    head gave in the texts.

    Args:
        model: a ``LlamaForCausalLM`` or a relative, as in `llama.capture_attention`.
        texts: name -> token ids (n, T), or a `Sample` of this model, which several calls can share.
        order: the highest power; even for "square" and "sum_of_squares".
        family: "taylor" (about 0), "taylor_centered" (about the centre with the smallest error),
            "chebyshev", "minimax", "least_squares", "square" or "sum_of_squares".
        criterion: what is made small, see `fitting.least_squares`; None for the family's own.

    Raises:
        ValueError: an unknown family, a criterion it does not have, an order it cannot have, texts
            that do not fit together, a sample of another model.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
        ...     num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> calibration = calibrate(model, {"digits": torch.arange(20)[None]}, 2, "square")
        >>> len(calibration.layers), calibration.layers[0].polynomials[5].order
        (2, 2)
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {', '.join(FAMILIES)}; got {family!r}")
    legal = FAMILIES[family] or ("",)
    criterion = legal[0] if criterion is None else criterion
    if criterion not in legal:
        raise ValueError(f"criterion of {family} must be one of {legal}, got {criterion!r}")
    sample = texts if isinstance(texts, Sample) else take_sample(model, texts)
    if sample.model != fingerprint(model):
        raise ValueError(f"texts is a sample of the model {sample.model}, not of this one")
    if (order := check_order(order)) % 2 and family in ONLY_EVEN:
        raise ValueError(f"order of {family} must be even, got {order}")
    fit = _match if family == "sum_of_squares" else _fit
    layers = [fit(sample, index, order, family, criterion) for index in range(len(sample.layers))]
    return Calibration(family, order, criterion, sample.model, sample.texts, tuple(layers))


@dataclass(frozen=True)
class Judgement:
    """How a model does with a calibration.

    Attributes:
        loss: mean over the predicted tokens, in nats; not finite where a denominator was 0.
        tokens: how many were predicted.
        not_positive: how many rows of weights had a sum that is not positive, over all heads.
        rows: how many rows of weights there were.
        outside: share of the visible scores outside of the interval of their head.
    """

    loss: float
    tokens: int
    not_positive: int
    rows: int
    outside: float


@torch.no_grad()
def judge(
    model,
    token_ids: Tensor,
    calibration: Calibration | None,
    heads: Collection[tuple[int, int]] | None = None,
    start: tuple[int, Tensor] | None = None,
) -> Judgement:
    """The loss of a model whose heads weigh by a calibration, in the parallel form.

    Args:
        model: the model that was calibrated, with its own attention in place.
        token_ids: (n, T) integers, n texts.
        calibration: None for softmax in all heads.
        heads: (layer, head) of those that are replaced; None for all.
        start: a layer and what it receives, (n, T, hidden size), where the layers before it are
            as they were and need not be computed again.

    Raises:
        ValueError: the calibration is of another model, a head is not one of the model, or there
            is no token to predict.

    Warns:
        ScoresOutsideWarning: with the share of the scores outside of the fitted intervals.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
        ...     num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
        >>> model, ids = LlamaForCausalLM(config).eval(), torch.arange(16)[None]
        >>> softmax = judge(model, ids, None)
        >>> close = judge(model, ids, calibrate(model, {"digits": ids}, 6, "square"))
        >>> abs(close.loss - softmax.loss) < 1e-3, close.not_positive, close.outside
        (True, 0, 0.0)
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if token_ids.dim() != 2 or len(token_ids) < 1 or token_ids.shape[1] < 2:
        raise ValueError(
            "token_ids must be (n, T), at least one text of at least 2 tokens; got shape "
            f"{tuple(token_ids.shape)}"
        )
    if calibration is not None:
        calibration.check(model)
    every = {(i, h) for i in range(model.config.num_hidden_layers)
             for h in range(model.config.num_attention_heads)}  # fmt: skip
    heads = every if heads is None else {tuple(head) for head in heads}
    if unknown := sorted(heads - every):
        raise ValueError(f"heads names {unknown}, (layer, head) that this model does not have")
    sdpa, count = ALL_ATTENTION_FUNCTIONS["sdpa"], _Count()

    def attention(module, query, key, value, attention_mask, *, scaling, **kwargs):
        out, rest = sdpa(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        layer = module.layer_idx
        for head in range(query.shape[1]) if calibration is not None else ():
            if (layer, head) in heads:
                group = head // (query.shape[1] // key.shape[1])
                qkv = query[0, head] * scaling, key[0, group], value[0, group]
                out[0, :, head] = _head_output(calibration.layers[layer], head, group, *qkv, count)
        return out, rest

    losses = []
    with attention_function(model, attention), _beginning(model, start):
        for index, ids in enumerate(token_ids.to(model.device)):
            given = {"input_ids": ids[None]}
            if start is not None:
                given = {"inputs_embeds": start[1][[index]]}
            losses.append(model(**given, labels=ids[None], use_cache=False).loss.item())
    if count.outside:
        warnings.warn(
            f"{count.outside / count.scores:.2%} of the scores lie outside of the interval that "
            "the polynomial of their head was fitted on, where it promises nothing; calibrate on "
            "texts that are more like these",
            ScoresOutsideWarning,
            stacklevel=3,  # torch.no_grad is in between
        )
    return Judgement(
        loss=sum(losses) / len(losses),
        tokens=token_ids.shape[0] * (token_ids.shape[1] - 1),
        not_positive=count.not_positive,
        rows=count.rows,
        outside=count.outside / max(count.scores, 1),
    )


@contextmanager
def _beginning(model, start: tuple[int, Tensor] | None):
    """While this lasts, the model has no layers before the one of `start`."""
    inner = model.base_model
    layers = inner.layers
    try:
        if start is not None:
            inner.layers = layers[start[0] :]
        yield
    finally:
        inner.layers = layers


class _Count:
    """What `judge` counts on its way through the heads."""

    def __init__(self):
        self.scores = self.outside = self.rows = self.not_positive = 0


def _head_output(layer: LayerCalibration, head: int, group: int, q, k, v, count: _Count) -> Tensor:
    """(T, e) of one head, causal; in float32 at least, and in float64 where weights can cancel."""
    polynomial = layer.polynomials[head]
    k = k - layer.key_shift[group].to(k)
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k = q.to(dtype), k.to(dtype)
    dtype = dtype if polynomial.is_squared else torch.float64
    low, high = _with_rounding(polynomial.low, polynomial.high)
    pieces = []
    for start in range(0, len(q), ROWS):
        stop = min(start + ROWS, len(q))
        scores = (q[start:stop] @ k[:stop].mT).to(dtype)
        weights = polynomial(scores)
        weights[:, start:].tril_()  # the keys before are visible to all of these queries
        total = weights.sum(-1, keepdim=True)
        count.scores += (stop - start) * (start + stop + 1) // 2
        if scores.min() < low or scores.max() > high:  # perhaps among the hidden ones only
            count.outside += ((scores < low) | (scores > high)).tril(start).sum().item()
        count.rows += len(total)
        count.not_positive += (~(total > 0)).sum().item()  # NaN included
        pieces.append((weights / total).to(v.dtype) @ v[:stop])
    return torch.cat(pieces) * layer.gate[head].to(v)


def _with_rounding(low: float, high: float) -> tuple[float, float]:
    """An interval with room for scores that another order of summation rounds differently."""
    rounding = 1e-5 * (high - low)
    return low - rounding, high + rounding


def _fit(sample: Sample, index: int, order: int, family: str, criterion: str) -> LayerCalibration:
    polynomials = []
    for head, scores in enumerate(sample.scores(index)):
        try:
            polynomials.append(fit_head(observe(scores), order, family, criterion))
        except ValueError as error:
            raise ValueError(f"layer {index}, head {head}: {error}") from None
    _, k, _, _ = sample.layers[index]
    shift = torch.zeros(k.shape[0], k.shape[-1])
    return LayerCalibration(tuple(polynomials), shift, torch.ones(len(polynomials)))


def fit_head(observed: ObservedScores, order, family, criterion) -> ChebyshevPolynomial:
    """The polynomial of a family for one head; every family but "sum_of_squares", see `matching`.

    The arguments are those of `calibrate`, with the head's scores in place of the texts.
    """
    ends = observed.low, observed.high
    if family == "taylor":
        return on_interval(taylor(order), *ends)
    if family == "taylor_centered":
        return taylor_about_best_center(order, observed, criterion)
    if family in ("chebyshev", "minimax"):
        return {"chebyshev": chebyshev, "minimax": minimax}[family](order, *ends)
    return {"least_squares": least_squares, "square": square}[family](order, observed, criterion)


def _match(sample: Sample, index: int, order: int, family: str, criterion: str) -> LayerCalibration:
    q, k, v, mixing = sample.layers[index]
    v = v.repeat_interleave(len(q) // len(v), 0) @ mixing.unsqueeze(1)
    polynomials, shift = match_outputs(order, q, k, v, sample.visible, scale=sample.scale)
    return LayerCalibration(tuple(polynomials), shift, torch.ones(len(polynomials)))


def _layer_sample(model, captured: list[CapturedAttention], index: int, rows: Tensor):
    layers = [text.layers[index] for text in captured]
    q = torch.stack([layer.query[:, rows] for layer in layers], 1).float().cpu()
    k, v = (
        torch.stack([getattr(layer, name) for layer in layers], 1).float().cpu()
        for name in ("key", "value")
    )
    return q, k, v, head_mixing(decoder_layers(model)[index].self_attn.o_proj.weight, len(q))
