"""What surrounds a call must not change its numbers: inference mode, autocast, default devices."""

import pytest
import torch

from softattn_lib import (
    ChainNormalizer,
    ClampedKernel,
    ExpKernel,
    chunked_attention,
    parallel_attention,
    recurrent_attention,
    symmetric_power,
    taylor,
)

FORMS = [parallel_attention, recurrent_attention, chunked_attention]


def inputs(d, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 2, 6, d, generator=generator).to(dtype)


@pytest.mark.parametrize("form", FORMS)
def test_a_first_call_in_inference_mode_spoils_no_later_gradient(form):
    q, k, v = inputs(7, torch.float64)
    options = {"kernel": taylor(3), "normalizer": "none"}
    with torch.inference_mode():
        form(q, k, v, **options)
    leaf = q.clone().requires_grad_()
    form(leaf, k, v, **options)[0].sum().backward()
    assert leaf.grad.isfinite().all()


def test_a_first_call_under_another_default_device_spoils_no_later_one():
    with torch.device("meta"):
        symmetric_power(torch.ones(6), 3)
    assert symmetric_power(torch.ones(6), 3).shape == (56,)


@pytest.mark.parametrize("form", FORMS)
def test_autocast_leaves_the_numbers_alone(form):
    q, k, v = inputs(5)
    expected, expected_state = form(q, k, v, kernel=taylor(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, state = form(q, k, v, kernel=taylor(4))
    assert torch.equal(out, expected) and torch.equal(state.sums, expected_state.sums)


@pytest.mark.parametrize("form", FORMS)
def test_a_state_that_overflows_is_an_error_in_every_form(form):
    q, k, v = torch.full((3, 2), 1e-12), torch.full((3, 2), 1e12), torch.ones(3, 2)
    with pytest.raises(OverflowError, match="float32"):
        form(q, k, v, kernel=taylor(4), scale=1.0)


def test_a_float16_output_that_overflows_is_an_error():
    q = torch.full((1, 4), 30.0, dtype=torch.float16)
    with pytest.raises(OverflowError, match="float16"):
        parallel_attention(q, q, q, kernel=taylor(4), normalizer="none", scale=1.0)


def test_a_clamp_around_exp_is_refused_by_name():
    with pytest.raises(ValueError, match="ExpKernel"):
        ClampedKernel(ExpKernel(), 5.0)


def test_a_chain_takes_names_and_refuses_nothing():
    assert len(ChainNormalizer(("visible_keys", "l2")).steps) == 2
    with pytest.raises(ValueError, match="empty"):
        ChainNormalizer(())
