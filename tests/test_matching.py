"""Sums of two squares that match a layer's outputs, and the key shift found with them."""

import pytest
import torch

from softattn_lib.fitting import observe, square
from softattn_lib.matching import match_outputs

SEEN = torch.ones(7, 7, dtype=torch.bool).tril()


def problem(seed=0, heads=4, key_heads=2, texts=2, length=7, d=4, e=3, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(heads, texts, length, d, generator=generator) * spread
    k = torch.randn(key_heads, texts, length, d, generator=generator)
    return q, k, torch.randn(heads, texts, length, e, generator=generator)


def head_scores(q, k, seen, scale, shift=None):
    """(Hq, n, R, T) float64, minus infinity at hidden keys."""
    k = k if shift is None else k - shift[:, None, None]
    k = k.repeat_interleave(len(q) // len(k), 0).double()
    return (scale * q.double() @ k.mT).masked_fill(~seen, -torch.inf)


def output_error(polynomials, scores, v, target):
    """(Hq,): what `match_outputs` says that it makes small."""
    weights = torch.stack([
        p(s.masked_fill(s == -torch.inf, p.low)) for p, s in zip(polynomials, scores, strict=True)
    ])  # fmt: skip
    weights = weights.masked_fill(scores == -torch.inf, 0)
    out = weights / weights.sum(-1, keepdim=True) @ v.double()
    return ((out - target) ** 2).sum(-1).mean((1, 2)) / (target**2).sum(-1).mean((1, 2))


def errors(order, q, k, v, seen=SEEN, scale=0.5, **options):
    """(Hq,) of the match, and (Hq,) of the squares it starts from."""
    scores = head_scores(q, k, seen, scale)
    target = scores.softmax(-1) @ v.double()
    polynomials, shift = match_outputs(order, q, k, v, seen, scale=scale, **options)
    matched = output_error(polynomials, head_scores(q, k, seen, scale, shift), v, target)
    squares = [square(order, observe(head)) for head in scores]
    return matched, output_error(squares, scores, v, target)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("order", [2, 4, 8])
def test_outputs_are_closer_than_those_of_the_square_it_starts_from(order, seed):
    matched, squares = errors(order, *problem(seed))
    print(f"order {order}: {squares.sum():.2e} -> {matched.sum():.2e}")
    assert matched.sum() < 0.9 * squares.sum()


def test_each_head_is_closer():
    matched, squares = errors(4, *problem(heads=6, key_heads=3))
    assert (matched < squares).all()


def test_more_steps_are_closer():
    few, _ = errors(4, *problem(), steps=2)
    many, _ = errors(4, *problem(), steps=60)
    assert many.sum() < few.sum()


def test_a_high_order_gives_the_outputs_of_softmax():
    matched, _ = errors(12, *problem(spread=0.7))
    assert (matched < 1e-6).all()


def test_softmax_does_not_notice_the_key_shift():
    q, k, v = problem()
    _, shift = match_outputs(4, q, k, v, SEEN, scale=0.5)
    assert shift.abs().max() > 1e-3  # there is one
    moved = head_scores(q, k, SEEN, 0.5, shift).softmax(-1)
    torch.testing.assert_close(moved, head_scores(q, k, SEEN, 0.5).softmax(-1))


def test_keys_with_a_common_vector_are_as_easy():
    """The shift takes it away again: what is added to all keys costs nothing."""
    q, k, v = problem()
    plain, _ = errors(2, q, k, v)
    moved, squares = errors(2, q, k + torch.tensor([3.0, -4.0, 5.0, 2.0]), v)
    assert moved.sum() < 3 * plain.sum() and moved.sum() < 0.3 * squares.sum()


def test_what_comes_back():
    q, k, v = problem(heads=6, key_heads=2)
    polynomials, shift = match_outputs(6, q, k, v, SEEN, scale=0.5)
    assert len(polynomials) == 6
    assert shift.shape == (2, 4) and shift.dtype == torch.float32 and not shift.requires_grad
    for p in polynomials:
        assert p.is_squared and p.is_nonnegative and p.order == 6
        assert [len(term) for term in p.terms] == [4, 4]


def test_some_queries_of_longer_texts():
    q, k, v = problem(length=9, texts=3)
    rows = torch.tensor([2, 5, 8])
    seen = torch.arange(9) <= rows.unsqueeze(-1)
    matched, squares = errors(4, q[:, :, rows], k, v, seen)
    assert matched.sum() < squares.sum()


def test_the_same_problem_has_the_same_answer():
    first, second = (match_outputs(4, *problem(), SEEN, scale=0.5) for _ in range(2))
    assert first[0] == second[0] and torch.equal(first[1], second[1])


def test_the_scale_multiplies_queries():
    q, k, v = problem()
    scaled, shift = match_outputs(4, q, k, v, SEEN, scale=0.5)
    plain, other = match_outputs(4, q * 0.5, k, v, SEEN, scale=1.0)
    assert scaled == plain and torch.equal(shift, other)


def test_a_head_without_output_does_not_spoil_the_others():
    q, k, v = problem()
    v[1] = 0
    polynomials, shift = match_outputs(4, q, k, v, SEEN, scale=0.5)
    scores = head_scores(q, k, SEEN, 0.5)
    target = scores.softmax(-1) @ v.double()
    matched = output_error(polynomials, head_scores(q, k, SEEN, 0.5, shift), v, target)
    squares = [square(4, observe(head)) for head in scores]
    before = output_error(squares, scores, v, target)
    others = torch.tensor([0, 2, 3])
    assert matched[others].sum() < before[others].sum()


def test_the_inputs_stay_as_they_are():
    tensors = problem()
    before = [x.clone() for x in tensors]
    match_outputs(2, *tensors, SEEN, scale=0.5)
    for x, y in zip(tensors, before, strict=True):
        assert torch.equal(x, y) and not x.requires_grad


@pytest.mark.parametrize("order", [0, 1, 3, 7, -2, 4.0, "4", None])
def test_orders_that_are_none(order):
    with pytest.raises(ValueError, match=r"^order "):
        match_outputs(order, *problem(), SEEN, scale=0.5)
