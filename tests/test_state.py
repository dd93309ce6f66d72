"""The state: splits, steps, masked tokens, decay to nothing, and what is refused."""

import dataclasses
import itertools
import math

import pytest
import torch

from softattn_lib import (
    AttentionState,
    Polynomial,
    PolynomialKernel,
    attention_step,
    init_state,
    parallel_attention,
    recurrent_attention,
    softmax_attention,
    taylor,
)
from tests.reference import FORMS, KERNELS, NORMALIZERS, inputs
from tests.reference import gates as draw_gates

pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")

CLOSE = {"rtol": 1e-11, "atol": 1e-11}
ALONG_TIME = ("input_gate", "output_gate", "log_decay", "key_mask")


def cut(options, start, stop):
    """The options of a call on the tokens start..stop."""
    return {n: x[..., start:stop] if n in ALONG_TIME else x for n, x in options.items()}


def in_pieces(q, k, v, cuts, forms, **options):
    """The sequence cut at `cuts`, one form for each piece: (out, final state)."""
    ends, outs, state = [0, *cuts, k.shape[-2]], [], None
    for form, (start, stop) in zip(forms, itertools.pairwise(ends), strict=True):
        piece = (x[..., start:stop, :] for x in (q, k, v))
        out, state = FORMS[form](*piece, initial_state=state, **cut(options, start, stop))
        outs.append(out)
    return torch.cat(outs, dim=-2), state


def assert_same(state, expected, **close):
    torch.testing.assert_close(state.sums, expected.sums, **(close or CLOSE))
    assert torch.equal(state.visible, expected.visible)
    assert (state.feature_set, state.scale) == (expected.feature_set, expected.scale)


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("kernel", ["order2", "order3_full", "gaps", "elu_plus_one", "own"])
def test_any_split_in_any_forms_gives_the_same(kernel, name):
    q, k, v, generator = inputs()
    options = draw_gates(generator, q, k, gate="after", decay=True, mask=True)
    options.update(kernel=KERNELS[kernel][0], normalizer=NORMALIZERS[name].normalizer, scale=0.45)
    expected, expected_state = parallel_attention(q, k, v, **options)
    for forms in itertools.product(FORMS, repeat=2):
        for cuts in ((1,), (4,)):
            out, state = in_pieces(q, k, v, cuts, forms, **options)
            torch.testing.assert_close(out, expected, **CLOSE)
            assert_same(state, expected_state)


def test_every_way_to_cut_a_sequence():
    """Also into single tokens, and with empty pieces."""
    q, k, v, generator = inputs(B=1, H=1, T=4)
    options = {"kernel": taylor(2), **draw_gates(generator, q, k, gate="before", decay=True)}
    expected, expected_state = parallel_attention(q, k, v, **options)
    forms = itertools.cycle(FORMS)
    for size in range(4):
        for cuts in itertools.combinations_with_replacement(range(5), size):
            some_forms = [next(forms) for _ in range(size + 1)]
            out, state = in_pieces(q, k, v, cuts, some_forms, **options)
            torch.testing.assert_close(out, expected, **CLOSE)
            assert_same(state, expected_state)


@pytest.mark.parametrize("enable_gqa", [False, True])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_state_continues_where_queries_are_few_or_see_everything(form, is_causal, enable_gqa):
    groups = 2 if enable_gqa else 1
    q, k, v, generator = inputs(groups=groups, num_queries=3)
    options = draw_gates(generator, q, k, decay=True, mask=True)
    options.update(kernel=taylor(2), enable_gqa=enable_gqa, is_causal=is_causal)
    expected, expected_state = parallel_attention(q, k, v, **options)
    _, state = FORMS[form](q[..., :0, :], k[..., :4, :], v[..., :4, :], **cut(options, 0, 4))
    out, state = FORMS[form](
        q, k[..., 4:, :], v[..., 4:, :], initial_state=state, **cut(options, 4, 7)
    )
    torch.testing.assert_close(out, expected, **CLOSE)
    assert_same(state, expected_state)


