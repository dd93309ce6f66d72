"""The fast path of the chunked form: the same numbers and gradients, however the work is cut."""

import pytest
import torch
import torch.utils.checkpoint

from softattn_lib import (
    Polynomial,
    PolynomialKernel,
    chunked_attention,
    parallel_attention,
    recurrent_attention,
    scan,
    taylor,
    tiles,
)
from softattn_lib.polynomials import power

POLYNOMIALS = {
    "constant": taylor(0),
    "zero": Polynomial((0.0,)),
    "linear": power(1),
    "order 2": taylor(2),
    "order 4": taylor(4),
    "power 3 alone": power(3),
    "orders 0 and 3": Polynomial((0.5, 0, 0, -0.25)),
}
# T_q, T_k, causal: equal lengths, a shorter last chunk, few queries, none, one token, no token.
LENGTHS = [(24, 24, True), (23, 23, True), (5, 23, True), (17, 23, True), (0, 9, True)]
LENGTHS += [(1, 1, True), (0, 0, True), (9, 23, False), (23, 9, False), (3, 0, False)]


def tensors(num_queries, num_keys, d=3, e=2, dtype=torch.float64, seed=0):
    """q with 4 heads, k and v with 2, of two sequences, and a state from a past of 6 tokens."""
    draw = torch.Generator().manual_seed(seed)
    shapes = ((4, num_queries, d), (2, num_keys, d), (2, num_keys, e))
    return [torch.randn(2, *s, generator=draw, dtype=dtype, requires_grad=True) for s in shapes]


def outcomes(form, q, k, v, **options):
    """Output, sums of the final state, and the gradients of a random sum of both."""
    options = {"normalizer": "none", "enable_gqa": True, **options}
    out, state = form(q, k, v, **options)
    draw = torch.Generator().manual_seed(1)
    loss = sum((x * torch.randn(x.shape, generator=draw).to(x)).sum() for x in (out, state.sums))
    grads = torch.autograd.grad(loss, (q, k, v), allow_unused=True, materialize_grads=True)
    return out, state.sums, *grads


