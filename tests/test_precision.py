"""Half precision inputs with float32 sums: hardly worse than rounding the inputs makes it."""

import pytest
import torch

from softattn_lib import call, parallel_attention, taylor
from tests.reference import DEVICES, FORMS


def largest_error(out, exact):
    return (out.double() - exact).abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_at_most_twice_what_rounding_costs(form, dtype, order, device):
    """Against float64 on the unrounded inputs; the bound: float64 on the rounded ones."""
    generator = torch.Generator().manual_seed(order)
    exact_inputs = torch.randn(3, 2, 300, 8, generator=generator, dtype=torch.float64).to(device)
    rounded = exact_inputs.to(dtype)
    kernel = taylor(order)
    exact, _ = parallel_attention(*exact_inputs, kernel=kernel)
    allowed = parallel_attention(*rounded.double(), kernel=kernel)[0].to(dtype)
    out, _ = FORMS[form](*rounded, kernel=kernel)
    assert out.dtype == dtype
    assert largest_error(out, exact) <= 2 * largest_error(allowed, exact)


def test_sums_in_bfloat16_would_miss_the_bound(monkeypatch):
    monkeypatch.setattr(call, "state_dtype", lambda dtype: dtype)
    with pytest.raises(AssertionError):
        test_half_precision_is_at_most_twice_what_rounding_costs(
            "recurrent", torch.bfloat16, 2, "cpu"
        )
