"""The decoder: the numbers of the recurrent form, in place, at the same cost at every token."""

import copy
import pickle

import pytest
import torch

from softattn_lib import (
    Decoder,
    Polynomial,
    SignedWeightsWarning,
    attention_step,
    init_state,
    recurrent_attention,
    taylor,
)
from softattn_lib.recurrent import SETTLE_EVERY
from tests.reference import DEVICES, KERNELS, NORMALIZERS, inputs

CLOSE = {"rtol": 1e-10, "atol": 1e-11}
signed = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


def decoded(decoder, q, k, v):
    return torch.stack(
        [decoder.step(*token) for token in zip(*along_time(q, k, v), strict=True)], -2
    )


def along_time(*tensors):
    return (x.unbind(-2) for x in tensors)


@signed
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_decoder_gives_what_the_recurrent_form_gives(kernel, name, device):
    """Two query heads to a key head, and a past to go on from."""
    kernel, normalizer = KERNELS[kernel][0], NORMALIZERS[name].normalizer
    q, k, v, _ = inputs(device=device, groups=2)
    options = {"kernel": kernel, "normalizer": normalizer, "scale": 0.45, "enable_gqa": True}
    expected, expected_state = recurrent_attention(q, k, v, **options)
    past = (x[..., :3, :] for x in (q, k, v))
    _, state = recurrent_attention(*past, **options)
    decoder = Decoder(
        kernel, 4, 5, batch_shape=(2, 3), groups=2, normalizer=normalizer, scale=0.45,
        dtype=torch.float64, device=device, initial_state=state,
    )  # fmt: skip
    out = decoded(decoder, *(x[..., 3:, :] for x in (q, k, v)))
    torch.testing.assert_close(out, expected[..., 3:, :], **CLOSE)
    torch.testing.assert_close(decoder.state.sums, expected_state.sums, **CLOSE)
    assert torch.equal(decoder.state.visible, expected_state.visible)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3), (0,)], ids=str)
@pytest.mark.parametrize("order", [0, 1, 2, 4])
@signed
def test_leading_axes_and_orders(order, lead):
    q, k, v = torch.randn(3, *lead, 5, 4, dtype=torch.float64)
    decoder = Decoder(taylor(order), 4, 4, batch_shape=lead, dtype=torch.float64)
    expected, _ = recurrent_attention(q, k, v, kernel=taylor(order))
    torch.testing.assert_close(decoded(decoder, q, k, v), expected, **CLOSE)


def test_zero_weights_give_zeros():
    token = torch.ones(4)
    assert not Decoder(Polynomial((0.0,)), 4, 4).step(token, token, token).any()
    relu = Decoder("relu", 4, 4)
    assert not relu.step(token, -token, token).any()


def test_blocks_settle_and_the_state_goes_on_anywhere():
    q, k, v, _ = inputs(T=2 * SETTLE_EVERY + 3)
    decoder = Decoder(taylor(2), 4, 5, batch_shape=(2, 3), dtype=torch.float64)
    out = decoded(decoder, q, k, v)
    expected, state = recurrent_attention(q, k, v, kernel=taylor(2))
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(decoder.state.sums, state.sums, **CLOSE)
    token = [x[..., 0, :] for x in (q, k, v)]
    after, _ = attention_step(*token, decoder.state, kernel=taylor(2))
    torch.testing.assert_close(after, decoder.step(*token), **CLOSE)


def test_a_state_is_a_copy_and_an_initial_state_is_left_alone():
    token = torch.ones(3, 4)
    start = init_state(taylor(2), 4, 4, batch_shape=(3,))
    decoder = Decoder(taylor(2), 4, 4, batch_shape=(3,), initial_state=start)
    first = decoder.step(token, token, token)
    kept, state = first.clone(), decoder.state
    sums = state.sums.clone()
    decoder.step(token, -token, 5 * token)
    assert torch.equal(state.sums, sums) and torch.equal(first, kept) and not start.sums.any()
    assert (state.visible == 1).all() and (decoder.state.visible == 2).all()