@pytest.mark.parametrize("tile", [1, 2000, 10**9], ids=["one chunk", "a few chunks", "all chunks"])
@pytest.mark.parametrize("polynomial", POLYNOMIALS)
def test_numbers_and_gradients_do_not_depend_on_the_tiles(polynomial, tile, monkeypatch):
    monkeypatch.setattr(scan, "CPU_TILE", tile)
    for num_queries, num_keys, is_causal in LENGTHS:
        q, k, v = tensors(num_queries, num_keys)
        options = {"kernel": POLYNOMIALS[polynomial], "is_causal": is_causal}
        expected = outcomes(parallel_attention, q, k, v, **options)
        for ours, reference in zip(
            outcomes(chunked_attention, q, k, v, chunk_size=4, **options), expected, strict=True
        ):
            torch.testing.assert_close(ours, reference, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(("d", "order", "shared"), [(16, 3, 2), (16, 4, 2), (7, 3, 1), (32, 3, 2)])
def test_products_that_neighbouring_factors_share(d, order, shared):
    assert tiles.Layout(d, 3, taylor(order)).shared == shared
    q, k, v = tensors(9, 11, d=d)
    options = {"kernel": taylor(order), "chunk_size": 4}
    expected = outcomes(parallel_attention, q, k, v, kernel=taylor(order))
    for ours, reference in zip(
        outcomes(chunked_attention, q, k, v, **options), expected, strict=True
    ):
        torch.testing.assert_close(ours, reference, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("d", [3, 12, 16])
@pytest.mark.parametrize("polynomial", POLYNOMIALS)
def test_the_blocks_of_a_layout_read_every_feature_once(polynomial, d):
    polynomial = POLYNOMIALS[polynomial]
    features = torch.cat([block.flatten() for block in tiles.block_features(d, polynomial)])
    read = features[features >= 0]
    assert torch.equal(read.sort().values, torch.arange(len(read)))
    assert len(read) == PolynomialKernel(polynomial).num_features(d)


@pytest.mark.parametrize("tile", [1, 2000])
def test_gradients_reach_the_initial_state(tile, monkeypatch):
    monkeypatch.setattr(scan, "CPU_TILE", tile)
    q, k, v = tensors(23, 23)
    options = {"kernel": taylor(3), "normalizer": "none", "enable_gqa": True}
    past = tensors(6, 6, seed=2)
    got = []
    for form in (chunked_attention, parallel_attention):
        state = parallel_attention(*past, **options)[1]
        out = form(q, k, v, initial_state=state, **options)[0]
        got.append(torch.autograd.grad(out.sin().sum(), past[1:]))
    torch.testing.assert_close(*got, rtol=1e-11, atol=1e-11)


def test_gradcheck(monkeypatch):
    monkeypatch.setattr(scan, "CPU_TILE", 200)
    q, k, v = tensors(7, 9)

    def run(q, k, v):
        options = {"kernel": taylor(2), "enable_gqa": True, "chunk_size": 3}
        out, state = chunked_attention(q, k, v, **options)
        return out, state.sums

    assert torch.autograd.gradcheck(run, (q, k, v))


def test_second_order_gradients_are_refused():
    q, k, v = tensors(5, 5)
    out, _ = chunked_attention(q, k, v, kernel=taylor(2), enable_gqa=True)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="recurrent_attention"):
        grad.square().sum().backward()
    out, _ = recurrent_attention(q, k, v, kernel=taylor(2), enable_gqa=True)
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    grad.square().sum().backward()
    assert q.grad.abs().sum() > 0


def test_forward_mode_is_refused_and_not_taken_for_zero():
    q, k, v = (x.detach() for x in tensors(5, 5))

    def total(form):
        return lambda q: form(q, k, v, kernel=taylor(2), enable_gqa=True)[0].sum()

    with pytest.raises(NotImplementedError, match="recurrent_attention"):
        torch.func.jvp(total(chunked_attention), (q,), (q,))
    _, tangent = torch.func.jvp(total(parallel_attention), (q,), (q,))
    expected = torch.func.grad(total(parallel_attention))(q)
    torch.testing.assert_close(tangent, (expected * q).sum())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_around_it_changes_nothing(use_reentrant):
    q, k, v = tensors(9, 9)

    def run(q, k, v):
        return chunked_attention(q, k, v, kernel=taylor(2), enable_gqa=True, chunk_size=4)[0]

    expected = torch.autograd.grad(run(q, k, v).sin().sum(), (q, k, v))
    out = torch.utils.checkpoint.checkpoint(run, q, k, v, use_reentrant=use_reentrant)
    out.sin().sum().backward()
    torch.testing.assert_close([x.grad for x in (q, k, v)], list(expected), rtol=0, atol=0)


def test_autocast_around_the_backward_pass_changes_nothing():
    q, k, v = (x.detach().float().requires_grad_() for x in tensors(40, 40))
    options = {"kernel": taylor(3), "enable_gqa": True, "chunk_size": 16, "normalizer": "none"}
    out = chunked_attention(q, k, v, **options)[0]
    expected = torch.autograd.grad(out.sin().sum(), (q, k, v), retain_graph=True)
    gradient = out.detach().cos()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch.autograd.grad(out, (q, k, v), gradient)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_state_records_gradients_only_of_what_is_written():
    q, k, v = tensors(5, 5)
    options = {"kernel": taylor(2), "enable_gqa": True}
    state = chunked_attention(q, k.detach(), v.detach(), **options)[1]
    assert not state.sums.requires_grad and state.sums.is_contiguous()
    assert chunked_attention(q, k, v.detach(), **options)[1].sums.requires_grad


def test_the_operators_keep_the_rules_of_torch():
    q, k, v = tensors(7, 9)
    values = torch.cat([v, torch.ones_like(v[..., :1])], -1).flatten(0, 1).detach()
    q, k = q.unflatten(1, (2, 2)).flatten(0, 1).detach(), k.flatten(0, 1).detach()
    inputs = [x.requires_grad_() for x in (q, k, values, torch.zeros(4, 3, 10).double())]
    arguments = (*inputs, [1.0, 1.0, 0.5], 0.7, 4, True, True)
    torch.library.opcheck(torch.ops.softattn.scan.default, arguments)


def test_inputs_are_left_as_they_were_and_may_be_strided():
    q, k, v = (x.detach() for x in tensors(12, 12))
    options = {"kernel": taylor(2), "enable_gqa": True, "chunk_size": 5}
    expected, state = chunked_attention(q, k, v, **options)
    strided = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in (q, k, v)]
    before = [x.clone() for x in (*strided, state.sums)]
    out, _ = chunked_attention(*strided, **options)
    chunked_attention(*strided, initial_state=state, **options)
    assert torch.equal(out, expected)
    assert all(map(torch.equal, (*strided, state.sums), before))


@pytest.mark.parametrize("lead", [(), (1,), (0,), (2, 0, 3)])
def test_any_leading_axes(lead):
    x = torch.randn(*lead, 6, 3, dtype=torch.float64)
    out, state = chunked_attention(x, x, x, kernel=taylor(2), chunk_size=4)
    assert out.shape == x.shape and state.sums.shape == (*lead, 10, 4)


def test_which_calls_take_the_fast_path(monkeypatch):
    taken = []
    monkeypatch.setattr("softattn_lib.chunked.scan", lambda *a: taken.append(1) or scan.scan(*a))
    q, k, v = (x.detach() for x in tensors(4, 4))
    decay = torch.zeros(4, dtype=torch.float64)
    for options, fast in (
        ({"kernel": taylor(2)}, True),
        ({"kernel": taylor(2), "is_causal": False}, True),
        ({"kernel": taylor(2), "log_decay": decay}, False),
        ({"kernel": "relu"}, False),
    ):
        taken.clear()
        chunked_attention(q, k, v, enable_gqa=True, **options)
        assert bool(taken) == fast, options
