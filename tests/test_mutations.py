"""The tests can fail: the library is broken on purpose, and each break turns a check red."""

import functools
from dataclasses import replace

import pytest
import torch

from softattn_lib import (
    KernelCheckError,
    Polynomial,
    call,
    check_kernel,
    features,
    kernels,
    normalizers,
    numerics,
    parallel,
    recurrent,
    scan,
    taylor,
    tiles,
)
from tests.reference import FORMS, SETTINGS, compare, inputs

pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


def forms():
    """The comparison of tests/test_forms.py with every option in use and with none."""
    settings = [(0, s) for s in SETTINGS if s in ((None, 0, 0, True, 1), ("after", 1, 1, True, 2))]
    for kernel in ("order2", "elu_plus_one"):
        compare(kernel, settings, torch.float64, "cpu")


def few_queries():
    q, k, v, _ = inputs(num_queries=3)
    future = torch.ones(3, 7, dtype=torch.bool).triu(5)
    expected = torch.softmax((0.1 * q @ k.mT).masked_fill(future, -torch.inf), dim=-1) @ v
    for form in FORMS.values():
        out, _ = form(q, k, v, kernel=taylor(8), scale=0.1)
        assert (out - expected).abs().max() < 1e-6


def kernel():
    check_kernel(Polynomial((0.5, 0, -0.3, 0.2)))


def pieces():
    q, k, v, _ = inputs()
    options = {"kernel": taylor(2), "normalizer": "visible_keys"}
    for form in FORMS.values():
        whole, state = form(q, k, v, **options)[0], None
        for piece in (slice(0, 2), slice(2, 4), slice(4, 7)):
            part = (x[..., piece, :] for x in (q, k, v))
            out, state = form(*part, initial_state=state, **options)
            assert torch.allclose(out, whole[..., piece, :])


def zeros():
    q, k, v, _ = inputs()
    nothing = torch.zeros(7, dtype=torch.bool)
    for form in FORMS.values():
        assert not form(q, k, v, kernel=taylor(2), key_mask=nothing)[0].any()


CHECKS = (forms, few_queries, kernel, pieces, zeros)


def changed(function, **changes):
    """A function whose result, a dataclass, has some fields computed anew from the result."""

    @functools.wraps(function)
    def broken(*args, **options):
        result = function(*args, **options)
        return replace(result, **{name: change(result) for name, change in changes.items()})

    return broken


def write_without_decay(state, key_features, value, log_decay=None):
    return state + key_features.unsqueeze(-1) * value.unsqueeze(-2)


def write_decayed(state, key_features, value, log_decay=None):
    """The token that enters is decayed with the past."""
    state = write_without_decay(state, key_features, value)
    return state if log_decay is None else state * log_decay.exp()[..., None, None]


def next_key_visible(num_queries, num_keys, device):
    return torch.ones(num_queries, num_keys, dtype=torch.bool).triu(num_keys - num_queries + 2)


def own_key_hidden(num_queries, num_keys, device):
    return torch.ones(num_queries, num_keys, dtype=torch.bool).triu(num_keys - num_queries)


def first_query_at_first_key(num_queries, num_keys, device):
    return torch.ones(num_queries, num_keys, dtype=torch.bool).triu(1)


def other_heads(q, k, v, **options):
    """Query heads that share a key head are not neighbours."""
    result = call_prepare(q, k, v, **options)
    return replace(result, q=result.q.transpose(-4, -3).reshape(result.q.shape))


call_prepare, call_piece, state_with = call.prepare, call.Call.piece, call.Call.state_with
tile_advance = tiles.Tile.advance
read_past, decay_to_end = parallel._read_past, parallel._decay_to_end
multiplicities, query_factors = features._multiplicities, features.query_factors
polynomial_query = kernels.PolynomialKernel.query_features

