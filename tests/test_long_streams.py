"""Float32 sums over very many tokens, against float64; 10 million are for the benchmarks."""

import functools

import pytest
import torch

from softattn_lib import (
    Decoder,
    chunked_attention,
    recurrent_attention,
    taylor,
)
from softattn_lib import recurrent as module

KERNEL = taylor(1)
TOKENS, TOLERANCE = 100_000, 1e-6
pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


@functools.cache
def stream():
    """Keys and values with a mean of 1, so that sums grow; the last queries; the exact results."""
    q, k, v = torch.randn(3, TOKENS, 2, generator=torch.Generator().manual_seed(0))
    q, k, v = q[-4:], k + 1, v + 1
    out, state = chunked_attention(q.double(), k.double(), v.double(), kernel=KERNEL)
    return (q, k, v), out, state.sums


def error(result, exact):
    return float(((result.double() - exact).norm() / exact.norm()).item())


def recurrent_error():
    qkv, _, exact = stream()
    with torch.no_grad():
        _, state = recurrent_attention(*qkv, kernel=KERNEL)
    return error(state.sums, exact)


def test_the_recurrent_form_does_not_drift():
    assert recurrent_error() < TOLERANCE


def test_plain_sums_drift(monkeypatch):
    """The test above can fail: without the second level it is red."""
    monkeypatch.setattr(module, "SETTLE_EVERY", TOKENS)
    drift = recurrent_error()
    print(f"plain float32 sums after {TOKENS} tokens: {drift:.1e}")
    assert drift > TOLERANCE


@pytest.mark.slow
def test_a_decoder_does_not_drift():
    (q, k, v), out, exact = stream()
    decoder = Decoder(KERNEL, 2, 2)
    last = [decoder.step(q[t % 4], *token) for t, token in enumerate(zip(k, v, strict=True))][-4:]
    assert error(decoder.state.sums, exact) < TOLERANCE
    assert error(torch.stack(last), out) < 1e-5


def test_what_rounding_loses_is_kept():
    """2 ** 24 + 1 is no float32; a hundred times 1 is not lost beside it all the same."""
    settled, lost = torch.tensor(2.0**24), torch.tensor(0.0)
    for _ in range(100):
        settled, lost = module.settle(settled, lost, torch.tensor(1.0))
    assert settled.double() + lost.double() == 2**24 + 100
