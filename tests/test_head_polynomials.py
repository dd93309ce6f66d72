"""A polynomial for each head: what each head would do alone, in every form."""

import pytest
import torch

from softattn_lib import (
    Polynomial,
    PolynomialKernel,
    attention,
    attention_step,
    init_state,
    parallel_attention,
    taylor,
)
from softattn_lib.families import ChebyshevPolynomial, chebyshev, square_of
from softattn_lib.kernels import HeadPolynomialsKernel
from tests.reference import FORMS

POLYNOMIALS = (
    taylor(2),
    Polynomial((0.5, 0.0, 1.0)),
    square_of(chebyshev(2, -1.0, 1.5)),  # order 4, in Chebyshev form
    taylor(0),
    Polynomial((2.0, 0.3, 0.0, 0.1)),  # signed
    taylor(4),
)
quiet = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")
pytestmark = quiet


def qkv(key_heads=2, num_queries=7, num_keys=7, d=3, e=4):
    """Small queries: all weights of these polynomials are well above 0, also the signed ones."""
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 6, num_queries, d), (2, key_heads, num_keys, d), (2, key_heads, num_keys, e)
    q, k, v = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)
    return 0.6 * q, k, v


def head_by_head(q, k, v, polynomials=POLYNOMIALS, **options):
    groups = q.shape[1] // k.shape[1]
    outs = []
    for head, polynomial in enumerate(polynomials):
        one = q[:, head], k[:, head // groups], v[:, head // groups]
        outs.append(parallel_attention(*one, kernel=PolynomialKernel(polynomial), **options)[0])
    return torch.stack(outs, dim=1)


@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize("form", FORMS)
def test_each_head_is_that_of_its_polynomial_alone(form, key_heads):
    q, k, v = qkv(key_heads)
    kernel = HeadPolynomialsKernel(POLYNOMIALS)
    out, _ = FORMS[form](q, k, v, kernel=kernel, enable_gqa=key_heads < 6)
    torch.testing.assert_close(out, head_by_head(q, k, v), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_gradients_agree(form):
    kernel, grads = HeadPolynomialsKernel(POLYNOMIALS), []
    for run in (FORMS["parallel"], FORMS[form]):
        q, k, v = (x.requires_grad_() for x in qkv())
        out, _ = run(q, k, v, kernel=kernel, enable_gqa=True)
        factor = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
        grads.append(torch.autograd.grad((out * factor).sum(), (q, k, v)))
    for expected, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_gradients_are_those_of_each_head_alone():
    grads = []
    for run in (
        lambda *x: head_by_head(*x),
        lambda *x: parallel_attention(
            *x, kernel=HeadPolynomialsKernel(POLYNOMIALS), enable_gqa=True
        )[0],
    ):
        q, k, v = (x.requires_grad_() for x in qkv())
        grads.append(torch.autograd.grad(run(q, k, v).square().sum(), (q, k, v)))
    for expected, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("second", FORMS)
@pytest.mark.parametrize("first", FORMS)
def test_a_sequence_in_two_pieces(first, second):
    q, k, v = qkv(num_queries=9, num_keys=9)
    kernel = HeadPolynomialsKernel(POLYNOMIALS)
    options = {"kernel": kernel, "enable_gqa": True}
    whole, _ = parallel_attention(q, k, v, **options)
    out, state = FORMS[first](q[:, :, :5], k[:, :, :5], v[:, :, :5], return_state=True, **options)
    rest, _ = FORMS[second](q[:, :, 5:], k[:, :, 5:], v[:, :, 5:], initial_state=state, **options)
    got = torch.cat([out, rest], dim=2)
    torch.testing.assert_close(got, whole, rtol=1e-11, atol=1e-12)


def test_gradients_through_a_state():
    kernel, grads = HeadPolynomialsKernel(POLYNOMIALS), []
    options = {"kernel": kernel, "enable_gqa": True}
    for cut in (0, 4):
        q, k, v = (x.requires_grad_() for x in qkv())
        if cut:
            pieces = [x[:, :, :cut] for x in (q, k, v)]
            out, state = FORMS["chunked"](*pieces, return_state=True, **options)
            pieces = [x[:, :, cut:] for x in (q, k, v)]
            rest, _ = FORMS["recurrent"](*pieces, initial_state=state, **options)
            out = torch.cat([out, rest], dim=2)
        else:
            out, _ = parallel_attention(q, k, v, **options)
        grads.append(torch.autograd.grad(out.square().sum(), (q, k, v)))
    for expected, got in zip(*grads, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-11)


def test_token_by_token():
    q, k, v = qkv()
    kernel = HeadPolynomialsKernel(POLYNOMIALS)
    state = init_state(kernel, 3, 4, batch_shape=(2, 2), dtype=torch.float64)
    outs = []
    for t in range(7):
        token = q[:, :, t], k[:, :, t], v[:, :, t]
        out, state = attention_step(*token, state, kernel=kernel, enable_gqa=True)
        outs.append(out)
    torch.testing.assert_close(torch.stack(outs, 2), head_by_head(q, k, v), rtol=1e-11, atol=1e-12)


def test_a_scale_a_mask_and_no_causality():
    q, k, v = qkv()
    mask = torch.ones(2, 2, 7, dtype=torch.bool)
    mask[0, :, :3] = False
    options = {"scale": 0.4, "is_causal": False}
    for run in FORMS.values():
        kernel = HeadPolynomialsKernel(POLYNOMIALS)
        out, _ = run(q, k, v, kernel=kernel, enable_gqa=True, key_mask=mask, **options)
        expected = head_by_head(q[:1], k[:1, :, 3:], v[:1, :, 3:], **options)
        torch.testing.assert_close(out[:1], expected, rtol=1e-11, atol=1e-12)
        expected = head_by_head(q[1:], k[1:], v[1:], **options)
        torch.testing.assert_close(out[1:], expected, rtol=1e-11, atol=1e-12)


def test_the_entry_point_takes_it():
    q, k, v = qkv()
    out = attention(q, k, v, kernel=HeadPolynomialsKernel(POLYNOMIALS), enable_gqa=True)
    out = out[0] if isinstance(out, tuple) else out
    torch.testing.assert_close(out, head_by_head(q, k, v), rtol=1e-11, atol=1e-12)


def test_equal_polynomials_are_one_polynomial_kernel():
    q, k, v = qkv()
    for run in FORMS.values():
        out, _ = run(q, k, v, kernel=HeadPolynomialsKernel((taylor(2),) * 6), enable_gqa=True)
        expected, _ = run(q, k, v, kernel=taylor(2), enable_gqa=True)
        torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)


def test_the_order_of_heads_is_that_of_the_queries():
    q, k, v = qkv()
    turned = POLYNOMIALS[1:] + POLYNOMIALS[:1]
    out, _ = parallel_attention(q, k, v, kernel=HeadPolynomialsKernel(turned), enable_gqa=True)
    torch.testing.assert_close(out, head_by_head(q, k, v, turned), rtol=1e-11, atol=1e-12)
    assert (out - head_by_head(q, k, v)).abs().max() > 1e-3


def test_the_product_of_features_is_the_weight():
    q, k, _ = qkv()
    kernel = HeadPolynomialsKernel(POLYNOMIALS)
    q, k = q.unflatten(1, (2, 3)), k.unsqueeze(2)  # (B, H_k, G, T, d), as the forms group them
    query, key = kernel.query_features(q, 0.7), kernel.key_features(k)
    assert query.shape[-1] == key.shape[-1] == kernel.num_features(3)
    weight = kernel.weight(kernel.scores(q, k, 0.7))
    torch.testing.assert_close(query @ key.mT, weight, rtol=1e-11, atol=1e-12)


def test_the_state_holds_the_powers_of_any_head():
    few = HeadPolynomialsKernel((Polynomial((1.0,)), Polynomial((0.0, 0.0, 1.0))))
    assert few.num_features(4) == 1 + 10
    assert few.feature_set == PolynomialKernel(Polynomial((2.0, 0.0, 3.0))).feature_set
    every = HeadPolynomialsKernel(POLYNOMIALS)
    assert every.num_features(3) == PolynomialKernel(taylor(4)).num_features(3)
    assert every.feature_set == PolynomialKernel(taylor(4)).feature_set


def test_a_state_can_be_read_by_another_kernel_of_its_powers():
    q, k, v = qkv()
    first = HeadPolynomialsKernel((taylor(4),) * 6)
    other = HeadPolynomialsKernel(POLYNOMIALS)
    _, state = FORMS["chunked"](
        q[:, :, :4], k[:, :, :4], v[:, :, :4], kernel=first, enable_gqa=True, return_state=True
    )
    out, _ = FORMS["recurrent"](
        q[:, :, 4:], k[:, :, 4:], v[:, :, 4:], kernel=other, enable_gqa=True, initial_state=state
    )
    torch.testing.assert_close(out, head_by_head(q, k, v)[:, :, 4:], rtol=1e-11, atol=1e-12)


def test_it_is_nonnegative_if_all_heads_are():
    assert HeadPolynomialsKernel((taylor(0), taylor(2), POLYNOMIALS[2])).is_nonnegative
    assert not HeadPolynomialsKernel((taylor(2), taylor(1))).is_nonnegative
    assert not HeadPolynomialsKernel(POLYNOMIALS).is_nonnegative


def test_kernels_are_values():
    kernel = HeadPolynomialsKernel((taylor(0), taylor(2)))
    same = HeadPolynomialsKernel((taylor(0), taylor(2)))
    assert kernel == same and hash(kernel) == hash(same)
    assert kernel != HeadPolynomialsKernel((taylor(2), taylor(0)))


def test_half_precision_gives_the_dtype_of_its_input():
    q, k, v = (x.bfloat16() for x in qkv())
    kernel = HeadPolynomialsKernel((taylor(2),) * 6)
    for run in FORMS.values():
        out, _ = run(q, k, v, kernel=kernel, enable_gqa=True)
        assert out.dtype == torch.bfloat16
        expected = head_by_head(q.double(), k.double(), v.double(), (taylor(2),) * 6)
        torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [5, 7])
def test_as_many_polynomials_as_heads(form, count):
    q, k, v = qkv()
    kernel = HeadPolynomialsKernel((taylor(2),) * count)
    with pytest.raises((ValueError, RuntimeError)):
        FORMS[form](q, k, v, kernel=kernel, enable_gqa=True)


def test_squares_of_different_orders_are_evaluated_together_as_each_alone():
    polynomials = (
        ChebyshevPolynomial(-3.0, 1.0, ((1.0, 0.5, 0.25),), True),
        ChebyshevPolynomial(-1.0, 2.0, ((1.0,), (0.5, 2.0)), True),
        ChebyshevPolynomial(0.0, 4.0, ((2.0, 0.0), (1.0, 1.0, 1.0, 1.0)), True),
    )
    scores = torch.randn(2, 3, 1, 5, 7, generator=torch.Generator().manual_seed(0))
    together = HeadPolynomialsKernel(polynomials).weight(scores)
    alone = [p(scores[:, head]) for head, p in enumerate(polynomials)]
    torch.testing.assert_close(together, torch.stack(alone, dim=1))
