"""Gradients of all three forms with respect to everything that has one."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import gradcheck

from softattn_lib import (
    L2Normalizer,
    LayerNormalizer,
    RMSNormalizer,
    SumNormalizer,
    init_state,
    parallel_attention,
    softmax_attention,
    taylor,
)
from softattn_lib.kernels import as_kernel
from softattn_lib.numerics import safe_divide
from tests.reference import FORMS, KERNELS, NORMALIZERS

pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")

T, D, E = 3, 2, 5
NAMES = ("q", "k", "v", "input_gate", "output_gate", "log_decay", "sums", "weight", "bias")
CHECKED = {  # the detached denominator has a test of its own
    **{name: lambda w, b, n=name: NORMALIZERS[n].normalizer for name in NORMALIZERS
       if name != "sum_detach" and "weight" not in name},
    "rms_weight_eps": lambda w, b: RMSNormalizer(w, eps=0.2),
    "layer_weight_bias_eps": lambda w, b: LayerNormalizer(w, b, eps=0.1),
}  # fmt: skip


def tensors(kernel, lead=(), groups=1, seed=0):
    """Everything that has a gradient, in the order of `NAMES`; sums for a kernel with features."""
    generator = torch.Generator().manual_seed(seed)
    query_lead = (*lead[:-1], lead[-1] * groups) if lead else ()
    kernel, shapes = as_kernel(kernel), [(*query_lead, T, D), (*lead, T, D), (*lead, T, E)]
    shapes += [(*lead, T), (*query_lead, T), (*lead, T)]
    shapes += [(*lead, kernel.num_features(D), E + 1)] if kernel.has_features else [(0,)]
    drawn = [
        torch.randn(s, generator=generator, dtype=torch.float64) for s in [*shapes, (E,), (E,)]
    ]
    for gate in drawn[3:5]:
        gate.sigmoid_()
    drawn[5] = -drawn[5].abs()
    drawn[6] = 2 + drawn[6].abs()  # a past with a denominator well away from zero
    return [x.requires_grad_() for x in drawn]


def differentiable(form, kernel, normalizer, **options):
    """The form as a function of `NAMES`; a past is given to kernels that have a state."""
    has_features = as_kernel(kernel).has_features

    def run(q, k, v, input_gate, output_gate, log_decay, sums, weight, bias):
        state = None
        if has_features:
            past = {"batch_shape": k.shape[:-2], "dtype": k.dtype, "scale": options.get("scale")}
            state = init_state(kernel, D, E, **past)
            state = replace(state, sums=sums, visible=state.visible + 2)
        out, final_state = FORMS[form](
            q,
            k,
            v,
            kernel=kernel,
            normalizer=normalizer(weight, bias),
            input_gate=input_gate,
            output_gate=output_gate,
            log_decay=log_decay,
            initial_state=state,
            **options,
        )
        return (out, final_state.sums) if has_features else out

    return run


def used(run, inputs):
    """gradcheck wants inputs that the output depends on; the others are held fixed."""
    out = run(*inputs)
    outs = out if isinstance(out, tuple) else (out,)
    total = sum(x.sum() for x in outs)
    gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    return [x if g is not None else x.detach() for x, g in zip(inputs, gradients, strict=True)]


# fast_mode: random directions through the Jacobian; without it, every entry of it.


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("form", FORMS)
def test_every_normalizer_in_every_form(form, name):
    """Of output and state, with respect to all of `NAMES`."""
    run = differentiable(form, taylor(2), CHECKED[name])
    inputs = used(run, tensors(taylor(2)))
    depends = {n for n, x in zip(NAMES, inputs, strict=True) if x.requires_grad}
    assert set(NAMES[:7]) <= depends  # nothing fell out of the graph
    assert ("weight" in depends) == ("weight" in name) and ("bias" in depends) == ("bias" in name)
    assert gradcheck(run, inputs, fast_mode=name != "layer_weight_bias_eps")


@pytest.mark.parametrize("name", CHECKED)
def test_every_normalizer_under_exp(name):
    """The shift by the row's maximum is left out of the graph, and must be of no consequence."""
    run = differentiable("parallel", "exp", CHECKED[name])
    assert gradcheck(run, used(run, tensors("exp")))