def test_an_output_is_no_view_of_a_buffer():
    token = torch.ones(4)
    decoder = Decoder(taylor(2), 4, 4, normalizer="none")
    first = decoder.step(token, token, token)
    kept = first.clone()
    decoder.step(token, token, token)
    assert torch.equal(first, kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_float32_sums(dtype):
    q, k, v, _ = inputs(dtype)
    decoder = Decoder(taylor(2), 4, 5, batch_shape=(2, 3), dtype=dtype)
    out = decoded(decoder, q, k, v)
    expected, _ = recurrent_attention(*(x.double() for x in (q, k, v)), kernel=taylor(2))
    assert out.dtype == dtype and decoder.state.sums.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_a_decoder_made_in_inference_mode_works_outside():
    with torch.inference_mode():
        decoder = Decoder(taylor(2), 4, 4)
    token = torch.ones(4)
    torch.testing.assert_close(decoder.step(token, token, token).clone(), token)


def test_a_decoder_has_no_gradients():
    decoder, token = Decoder(taylor(2), 4, 4), torch.ones(4)
    leaf = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"k records gradients.*attention_step"):
        decoder.step(token, leaf, token)
    with torch.no_grad():
        decoder.step(token, leaf, token)


def test_a_decoder_refuses_tokens_it_was_not_made_for():
    decoder, token = Decoder(taylor(2), 4, 4, batch_shape=(3,)), torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"k must be torch.float32 of shape \(3, 4\).*\(4,\)"):
        decoder.step(token, token[0], token)
    with pytest.raises(ValueError, match=r"v must be .* got torch.float64"):
        decoder.step(token, token, token.double())


def test_a_decoder_refuses_what_the_forms_refuse():
    with pytest.raises(ValueError, match=r"Decoder: kernel .* has no finite state"):
        Decoder("exp", 4, 4)
    with pytest.raises(ValueError, match=r"initial_state has scale 1\.0, this call needs 0.5"):
        Decoder(taylor(2), 4, 4, initial_state=init_state(taylor(2), 4, 4, scale=1.0))
    with pytest.raises(ValueError, match="groups must be an integer >= 1, got 0"):
        Decoder(taylor(2), 4, 4, batch_shape=(2,), groups=0)
    with pytest.raises(ValueError, match="groups=2 needs key heads"):
        Decoder(taylor(2), 4, 4, groups=2)
    with pytest.warns(SignedWeightsWarning) as caught:
        Decoder(taylor(3), 4, 4)
    assert caught[0].filename == __file__


def test_sums_that_overflow_are_an_error():
    decoder, token = Decoder(taylor(4), 2, 2), torch.full((2,), 1e12)
    with pytest.raises(OverflowError, match="float32"):
        for _ in range(SETTLE_EVERY):
            decoder.step(token, token, token)
    with pytest.raises(OverflowError, match="float32"):
        _ = decoder.state


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_goes_on_from_the_same_state_by_itself(copied):
    draw = torch.Generator().manual_seed(3)
    tokens = [torch.randn(3, 4, 5, generator=draw, dtype=torch.float64) for _ in range(4)]
    options = {"batch_shape": (2,), "groups": 2, "normalizer": "rms", "dtype": torch.float64}
    decoder = Decoder(taylor(2), 5, 5, **options)
    decoder.step(tokens[0][0], *tokens[0][1:, :2])
    other = copied(decoder)
    for q, k, v in tokens[1:]:
        out = decoder.step(q, k[:2], v[:2])
        torch.testing.assert_close(other.step(q, k[:2], v[:2]), out)
    assert torch.equal(decoder.state.visible, other.state.visible)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"d": 0}, "d must be an integer >= 1, got 0"),
        ({"e": -1}, "e must be an integer >= 1, got -1"),
        ({"dtype": torch.int32}, "dtype must be a floating point torch.dtype, got torch.int32"),
    ],
)
def test_illegal_sizes_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        Decoder(**{"kernel": taylor(2), "d": 4, "e": 4, **arguments})