@pytest.mark.parametrize("enable_gqa", [False, True])
@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("kernel", ["order2", "order3", "relu", "own"])
def test_steps_give_what_the_forms_give(kernel, name, enable_gqa):
    q, k, v, generator = inputs(groups=2 if enable_gqa else 1)
    options = draw_gates(generator, q, k, gate="after", decay=True, mask=True)
    options.update(
        kernel=KERNELS[kernel][0],
        normalizer=NORMALIZERS[name].normalizer,
        scale=0.45,
        enable_gqa=enable_gqa,
    )
    expected, expected_state = recurrent_attention(q, k, v, **options)
    start = {"scale": 0.45, "dtype": torch.float64}
    state = init_state(options["kernel"], 4, 5, batch_shape=(2, 3), **start)
    for t in range(7):
        token = (x[..., t, :] for x in (q, k, v))
        now = {n: x[..., t] if n in ALONG_TIME else x for n, x in options.items()}
        out, state = attention_step(*token, state, **now)
        assert out.shape == expected[..., t, :].shape
        torch.testing.assert_close(out, expected[..., t, :], **CLOSE)
    assert_same(state, expected_state)


def test_a_step_without_heads_and_without_a_past():
    q, k, v, _ = inputs(B=1, H=1)
    expected, _ = recurrent_attention(q[0, 0], k[0, 0], v[0, 0], kernel=taylor(2))
    state = None
    for t in range(7):
        out, state = attention_step(q[0, 0, t], k[0, 0, t], v[0, 0, t], state, kernel=taylor(2))
        torch.testing.assert_close(out, expected[t], **CLOSE)
    assert state.visible == 7 and state.visible.shape == ()


@pytest.mark.parametrize("form", [*FORMS, "step"])
def test_a_state_is_never_changed(form):
    q, k, v, _ = inputs()
    _, state = parallel_attention(q, k, v, kernel=taylor(2))
    sums, visible = state.sums.clone(), state.visible.clone()
    if form == "step":
        _, after = attention_step(q[..., 0, :], k[..., 0, :], v[..., 0, :], state, kernel=taylor(2))
    else:
        _, after = FORMS[form](q, k, v, kernel=taylor(2), initial_state=state)
    assert torch.equal(state.sums, sums) and torch.equal(state.visible, visible)
    assert not torch.equal(after.sums, sums)
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.sums = sums


@pytest.mark.parametrize("form", FORMS)
def test_one_state_can_be_continued_twice(form):
    """Nothing is hidden in a module: two futures of one past do not mix."""
    q, k, v, _ = inputs()
    _, state = FORMS[form](q, k, v, kernel=taylor(2))
    one, _ = FORMS[form](q, k, v, kernel=taylor(2), initial_state=state)
    FORMS[form](-q, 2 * k, v, kernel=taylor(2), initial_state=state)
    again, _ = FORMS[form](q, k, v, kernel=taylor(2), initial_state=state)
    assert torch.equal(one, again)


def test_parts_and_sizes_of_a_state():
    q, k, v, _ = inputs(B=1, H=1)
    _, state = parallel_attention(q, k, v, kernel=PolynomialKernel(taylor(2), packed=False))
    power = torch.einsum("...ti,...tj->...tij", k, k).flatten(-2)  # the paper's H_t^2 and z_t^2
    torch.testing.assert_close(state.numerator[..., 5:, :], power.mT @ v)
    torch.testing.assert_close(state.denominator[..., 5:], power.sum(-2))
    torch.testing.assert_close(state.numerator[..., 0, :], v.sum(-2))
    assert state.denominator[..., 0].item() == 7 == state.visible.item()
    assert state.num_features == 21 and state.nbytes == 21 * 6 * 8


def test_init_state():
    state = init_state(taylor(2), 4, 5, batch_shape=(2, 3), scale=0.0, dtype=torch.bfloat16)
    assert state.sums.shape == (2, 3, 15, 6) and state.sums.dtype == torch.float32
    assert state.visible.shape == (2, 3) and state.visible.dtype == torch.int64
    assert not state.sums.any() and not state.visible.any() and state.scale == 0.0
    assert init_state("relu", 4, 5, dtype=torch.float64).sums.dtype == torch.float64
    assert init_state(taylor(2), 4, 5).scale == 0.5