SETTINGS = {
    "before": {"gate_position": "before"},
    "not causal": {"is_causal": False},
    "masked": {"key_mask": torch.tensor([False, True, True])},
    "scaled": {"scale": 1.3},
}


@pytest.mark.parametrize("name", ["sum", "rms"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("form", FORMS)
def test_every_setting(form, setting, name):
    run = differentiable(form, taylor(2), CHECKED[name], **SETTINGS[setting])
    inputs = used(run, tensors(taylor(2)))
    assert gradcheck(run, inputs, fast_mode=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", FORMS)
def test_every_kernel(form, kernel):
    """With heads, grouped queries and random directions through the Jacobian."""
    kernel = KERNELS[kernel][0]
    run = differentiable(form, kernel, CHECKED["layer"], enable_gqa=True)
    inputs = used(run, tensors(kernel, lead=(1, 4), groups=2))
    assert gradcheck(run, inputs, fast_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", FORMS)
def test_every_kernel_with_every_normalizer(form, kernel, name):
    """Every entry for order 2, random directions for the others."""
    every_entry, kernel = kernel == "order2", KERNELS[kernel][0]
    position = "before" if name.startswith(("sum", "none")) else "after"
    run = differentiable(form, kernel, CHECKED[name], gate_position=position)
    assert gradcheck(run, used(run, tensors(kernel)), fast_mode=not every_entry)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", [taylor(2), "exp"], ids=["order2", "exp"])
def test_the_detached_denominator(form, kernel):
    """Against autograd of its formula, written out with .detach(); it is not the full gradient."""
    if kernel == "exp" and form != "parallel":
        return
    run = differentiable(form, kernel, lambda w, b: SumNormalizer(floor=0.1, detach=True, eps=0.2))
    inputs = tensors(kernel)
    q, k, v, input_gate, output_gate, log_decay, sums, *_ = inputs
    score = D**-0.5 * q @ k.mT
    decay = torch.stack([log_decay[s + 1 : t + 1].sum() for t in range(T) for s in range(T)])
    w = (score.exp() if kernel == "exp" else 1 + score + score**2 / 2) * decay.exp().reshape(T, T)
    w = w.tril()
    numerator, denominator = w @ (v * input_gate.unsqueeze(-1)), w.sum(-1, keepdim=True)
    if kernel != "exp":
        read = as_kernel(kernel).query_features(q, D**-0.5) @ sums
        read = read * log_decay.cumsum(-1).exp().unsqueeze(-1)
        numerator, denominator = numerator + read[:, :-1], denominator + read[:, -1:]
    divisor = denominator.detach().clamp(min=0.1) + 0.2
    expected = numerator / divisor * output_gate.unsqueeze(-1)
    out = run(*inputs) if kernel == "exp" else run(*inputs)[0]
    torch.testing.assert_close(out, expected)
    wanted = inputs[: 6 if kernel == "exp" else 7]
    direction = torch.arange(float(T * E), dtype=torch.float64).sin().reshape(T, E)
    got = torch.autograd.grad((out * direction).sum(), wanted)
    for one, other in zip(
        got, torch.autograd.grad((expected * direction).sum(), wanted), strict=True
    ):
        torch.testing.assert_close(one, other)
    assert not gradcheck(run, used(run, inputs), fast_mode=True, raise_exception=False)


@pytest.mark.parametrize("name", NORMALIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_stay_finite_where_everything_is_zero(form, name):
    """No key visible, keys and values of zero, a denominator of zero."""
    for kernel in (taylor(2), "relu", "cosine"):
        for zero in ("q", "k", "v", "all", "masked"):
            q, k, v, *_ = (x.detach() for x in tensors("relu"))
            q, k, v = (x * (zero not in (n, "all")) for n, x in zip("qkv", (q, k, v), strict=True))
            inputs = [x.requires_grad_() for x in (q, k, v)]
            options = {"key_mask": torch.zeros(T, dtype=torch.bool)} if zero == "masked" else {}
            out, state = FORMS[form](
                *inputs, kernel=kernel, normalizer=NORMALIZERS[name].normalizer, **options
            )
            total = out.sum() + state.sums.sum()
            for gradient in torch.autograd.grad(total, inputs, allow_unused=True):
                assert gradient is None or gradient.isfinite().all(), (kernel, zero)


@pytest.mark.parametrize("name", NORMALIZERS)
def test_gradients_of_exp_stay_finite(name):
    for zero in ("q", "v", "masked", "far"):
        q, k, v, *_ = (x.detach() for x in tensors("exp"))
        q, v = q * (zero != "q"), v * (zero != "v")
        if zero == "far" and name in ("visible_keys", "none"):
            continue  # overflows, and says so
        q = q * (1e4 if zero == "far" else 1)
        inputs = [x.requires_grad_() for x in (q, k, v)]
        mask = torch.full((T,), zero != "masked")
        out, _ = parallel_attention(
            *inputs, kernel="exp", normalizer=NORMALIZERS[name].normalizer, key_mask=mask
        )
        for gradient in torch.autograd.grad(out.sum(), inputs, allow_unused=True):
            assert gradient is None or gradient.isfinite().all(), zero


def test_gradients_flow_through_time():
    """From the last output of the second piece to the first token of the first."""
    q, k, v, *_ = tensors(taylor(2))
    for form in FORMS.values():
        whole, _ = form(q, k, v, kernel=taylor(2))
        expected = torch.autograd.grad(whole[-1].sum(), (k, v))
        _, state = form(q[:2], k[:2], v[:2], kernel=taylor(2))
        out, _ = form(q[2:], k[2:], v[2:], kernel=taylor(2), initial_state=state)
        got = torch.autograd.grad(out[-1].sum(), (k, v))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one, other)
            assert one[0].abs().min() > 0
        cut, _ = form(q[2:], k[2:], v[2:], kernel=taylor(2), initial_state=state.detach())
        assert not torch.autograd.grad(cut[-1].sum(), v)[0][:2].any()


def test_gradients_agree_with_those_of_softmax_attention():
    q, k, v, *_ = tensors("exp")
    direction = torch.arange(float(T * E), dtype=torch.float64).cos().reshape(T, E)
    expected = torch.autograd.grad((softmax_attention(q, k, v) * direction).sum(), (q, k, v))
    for kernel in ("exp", taylor(26)):
        out, _ = parallel_attention(q, k, v, kernel=kernel)
        for one, other in zip(
            torch.autograd.grad((out * direction).sum(), (q, k, v)), expected, strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_eps_in_a_norm_keeps_gradients_of_a_zero_row_finite_and_right():
    """y / max(|y|, eps) and y / sqrt(y^2 + eps) at y = 0: 1 / eps and 1 / sqrt(eps)."""
    v = torch.zeros(1, E, dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    for normalizer, slope in ((L2Normalizer(0.25), 4.0), (RMSNormalizer(eps=0.25), 2.0)):
        out, _ = parallel_attention(
            one, one, v, kernel="identity", scale=1.0, normalizer=normalizer
        )
        (gradient,) = torch.autograd.grad(out.sum(), v)
        torch.testing.assert_close(gradient, torch.full_like(v, slope))


def test_a_division_that_saves_its_quotient_has_all_derivatives():
    draw = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (3, 1))
    pair = [torch.randn(s, generator=draw, dtype=torch.float64).requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(safe_divide, pair, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(safe_divide, pair)
    rows = torch.vmap(safe_divide)(*pair)
    assert torch.equal(rows, safe_divide(*pair))
    zero = torch.zeros(3, 1, dtype=torch.float64, requires_grad=True)
    grads = torch.autograd.grad(safe_divide(pair[0], zero).sum(), (pair[0], zero))
    assert not any(grad.any() for grad in grads)
