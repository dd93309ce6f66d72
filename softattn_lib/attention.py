"""The entry point: attention in the form that costs least, and why that one."""

import inspect
import math
from dataclasses import dataclass, replace
from functools import partial, reduce

from .checks import check_count, check_shapes, check_tensors
from .chunked import chunked_attention
from .cost import (
    Cost,
    Workload,
    chunk_size_of,
    chunked_cost,
    parallel_cost,
    recurrent_cost,
    softmax_cost,
    workload_crossover,
)
from .features import MAX_FEATURES, check_size
from .kernels import ExpKernel, PolynomialKernel, as_kernel
from .normalizers import SumNormalizer, as_normalizer
from .numerics import state_dtype
from .parallel import parallel_attention, softmax_attention
from .recurrent import recurrent_attention
from .state import require_features
from .varlen import attend_by_length, buckets, check_edges

FORMS = {
    "parallel": parallel_attention,
    "recurrent": recurrent_attention,
    "chunked": chunked_attention,
}
OPTIONS = [n for n in inspect.signature(parallel_attention).parameters if n not in ("q", "k", "v")]
SOFTMAX_OPTIONS = {"normalizer", "scale", "is_causal", "enable_gqa", "key_mask", "return_state"}


@dataclass(frozen=True)
class Plan:
    """How `attention` computes a call, and what it costs; printed as a small table.

    Attributes:
        form: "parallel", "recurrent" or "chunked".
        chunk_size: tokens per chunk of the chunked form; None for the other forms.
        reason: why that form, in words.
        costs: the predicted cost of each form that the kernel has.
        softmax: that of softmax attention on the same tensors.
        crossover: the length above which a causal call in chunks is faster than softmax
            attention; None without a finite state, or if there is none below 2**40.
    """

    form: str
    chunk_size: int | None
    reason: str
    costs: dict[str, Cost]
    softmax: Cost
    crossover: int | None

    def __str__(self):
        rows = {**self.costs, "(softmax)": self.softmax}
        lines = [f"{self.form}: {self.reason}"]
        lines.append(f"{'':12}{'flops':>10}{'working B':>12}{'state B':>10}{'seconds':>10}")
        for name, c in rows.items():
            mark = "> " if name == self.form else "  "
            lines.append(
                f"{mark}{name:10}{c.flops:10.3g}{c.bytes:12.3g}{c.state_bytes:10.3g}"
                f"{c.seconds:10.2g}"
            )
        if self.crossover is not None:
            lines.append(f"chunked is faster than softmax from T = {self.crossover} (causal)")
        return "\n".join(lines)


def attention(q, k, v, *, kernel, form="auto", chunk_size=None, cu_seqlens=None, **options):
    """Attention in the form that costs least.

    Arguments and results are those of `parallel_attention`, and every form gives the same numbers.
    The choice is made from the sizes alone (see `explain`), so torch.compile sees no branch on
    data; with cu_seqlens it does, because lengths are data. The length T may be a symbol there, the
    width d may not (dynamic=True), because the number of features is a binomial of it.

    Args:
        q, k, v: (..., T_q, d), (..., T_k, d), (..., T_k, e), floating point.
        kernel: a `Polynomial` such as `taylor(4)`, a kernel object, or "exp", "identity", "relu",
            "elu_plus_one", "cosine".
        form: "auto", "parallel", "recurrent" or "chunked". A kernel without a finite state has the
            parallel form alone; softmax (exp over its sum, no gate) runs in torch's
            scaled_dot_product_attention.
        chunk_size: tokens per chunk where the form is "chunked"; None leaves it to the form.
        cu_seqlens: (N + 1,) int32 or int64, as in flash-linear-attention: 0, then the end of each
            of N sequences that lie end to end in q, k and v, (..., T_total, width). Each is
            attended by itself; zero tokens are allowed. States, initial_state too, then have the
            sequences in front: sums (N, ..., D, e+1).
        options: those of `parallel_attention`.

    Returns:
        (out, final_state): (..., T_q, e) in the dtype of q, and an `AttentionState`, or None for a
        kernel without a finite state and with return_state=False.

    Raises:
        ValueError, TypeError: an argument of wrong shape, type or value, named.
        OverflowError: finite inputs whose weights or sums leave the range of the dtype.

    Warns:
        SignedWeightsWarning: "sum" with weights of both signs.

    Example:
        >>> import torch
        >>> from softattn_lib import taylor
        >>> q, k, v = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(0))
        >>> out, state = attention(q, k, v, kernel=taylor(2))
        >>> cut = torch.tensor([0, 2, 5])  # two sequences, of 2 and 3 tokens
        >>> parts, states = attention(q, k, v, kernel=taylor(2), cu_seqlens=cut)
        >>> torch.allclose(parts[:, :2], out[:, :2]), state.sums.shape, states.sums.shape
        (True, torch.Size([2, 15, 5]), torch.Size([2, 2, 15, 5]))
    """
    kernel = as_kernel(kernel)
    check_tensors(q, k, v)
    _check_options("attention", form, chunk_size, options)
    edges = None if cu_seqlens is None else check_edges(cu_seqlens, q.shape[-2], k.shape[-2])
    if form == "auto":
        works = _workloads(q, k, v, kernel, edges, **options)
        form = _cheapest(_costs(works, kernel, chunk_size, options))
    run = partial(_run, form, kernel, chunk_size)
    if edges is None:
        return run(q, k, v, **options)
    # Padding stands behind the tokens: a causal query never sees it, but a state would.
    hides_padding = kernel.has_features or not options.get("is_causal", True)
    return attend_by_length(run, q, k, v, edges, hides_padding, **options)