def test_detach_cuts_the_graph():
    q, k, v, _ = inputs()
    _, state = parallel_attention(q, k.requires_grad_(), v, kernel=taylor(2))
    assert state.sums.requires_grad and not state.detach().sums.requires_grad
    assert_same(state.detach(), state)


# Refusals


def given(**changes):
    settings = {"kernel": taylor(2), "d": 4, "e": 5, "batch_shape": (2, 3), "dtype": torch.float64}
    return init_state(**{**settings, **changes})


REFUSED = {
    "order": (given(kernel=taylor(3)), r"feature_set \('powers', \(0, 1, 2, 3\), 'packed'\)"),
    "packing": (given(kernel=PolynomialKernel(taylor(2), packed=False)), "feature_set .*'full'"),
    "kernel": (given(kernel="relu"), "feature_set ReluKernel.*this call needs .*powers"),
    "scale": (given(scale=1.0), "scale 1.0, this call needs 0.5"),
    "heads": (given(batch_shape=(2, 4)), r"shape \(2, 4, 15, 6\), this call needs \(2, 3, 15, 6\)"),
    "e": (given(e=6), r"shape \(2, 3, 15, 7\), this call needs \(2, 3, 15, 6\)"),
    "d": (given(d=5, scale=0.5), r"shape \(2, 3, 21, 6\), this call needs \(2, 3, 15, 6\)"),
    "dtype": (given(dtype=torch.float32), "dtype torch.float32, this call needs torch.float64"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", REFUSED)
def test_a_state_of_other_settings_is_refused(case, form):
    state, words = REFUSED[case]
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match=f"initial_state has {words}"):
        FORMS[form](q, k, v, kernel=taylor(2), initial_state=state)


def test_only_a_state_is_a_state():
    q, k, v, _ = inputs()
    with pytest.raises(TypeError, match="initial_state must be an AttentionState, got Tensor"):
        parallel_attention(q, k, v, kernel=taylor(2), initial_state=given().sums)


def test_another_polynomial_of_the_same_powers_reads_the_same_state():
    """Coefficients live on the query side, so the past fits."""
    q, k, v, _ = inputs()
    other = Polynomial((3, -1, 2))
    expected, _ = parallel_attention(q, k, v, kernel=other)
    _, state = parallel_attention(*(x[..., :4, :] for x in (q, k, v)), kernel=taylor(2))
    for form in FORMS.values():
        out, _ = form(*(x[..., 4:, :] for x in (q, k, v)), kernel=other, initial_state=state)
        torch.testing.assert_close(out, expected[..., 4:, :], **CLOSE)


# Masked tokens

MASKS = {
    "left": [0, 0, 0, 1, 1, 1, 1],
    "right": [1, 1, 1, 1, 0, 0, 0],
    "inside": [1, 0, 1, 0, 0, 1, 1],
    "all": [0] * 7,
    "none": [1] * 7,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", MASKS)
def test_a_masked_token_leaves_no_trace(mask, form):
    """As if it had not been there: outputs of the others, state, and whatever its k and v hold."""
    q, k, v, generator = inputs(B=1, H=1)
    key_mask = torch.tensor(MASKS[mask], dtype=torch.bool)
    options = draw_gates(generator, q, k, gate="after", decay=True)
    kept = {n: x[..., key_mask] if n in ALONG_TIME else x for n, x in options.items()}
    for name, divide in NORMALIZERS.items():
        settings = {"kernel": taylor(2), "normalizer": divide.normalizer}
        expected, expected_state = FORMS[form](
            *(x[..., key_mask, :] for x in (q, k, v)), **kept, **settings
        )
        for poison in (0.0, math.nan, math.inf, 1e200):
            hidden = (~key_mask).unsqueeze(-1)
            tensors = (q, k.masked_fill(hidden, poison), v.masked_fill(hidden, poison))
            bad = {n: x.clone() if n in ALONG_TIME else x for n, x in options.items()}
            bad["input_gate"][..., ~key_mask] = bad["log_decay"][..., ~key_mask] = poison
            out, state = FORMS[form](*tensors, key_mask=key_mask, **bad, **settings)
            torch.testing.assert_close(out[..., key_mask, :], expected, **CLOSE)
            assert_same(state, expected_state)
            seen = key_mask.cumsum(-1) > 0
            assert not out[..., ~seen, :].any(), name
            if mask != "all":
                assert name in ("none", "visible_keys") or out[..., seen, :].any()


@pytest.mark.parametrize("form", FORMS)
def test_a_row_that_sees_nothing_leaves_the_state_as_it_was(form):
    q, k, v, _ = inputs()
    options = {"kernel": taylor(2), "log_decay": -torch.ones(7, dtype=torch.float64)}
    _, state = parallel_attention(q, k, v, **options)
    nothing = torch.zeros(7, dtype=torch.bool)
    out, after = FORMS[form](q, k, v, key_mask=nothing, initial_state=state, **options)
    assert torch.equal(after.sums, state.sums) and torch.equal(after.visible, state.visible)
    # Its queries still read the past.
    read, _ = FORMS[form](q, k, v, key_mask=nothing, initial_state=state, kernel=taylor(2))
    assert torch.equal(out, read) and out.abs().min() > 0


@pytest.mark.parametrize("form", FORMS)
def test_no_gradient_comes_from_a_masked_token(form):
    q, k, v, generator = inputs()
    key_mask = torch.tensor(MASKS["inside"], dtype=torch.bool)
    options = draw_gates(generator, q, k, gate="after", decay=True)
    k[..., ~key_mask, :] = v[..., ~key_mask, :] = math.nan
    options["input_gate"][..., ~key_mask] = math.nan
    tensors = [k, v, options["input_gate"], options["log_decay"]]
    for x in tensors:
        x.requires_grad_()
    out, _ = FORMS[form](q, k, v, kernel=taylor(2), key_mask=key_mask, **options)
    for gradient in torch.autograd.grad(out.sum(), tensors):
        assert gradient.isfinite().all()
        assert not (
            gradient[..., ~key_mask, :] if gradient.dim() == 4 else gradient[..., ~key_mask]
        ).any()


@pytest.mark.parametrize("mask", MASKS)
def test_exp_and_softmax_attention_take_masks_as_the_forms_do(mask):
    q, k, v, _ = inputs(groups=2)
    key_mask = torch.tensor(MASKS[mask], dtype=torch.bool)
    kept = (k[..., key_mask, :], v[..., key_mask, :])
    for poison in (0.0, math.nan, 1e200):
        hidden = (~key_mask).unsqueeze(-1)
        tensors = (q, k.masked_fill(hidden, poison), v.masked_fill(hidden, poison))
        options = {"key_mask": key_mask, "enable_gqa": True}
        exp, _ = parallel_attention(*tensors, kernel="exp", **options)
        softmax = softmax_attention(*tensors, **options)
        expected = softmax_attention(q[..., key_mask, :], *kept, enable_gqa=True)
        for out in (exp, softmax):
            torch.testing.assert_close(out[..., key_mask, :], expected, **CLOSE)
            assert not out[..., key_mask.cumsum(-1) == 0, :].any()


@pytest.mark.parametrize("form", FORMS)
def test_a_decay_of_minus_infinity_forgets_everything(form):
    q, k, v, _ = inputs()
    _, past = parallel_attention(q, k, v, kernel=taylor(2))
    log_decay = torch.zeros(7, dtype=torch.float64)
    log_decay[4] = -math.inf
    log_decay.requires_grad_()
    for name, divide in NORMALIZERS.items():
        if name == "visible_keys":  # which still counts the keys that were visible
            continue
        settings = {"kernel": taylor(2), "normalizer": divide.normalizer}
        out, state = FORMS[form](q, k, v, log_decay=log_decay, initial_state=past, **settings)
        fresh, fresh_state = FORMS[form](*(x[..., 4:, :] for x in (q, k, v)), **settings)
        torch.testing.assert_close(out[..., 4:, :], fresh, **CLOSE)
        torch.testing.assert_close(state.sums, fresh_state.sums, **CLOSE)
        if out.requires_grad:
            (gradient,) = torch.autograd.grad(out.sum(), log_decay)
            assert gradient.isfinite().all()


def test_the_state_type_is_public():
    _, state = parallel_attention(*inputs()[:3], kernel=taylor(2))
    assert isinstance(state, AttentionState)