MUTATIONS = {
    "the state is not decayed": (forms, recurrent, "write", write_without_decay),
    "a token is decayed as it enters": (forms, recurrent, "write", write_decayed),
    "a key too many is visible": (forms, parallel, "_future", next_key_visible),
    "a key too few is visible": (forms, parallel, "_future", own_key_hidden),
    "the first query stands at the first key": (
        few_queries,
        parallel,
        "_future",
        first_query_at_first_key,
    ),
    "decay of the final state counts a token twice": (
        forms,
        parallel,
        "_decay_to_end",
        lambda log_decay: decay_to_end(log_decay) + log_decay,
    ),
    "the past is not decayed": (
        forms,
        parallel,
        "_read_past",
        lambda c: read_past(replace(c, log_decay=None)),
    ),
    "multiplicities are dropped": (
        kernel,
        features,
        "_multiplicities",
        lambda d, powers: torch.ones_like(multiplicities(d, powers)),
    ),
    "coefficients lose their sign": (
        kernel,
        features,
        "query_factors",
        lambda *args: query_factors(*args).abs(),
    ),
    "the scale is left out of the features": (
        kernel,
        kernels.PolynomialKernel,
        "query_features",
        lambda self, q, scale: polynomial_query(self, q, 1.0),
    ),
    "the column of ones is missing": (
        forms,
        call,
        "prepare",
        changed(call_prepare, values=lambda c: c.values * (torch.arange(6) < 5)),
    ),
    "the input gate works on the denominator": (
        forms,
        call,
        "prepare",
        lambda *qkv, input_gate=None, **o: changed(
            call_prepare,
            values=lambda c: c.values if input_gate is None else c.values * input_gate[..., None],
        )(*qkv, **o),
    ),
    "the key mask is ignored": (
        forms,
        call,
        "prepare",
        lambda *qkv, key_mask=None, **options: call_prepare(*qkv, **options),
    ),
    "grouped heads are dealt out, not shared by neighbours": (forms, call, "prepare", other_heads),
    "the state is lost between chunks": (
        forms,
        call.Call,
        "piece",
        lambda self, start, stop, state: call_piece(self, start, stop, None),
    ),
    "the scan loses the state between tiles": (
        forms,
        tiles.Tile,
        "advance",
        lambda self, k, values, state: tile_advance(self, k, values, torch.zeros_like(state)),
    ),
    "the scan lets a query see the keys of its whole chunk": (
        forms,
        torch.Tensor,
        "triu_",
        lambda self: self,
    ),
    "the scan leaves coefficients and multiplicities out": (
        forms,
        scan,
        "query_factors",
        lambda *args: torch.ones_like(query_factors(*args)),
    ),
    "the state forgets how many keys were visible": (
        pieces,
        call.Call,
        "state_with",
        lambda self, sums: state_with(replace(self, state=None), sums),
    ),
    "sums are kept in float32": (forms, call, "state_dtype", lambda dtype: torch.float32),
    "zero over zero is not a number": (
        zeros,
        normalizers,
        "safe_divide",
        lambda numerator, denominator: numerator / denominator,
    ),
    "eps is always there": (
        forms,
        normalizers,
        "safe_divide",
        lambda numerator, denominator: numerics.safe_divide(numerator, denominator + 1e-9),
    ),
    "the layer norm divides by e - 1": (
        forms,
        normalizers,
        "_unit_mean_square",
        lambda y, eps, log_unit: y / (y.var(-1, keepdim=True) + eps).sqrt(),
    ),
}


@pytest.mark.parametrize("check", CHECKS)
def test_the_checks_are_green_on_the_library_as_it_is(check):
    check()


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_library_turns_a_check_red(mutation, monkeypatch):
    check, where, name, broken = MUTATIONS[mutation]
    features.query_factors.cache_clear()
    monkeypatch.setattr(where, name, broken)
    with pytest.raises((AssertionError, KernelCheckError)):
        check()


@pytest.fixture(autouse=True)
def fresh_caches():
    """Factors that a mutation left behind would outlive it."""
    yield
    query_factors.cache_clear()
    multiplicities.cache_clear()