def explain(q, k, v, *, kernel, form="auto", chunk_size=None, cu_seqlens=None, **options) -> Plan:
    """What `attention` would do with these arguments, without doing it.

    Args:
        As `attention`. Only sizes are read, so q, k and v may be on the device "meta".

    Returns:
        A `Plan`. Seconds are predictions for one thread of the machine named in `cost.py`.

    Raises:
        ValueError, TypeError: as `attention`, for shapes, dtypes and names.

    Example:
        >>> import torch
        >>> from softattn_lib import taylor
        >>> q, k, v = torch.empty(3, 1, 8, 65536, 16, device="meta")
        >>> plan = explain(q, k, v, kernel=taylor(2))
        >>> plan.form, plan.costs["chunked"].state_bytes  # 8 heads of 153 x 17 numbers
        ('chunked', 83232)
    """
    kernel = as_kernel(kernel)
    check_tensors(q, k, v)
    _check_options("explain", form, chunk_size, options)
    edges = None if cu_seqlens is None else check_edges(cu_seqlens, q.shape[-2], k.shape[-2])
    works = _workloads(q, k, v, kernel, edges, **options)
    costs = _costs(works, kernel, chunk_size, options)
    if form not in ("auto", *costs):
        require_features(kernel, f'form="{form}"')
        check_size(works[0].num_features, "kernel {!r} with d={}", kernel, works[0].d)
    chosen, reason = form, f'form="{form}" was asked for'
    if form == "auto":
        chosen, reason = _cheapest(costs), _reason(kernel, costs, options)
    return Plan(
        form=chosen,
        chunk_size=chunk_size_of(works[0], chunk_size) if chosen == "chunked" else None,
        reason=reason,
        costs=costs,
        softmax=_total(softmax_cost, works),
        crossover=workload_crossover(works[0], chunk_size) if kernel.has_features else None,
    )


def _run(form, kernel, chunk_size, q, k, v, **options):
    """One call in one form."""
    if form == "parallel" and _is_softmax(kernel, options):
        names = ("scale", "is_causal", "enable_gqa", "key_mask")
        given = {name: options[name] for name in names if name in options}
        return softmax_attention(q, k, v, **given), None
    if form == "chunked":
        options["chunk_size"] = chunk_size
    return FORMS[form](q, k, v, kernel=kernel, **options)


def _is_softmax(kernel, options) -> bool:
    """Whether the call is one that torch's scaled_dot_product_attention computes."""
    given = {name for name, value in options.items() if value is not None}
    normalizer = as_normalizer(options.get("normalizer", "sum"))
    return kernel == ExpKernel() and normalizer == SumNormalizer() and given <= SOFTMAX_OPTIONS


def _workloads(q, k, v, kernel, edges, *, is_causal=True, enable_gqa=False, **options):
    """The sizes of the call, or with `edges` those of one call for each bucket of sequences."""
    *lead, groups = check_shapes(q, k, v, enable_gqa, is_causal)
    d = k.shape[-1]
    work = Workload(
        rows=math.prod(lead),
        groups=groups,
        num_queries=q.shape[-2],
        num_keys=k.shape[-2],
        d=d,
        e=v.shape[-1],
        num_features=kernel.num_features(d) if kernel.has_features else None,
        order=kernel.polynomial.order if isinstance(kernel, PolynomialKernel) else 0,
        is_causal=is_causal,
        return_state=options.get("return_state", True),
        has_past=options.get("initial_state") is not None,
        itemsize=state_dtype(q.dtype).itemsize,
    )
    if edges is None:
        return [work]
    return [
        replace(
            work,
            rows=work.rows * len(bucket.sequences),
            num_queries=bucket.length,
            num_keys=bucket.length,
        )
        for bucket in buckets(edges)
    ]


def _costs(works, kernel, chunk_size, options) -> dict[str, Cost]:
    """The cost of each form that can compute the call."""
    if _is_softmax(kernel, options):
        return {"parallel": _total(softmax_cost, works)}
    costs = {"parallel": _total(parallel_cost, works)}
    if kernel.has_features and works[0].num_features <= MAX_FEATURES:
        in_chunks = partial(chunked_cost, chunk_size=chunk_size)
        costs["recurrent"] = _total(recurrent_cost, works)
        costs["chunked"] = _total(in_chunks, works)
    return costs


def _total(cost, works) -> Cost:
    """The cost of one call after the other."""
    return reduce(Cost.then, map(cost, works))


def _cheapest(costs) -> str:
    """The form of the least time; comparisons that torch.compile follows when T is a symbol."""
    best = "parallel"
    for form, cost in costs.items():
        if cost.seconds < costs[best].seconds:
            best = form
    return best


def _reason(kernel, costs, options) -> str:
    if _is_softmax(kernel, options):
        return "exp over its sum is softmax, which torch computes (scaled_dot_product_attention)"
    if not kernel.has_features:
        return f"{kernel!r} has no finite state, so this is its only form"
    if len(costs) == 1:
        return f"a state of more than {MAX_FEATURES:.3g} features is not built"
    ranked = sorted(cost.seconds for cost in costs.values())
    return f"predicted {ranked[1] / ranked[0]:.1f} times as fast as the next form"


def _check_options(function: str, form, chunk_size, options) -> None:
    if form != "auto" and form not in FORMS:
        raise ValueError(f"form must be one of auto, {', '.join(FORMS)}; got {form!r}")
    if chunk_size is not None and form in ("parallel", "recurrent"):
        raise ValueError(f"chunk_size={chunk_size!r} is for the forms chunked and auto, not {form}")
    if chunk_size is not None:
        check_count("chunk_size", chunk_size, " or None")
    for name in options:
        if name not in OPTIONS:
            legal = ", ".join([*OPTIONS, "form", "chunk_size", "cu_seqlens"])
            raise TypeError(f"{function} has no option {name!r}; it has {legal}")
