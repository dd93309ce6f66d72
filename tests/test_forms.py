"""The three forms give the same numbers, and the right ones, on every kernel and normalizer."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import flex_attention

from softattn_lib import (
    Polynomial,
    chunked_attention,
    parallel_attention,
    recurrent_attention,
    softmax_attention,
    taylor,
)
from tests import oracle
from tests.reference import (
    DEVICES,
    EXP,
    FORMS,
    KERNELS,
    NORMALIZERS,
    SCALE,
    SETTINGS,
    SIZES,
    TOLERANCE,
    WORST,
    Sums,
    assert_close,
    assert_same_states,
    compare,
    gates,
    inputs,
)

pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_forms_agree_with_the_reference_and_each_other(kernel, dtype, device):
    """Three settings of 48 for each kernel, never the same three in a row."""
    settings = list(enumerate(SETTINGS))
    compare(kernel, settings[list(KERNELS).index(kernel) % 16 :: 16], dtype, device)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_forms_agree_on_the_full_grid(kernel, dtype, device):
    """All 48 settings in float64, every fifth in float32."""
    step = 1 if dtype == torch.float64 else 5
    compare(kernel, list(enumerate(SETTINGS))[::step], dtype, device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_exp_agrees_with_the_reference(dtype, device):
    parallel = {"parallel": parallel_attention}
    compare("exp", list(enumerate(SETTINGS))[::3], dtype, device, forms=parallel)


@pytest.mark.parametrize("kernel", ["order2", "order3", "elu_plus_one", "exp"])
def test_reference_is_the_formula_written_as_loops(kernel):
    """The reference and the oracle share no code; one head of each, every setting."""
    _, weight = KERNELS.get(kernel, EXP)
    for seed, (gate, decay, mask, is_causal, _) in enumerate(SETTINGS[::2]):
        q, k, v, generator = inputs(seed=seed, B=1, H=1, T=5, num_queries=3)
        options = gates(generator, q, k, gate=gate, decay=decay, mask=mask)
        formula = list(NORMALIZERS.values())[seed % len(NORMALIZERS)]
        sums = Sums(q, k, v, weight=weight, scale=SCALE, is_causal=is_causal, **options)
        expected = oracle.attention(
            q[0, 0],
            k[0, 0],
            v[0, 0],
            weight=lambda q, k, scale: weight(q[None], k[None], scale)[0, 0],
            divide=_on_one_row(formula),
            scale=SCALE,
            is_causal=is_causal,
            **{name: x[0, 0] if torch.is_tensor(x) else x for name, x in options.items()},
        )
        torch.testing.assert_close(sums.over(formula)[0][0, 0], expected, rtol=1e-11, atol=1e-11)


def _on_one_row(divide):
    def row(numerator, denominator, count):
        denominator = torch.as_tensor(denominator, dtype=numerator.dtype).reshape(1, 1)
        return divide.formula(numerator[None], denominator, count)[0]

    return row


# T_q, T_k, chunk: no multiple, one short chunk, exact multiples, one token, none, few queries
TIMES = [
    (7, 7, 3),
    (4, 4, 9),
    (6, 6, 2),
    (6, 6, 1),
    (1, 1, 1),
    (0, 0, 2),
    (4, 9, 2),
    (1, 8, 3),
    (0, 6, 4),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("times", TIMES, ids=str)
def test_forms_agree_whatever_the_length(times, dtype, device):
    num_queries, num_keys, chunk_size = times
    forms = {
        "parallel": parallel_attention,
        "recurrent": recurrent_attention,
        "chunked": lambda *qkv, **options: chunked_attention(
            *qkv, chunk_size=chunk_size, **options
        ),
    }
    widths = ((4, 5), (5, 2), (1, 3))  # d > e, d < e, d = 1
    for (d, e), (name, is_causal) in itertools.product(
        widths, itertools.product(("order2", "order3", "relu"), (True, False))
    ):
        kernel, weight = KERNELS[name]
        q, k, v, generator = inputs(dtype, device, num_queries=num_queries, T=num_keys, d=d, e=e)
        options = gates(generator, q, k, gate="after", decay=True, mask=True)
        options.update(is_causal=is_causal, scale=SCALE)
        for normalizer in ("sum", "visible_keys", "l2"):
            divide = NORMALIZERS[normalizer]
            expected, slack = Sums(q, k, v, weight=weight, **options).over(divide)
            outs, states = zip(
                *(
                    form(q, k, v, kernel=kernel, normalizer=divide.normalizer, **options)
                    for form in forms.values()
                ),
                strict=True,
            )
            assert outs[0].shape == (*q.shape[:-1], e)
            assert_close(torch.stack(outs), expected, slack, dtype, forms, (name, is_causal, d, e))
            assert_same_states(states, dtype)


@pytest.mark.parametrize("form", FORMS)
def test_more_queries_than_keys_where_nothing_is_causal(form):
    q, k, v, _ = inputs(num_queries=9, T=4)
    kernel, weight = KERNELS["order2"]
    expected, _ = Sums(q, k, v, weight=weight, scale=SCALE, is_causal=False).over(
        NORMALIZERS["sum"]
    )
    out, _ = FORMS[form](q, k, v, kernel=kernel, scale=SCALE, is_causal=False)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("form", FORMS)
def test_queries_without_any_key_give_zeros(form):
    q, k, v, _ = inputs(num_queries=4, T=0)
    for normalizer in NORMALIZERS.values():
        out, state = FORMS[form](
            q, k, v, kernel=taylor(2), normalizer=normalizer.normalizer, is_causal=False
        )
        assert out.shape == (*q.shape[:-1], SIZES["e"])
        assert not out.any() and not state.sums.any() and not state.visible.any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 1, 3, 2)], ids=str)
def test_leading_axes_are_free(form, leading):
    q, k, v, _ = inputs(B=math.prod(leading), H=1)
    expected, _ = FORMS[form](q[:, 0], k[:, 0], v[:, 0], kernel=taylor(3))
    q, k, v = (x.reshape(*leading, *x.shape[-2:]) for x in (q, k, v))
    out, state = FORMS[form](q, k, v, kernel=taylor(3))
    torch.testing.assert_close(out, expected.reshape(*leading, *expected.shape[-2:]))
    assert state.visible.shape == leading and state.sums.shape[:-2] == leading


@pytest.mark.parametrize("form", FORMS)
def test_gates_and_masks_broadcast(form):
    q, k, v, generator = inputs()
    full = gates(generator, q, k, gate="after", decay=True, mask=True)
    one_head = {n: x[:1, :1] if torch.is_tensor(x) else x for n, x in full.items()}
    repeated = {n: x[:1, :1].repeat(2, 3, 1) if torch.is_tensor(x) else x for n, x in full.items()}
    out, _ = FORMS[form](q, k, v, kernel=taylor(2), **one_head)
    expected, _ = FORMS[form](q, k, v, kernel=taylor(2), **repeated)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_future_has_no_influence(form, kernel):
    """Not a small one: none. Values, keys, gates and decays of later tokens are changed."""
    q, k, v, generator = inputs()
    options = gates(generator, q, k, gate="after", decay=True)
    before, _ = FORMS[form](q, k, v, kernel=KERNELS[kernel][0], scale=SCALE, **options)
    for x in (k, v, options["input_gate"].unsqueeze(-1), options["log_decay"].unsqueeze(-1)):
        x[..., 4:, :] *= -1.5
    after, _ = FORMS[form](q, k, v, kernel=KERNELS[kernel][0], scale=SCALE, **options)
    assert torch.equal(before[..., :4, :], after[..., :4, :])
    assert not torch.equal(before[..., 4:, :], after[..., 4:, :])


def test_grouped_queries_are_repeated_keys():
    q, k, v, _ = inputs(groups=2)
    for form in FORMS.values():
        out, _ = form(q, k, v, kernel=taylor(2), enable_gqa=True)
        keys, values = (x.repeat_interleave(2, dim=1) for x in (k, v))
        torch.testing.assert_close(out, form(q, keys, values, kernel=taylor(2))[0])


def test_decay_by_hand():
    """S_t = exp(log_decay_t) S_{t-1} + k_t [v_t, 1]: a token enters undecayed."""
    one = torch.ones(3, 1, dtype=torch.float64)
    v = torch.tensor([[1.0], [10.0], [100.0]], dtype=torch.float64)
    log_decay = torch.tensor([5.0, 0.5, 0.25], dtype=torch.float64).log()
    for form in FORMS.values():
        out, state = form(
            one, one, v, kernel="identity", normalizer="none", scale=1.0, log_decay=log_decay
        )
        torch.testing.assert_close(out[:, 0], v.new_tensor([1.0, 10.5, 102.625]))
        torch.testing.assert_close(state.sums[0], v.new_tensor([102.625, 1.375]))


# Against softmax attention


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", FORMS)
def test_taylor_order_26_is_softmax_attention(form, device):
    """To 1e-9 in float64 where no score is beyond 4; 27 features for d=1, 378 for d=2."""
    worst = 0.0
    for d, is_causal in itertools.product((1, 2), (True, False)):
        q, k, v, _ = inputs(device=device, d=d, T=9)
        q = q * 4 / (q @ k.mT).abs().max()
        assert 3.99 < (q @ k.mT).abs().max() < 4.01
        out, _ = FORMS[form](q, k, v, kernel=taylor(26), scale=1.0, is_causal=is_causal)
        softmax = softmax_attention(q, k, v, scale=1.0, is_causal=is_causal)
        worst = max(worst, (out - softmax).abs().max().item())
    print(f"taylor(26) {form} against softmax attention: {worst:.1e}")
    assert worst < 1e-9


def test_taylor_order_26_is_softmax_attention_at_a_usual_width():
    """The parallel form needs no features, so d may be 16."""
    q, k, v, _ = inputs(d=16, T=32)
    q = q * 4 / (q @ k.mT).abs().max()
    out, state = parallel_attention(q, k, v, kernel=taylor(26), scale=1.0, return_state=False)
    assert state is None
    assert (out - softmax_attention(q, k, v, scale=1.0)).abs().max() < 1e-9


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_exp_is_softmax_attention(is_causal, enable_gqa):
    q, k, v, generator = inputs(groups=2 if enable_gqa else 1, num_queries=5)
    masked = gates(generator, q, k, mask=True)
    for options in ({}, masked):
        options = {**options, "is_causal": is_causal, "enable_gqa": enable_gqa}
        out, state = parallel_attention(q, k, v, kernel="exp", **options)
        assert state is None
        torch.testing.assert_close(out, softmax_attention(q, k, v, **options))


@pytest.mark.parametrize("order", [0, 2, 4, 6])
@pytest.mark.parametrize("form", FORMS)
def test_even_orders_are_softmax_of_the_logarithm(form, order):
    """softmax(log p(s)) = p(s) / sum p(s): plain torch, sharing nothing with the library."""
    q, k, v, _ = inputs()
    score = 0.5 * q @ k.mT
    p = sum(score**n / math.factorial(n) for n in range(order + 1))
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    expected = F.softmax(p.log().masked_fill(future, -math.inf), dim=-1) @ v
    out, _ = FORMS[form](q, k, v, kernel=taylor(order))
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("order", [2, 4, 6])
def test_even_orders_are_flex_attention(order, monkeypatch):
    """FlexAttention, with the logarithm of the truncated exponential as its score_mod."""
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    q, k, v, _ = inputs(groups=2)

    def score_mod(score, batch, head, query, key):
        p = sum(score**n / math.factorial(n) for n in range(order + 1))
        return torch.where(query >= key, p.log(), -math.inf)

    expected = flex_attention.flex_attention(
        q, k, v, score_mod=score_mod, scale=SCALE, enable_gqa=True
    )
    for form in FORMS.values():
        out, _ = form(q, k, v, kernel=taylor(order), scale=SCALE, enable_gqa=True)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)


# What goes in and comes out


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", FORMS)
def test_half_precision_inputs_keep_a_float32_state(form, dtype, device):
    q, k, v, generator = inputs(dtype, device)
    options = gates(generator, q, k, gate="after", decay=True)
    out, state = FORMS[form](q, k, v, kernel=taylor(4), **options)
    assert out.dtype == dtype
    assert state.sums.dtype == torch.float32
    exact, _ = FORMS[form](
        *(x.double() for x in (q, k, v)),
        kernel=taylor(4),
        **{n: x.double() if torch.is_tensor(x) else x for n, x in options.items()},
    )
    assert (
        torch.equal(out, exact.to(dtype))
        or (  # rounded once, or next to it
            (out.double() - exact).abs() <= torch.finfo(dtype).eps * exact.abs().clamp(min=1e-3)
        ).all()
    )


@pytest.mark.parametrize("form", FORMS)
def test_inputs_are_left_as_they_are_and_need_not_be_contiguous(form):
    q, k, v, generator = inputs()
    options = gates(generator, q, k, gate="after", decay=True, mask=True)
    expected, expected_state = FORMS[form](q, k, v, kernel=taylor(2), **options)

    def strided(x):
        if not torch.is_tensor(x):
            return x
        wide = torch.stack([x, x], dim=-1).transpose(0, -2)
        return wide.transpose(0, -2)[..., 0]

    tensors = {**dict(zip("qkv", map(strided, (q, k, v)), strict=True))}
    options = {name: strided(x) for name, x in options.items()}
    copies = {n: x.clone() for n, x in {**tensors, **options}.items() if torch.is_tensor(x)}
    assert not any(x.is_contiguous() for x in tensors.values())
    out, state = FORMS[form](*tensors.values(), kernel=taylor(2), **options)
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(state.sums, expected_state.sums, rtol=1e-13, atol=1e-13)
    for name, copy in copies.items():
        assert torch.equal({**tensors, **options}[name], copy), name


@pytest.mark.parametrize("form", FORMS)
def test_a_scale_of_zero_is_a_running_mean(form):
    q, k, v, _ = inputs()
    count = torch.arange(1, 8, dtype=torch.float64).unsqueeze(-1)
    out, state = FORMS[form](q, k, v, kernel=taylor(2), scale=0.0)
    torch.testing.assert_close(out, v.cumsum(-2) / count)
    assert state.scale == 0.0


@pytest.mark.parametrize("form", FORMS)
def test_the_default_scale_is_one_over_the_root_of_d(form):
    q, k, v, _ = inputs(d=9)
    out, state = FORMS[form](q, k, v, kernel=taylor(2))
    assert torch.equal(out, FORMS[form](q, k, v, kernel=taylor(2), scale=1 / 3)[0])
    assert state.scale == 1 / 3


@pytest.mark.parametrize("form", FORMS)
def test_a_kernel_without_features_at_all(form):
    """The zero polynomial: no feature, no weight, and 0 / 0 is 0."""
    q, k, v, _ = inputs()
    out, state = FORMS[form](q, k, v, kernel=Polynomial((0.0,)))
    assert not out.any() and state.num_features == 0


@pytest.mark.parametrize("form", FORMS)
def test_the_state_can_be_left_out(form):
    q, k, v, _ = inputs()
    out, state = FORMS[form](q, k, v, kernel=taylor(2), return_state=False)
    assert state is None
    assert torch.equal(out, FORMS[form](q, k, v, kernel=taylor(2))[0])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_the_worst_errors_are_printed(dtype, record_property):
    """Of these and of all comparisons that ran before: run with -s to read them."""
    for name in ("order3", "order4_full", "power4", "elu_plus_one"):
        compare(name, [(99, ("before", True, True, True, 2))], dtype, "cpu")
    for form in FORMS:
        worst = WORST[form, dtype]
        record_property(f"worst {form} {dtype}", worst)
        print(f"{form:9} {dtype}: worst error {worst:.1e} of the row's condition")
        assert 0 < worst <= TOLERANCE[dtype]
