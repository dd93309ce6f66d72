"""Bad input gets an error that names the argument, what it got and what is legal."""

import math
import warnings

import pytest
import torch

from softattn_lib import (
    ClampedKernel,
    ExpKernel,
    Polynomial,
    PolynomialKernel,
    ReluKernel,
    SignedWeightsWarning,
    SumNormalizer,
    attention_step,
    chunked_attention,
    init_state,
    parallel_attention,
    recurrent_attention,
    softmax_attention,
    taylor,
)
from tests.reference import FORMS, inputs


def call(form="parallel", q=(2, 3, 7, 4), k=(2, 3, 7, 4), v=(2, 3, 7, 5), **options):
    q, k, v = (torch.ones(x) if isinstance(x, tuple) else x for x in (q, k, v))
    return FORMS[form](q, k, v, **{"kernel": taylor(2), **options})


ones = torch.ones

SHAPES = {
    "d differs": ({"k": (2, 3, 7, 6)}, r"same width d >= 1 .*q \(2, 3, 7, 4\), k \(2, 3, 7, 6\)"),
    "no width": ({"q": (7, 0), "k": (7, 0), "v": (7, 5)}, r"width d >= 1 .*q \(7, 0\)"),
    "no value width": ({"v": (2, 3, 7, 0)}, r"v must be .*v \(2, 3, 7, 0\)"),
    "T of v": ({"v": (2, 3, 6, 5)}, r"v must be .*k's leading axes.*v \(2, 3, 6, 5\)"),
    "heads of v": ({"v": (2, 2, 7, 5)}, r"v must be .*k's leading axes.*v \(2, 2, 7, 5\)"),
    "rank of q": ({"q": ones(4)}, r"q must be \(\.\.\., T, width\), got shape \(4,\)"),
    "rank of k": ({"k": ones(4)}, r"k must be \(\.\.\., T, width\), got shape \(4,\)"),
    "rank of v": ({"v": ones(5)}, r"v must be \(\.\.\., T, width\), got shape \(5,\)"),
    "other ranks": ({"q": (3, 7, 4)}, r"same leading axes .*enable_gqa=True.*q \(3, 7, 4\)"),
    "heads": ({"q": (2, 6, 7, 4)}, r"same leading axes .*enable_gqa=True.*q \(2, 6, 7, 4\)"),
    "queries": ({"q": (2, 3, 8, 4)}, r"at most as many queries as keys, got T_q=8 > T_k=7"),
    "gqa heads": ({"q": (2, 4, 7, 4), "enable_gqa": True}, "divisible by H_k, got H_q=4, H_k=3"),
    "gqa batch": (
        {"q": (1, 6, 7, 4), "enable_gqa": True},
        r"enable_gqa=True needs q .*q \(1, 6, 7, 4\)",
    ),
    "gqa rank": (
        {"q": (7, 4), "k": (7, 4), "v": (7, 5), "enable_gqa": True},
        r"enable_gqa=True needs q .*q \(7, 4\)",
    ),
    "input_gate": ({"input_gate": ones(6)}, r"input_gate must broadcast to \(2, 3, 7\).*\(6,\)"),
    "gate of widths": (
        {"input_gate": ones(2, 3, 7, 5)},
        r"input_gate must broadcast to \(2, 3, 7\), one number per head and token.*\(2, 3, 7, 5\)",
    ),
    "output_gate": ({"output_gate": ones(2, 2, 7)}, r"output_gate must broadcast to \(2, 3, 7\)"),
    "log_decay": ({"log_decay": ones(2, 3, 1, 7)}, r"log_decay must broadcast to \(2, 3, 7\)"),
    "key_mask": (
        {"key_mask": ones(7, 7, dtype=torch.bool)},
        r"key_mask must broadcast to \(2, 3, 7\), .*got shape \(7, 7\)",
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", SHAPES)
def test_shapes(case, form):
    options, words = SHAPES[case]
    with pytest.raises(ValueError, match=words):
        call(form, **options)


VALUES = {
    "kernel name": ({"kernel": "softmax"}, ValueError, "kernel must be .*'exp', .*got 'softmax'"),
    "kernel type": ({"kernel": 2}, TypeError, r"kernel must be a Polynomial such as .*got 2"),
    "kernel class": ({"kernel": ReluKernel}, TypeError, "kernel must be .*got <class .*ReluKernel"),
    "normalizer name": (
        {"normalizer": "softmax"},
        ValueError,
        "normalizer must be .*'sum', 'visible_keys', 'none', 'l2', 'rms', 'layer'; got 'softmax'",
    ),
    "normalizer type": ({"normalizer": None}, TypeError, "normalizer must be .*got None"),
    "gate_position": (
        {"gate_position": "inside"},
        ValueError,
        'gate_position must be "after" or "before", got \'inside\'',
    ),
    "scale nan": ({"scale": math.nan}, ValueError, "scale must be a finite number.*got nan"),
    "scale inf": ({"scale": math.inf}, ValueError, "scale must be a finite number.*got inf"),
    "scale tensor": ({"scale": ones(3)}, ValueError, "scale must be a finite number.*got tensor"),
    "scale bool": ({"scale": True}, ValueError, "scale must be a finite number.*got True"),
    "q type": ({"q": [[1.0]]}, TypeError, "q must be a tensor, got list"),
    "v type": ({"v": None}, TypeError, "v must be a tensor, got NoneType"),
    "integers": (
        {"k": ones(2, 3, 7, 4, dtype=torch.int64)},
        TypeError,
        "k must be floating point, got torch.int64",
    ),
    "complex": (
        {"q": ones(2, 3, 7, 4, dtype=torch.complex64)},
        TypeError,
        "q must be floating point, got torch.complex64",
    ),
    "dtypes": (
        {"v": ones(2, 3, 7, 5, dtype=torch.float64)},
        ValueError,
        "must share dtype and device; q has torch.float32 on cpu, v has torch.float64",
    ),
    "gate type": ({"input_gate": 0.5}, TypeError, "input_gate must be a tensor or None, got float"),
    "gate dtype": (
        {"output_gate": ones(7, dtype=torch.bool)},
        TypeError,
        "output_gate must be real numbers, got torch.bool",
    ),
    "decay dtype": (
        {"log_decay": ones(7, dtype=torch.complex64)},
        TypeError,
        "log_decay must be real numbers, got torch.complex64",
    ),
    "mask dtype": (
        {"key_mask": ones(7)},
        TypeError,
        "key_mask must be boolean, True = visible, got torch.float32",
    ),
    "mask of integers": (
        {"key_mask": ones(7, dtype=torch.int64)},
        TypeError,
        "key_mask must be boolean, True = visible, got torch.int64",
    ),
    "unknown": ({"causal": False}, TypeError, "_attention has no option 'causal'; it has kernel,"),
    "too many features": (
        {"q": (7, 64), "k": (7, 64), "v": (7, 5), "kernel": taylor(8)},
        ValueError,
        "with d=64 .*features, more than the 2e.07 .*lower order, or the parallel form with",
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", VALUES)
def test_values(case, form):
    options, error, words = VALUES[case]
    with pytest.raises(error, match=words):
        call(form, **options)


def test_the_error_of_an_unknown_option_lists_the_options_of_that_form():
    q, k, v, _ = inputs()
    with pytest.raises(TypeError, match=r"chunked_attention has no option 'size'.*, chunk_size$"):
        chunked_attention(q, k, v, kernel=taylor(2), size=3)
    with pytest.raises(TypeError, match="parallel_attention has no option 'chunk_size'"):
        parallel_attention(q, k, v, kernel=taylor(2), chunk_size=3)
    with pytest.raises(TypeError, match="needs the option 'kernel', for instance kernel=taylor"):
        recurrent_attention(q, k, v)


@pytest.mark.parametrize("size", [0, -3, 2.0, True, "3"])
def test_chunk_size(size):
    q, k, v, _ = inputs()
    with pytest.raises(
        ValueError, match=f"chunk_size must be an integer >= 1 or None, got {size!r}"
    ):
        chunked_attention(q, k, v, kernel=taylor(2), chunk_size=size)


@pytest.mark.parametrize(
    "kernel", ["exp", ExpKernel(clamp=5.0), ClampedKernel(ReluKernel(), 5.0)], ids=str
)
def test_a_kernel_without_recurrence_says_which_kernels_have_one(kernel):
    q, k, v, _ = inputs()
    state = init_state(taylor(2), d=4, e=5, batch_shape=(2, 3), dtype=torch.float64)
    words = (
        "no recurrence; .* polynomials such as .*'identity', 'relu', 'elu_plus_one' and 'cosine'"
    )
    asked = {
        "recurrent_attention": lambda: recurrent_attention(q, k, v, kernel=kernel),
        "chunked_attention": lambda: chunked_attention(q, k, v, kernel=kernel),
        "init_state": lambda: init_state(kernel, d=4, e=5),
        "initial_state": lambda: parallel_attention(q, k, v, kernel=kernel, initial_state=state),
    }
    for name, ask in asked.items():
        with pytest.raises(ValueError, match=f"^{name}: kernel .*{words}"):
            ask()


def test_a_step_has_no_options_of_a_sequence():
    token, state = torch.ones(4), init_state(taylor(2), d=4, e=4)
    for name in ("is_causal", "initial_state", "return_state"):
        with pytest.raises(TypeError, match=f"attention_step has no option '{name}'"):
            attention_step(token, token, token, state, kernel=taylor(2), **{name: None})
    with pytest.raises(TypeError, match="has no option 'step'"):
        attention_step(token, token, token, state, kernel=taylor(2), step=1)


def test_a_step_wants_tensors_of_one_token():
    token, state = torch.ones(4), init_state(taylor(2), d=4, e=4)
    with pytest.raises(TypeError, match="k must be a tensor, got list"):
        attention_step(token, [1.0] * 4, token, state, kernel=taylor(2))
    with pytest.raises(ValueError, match=r"v must be \(\.\.\., width\), got shape \(\)"):
        attention_step(token, token, torch.ones(()), state, kernel=taylor(2))
    with pytest.raises(TypeError, match="initial_state must be an AttentionState, got Tensor"):
        attention_step(token, token, token, torch.ones(3), kernel=taylor(2))


def test_softmax_attention_checks_as_the_forms_do():
    x = torch.ones(2, 7, 4)
    for options, words in (
        ({"q": x[..., :3]}, "same width d >= 1"),
        ({"q": torch.ones(2, 8, 4)}, "T_q=8 > T_k=7"),
        ({"q": x.double()}, "must share dtype"),
        ({"scale": math.inf}, "scale must be a finite number"),
        ({"key_mask": torch.ones(6, dtype=torch.bool)}, r"key_mask must broadcast to \(2, 7\)"),
    ):
        with pytest.raises(ValueError, match=words):
            softmax_attention(**{"q": x, "k": x, "v": x, **options})


# Overflow


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("normalizer", ["sum", "none", "l2"])
def test_finite_inputs_that_overflow_say_so(form, normalizer):
    q, k, v, _ = inputs(torch.float32)
    with pytest.raises(
        OverflowError, match=r"leave the range of torch.float32: pass float64 inputs"
    ):
        FORMS[form](1e15 * q, 1e15 * k, v, kernel=taylor(4), normalizer=normalizer)
    out, _ = FORMS[form](
        *(x.double() for x in (1e15 * q, 1e15 * k, v)), kernel=taylor(4), normalizer=normalizer
    )
    assert out.isfinite().all()


@pytest.mark.parametrize("normalizer", ["visible_keys", "none"])
def test_exp_overflows_only_where_no_shift_is_allowed(normalizer):
    q, k, v, _ = inputs()
    with pytest.raises(OverflowError, match=r"exp overflows only with .*'visible_keys' and 'none'"):
        parallel_attention(1e4 * q, k, v, kernel="exp", normalizer=normalizer)
    options = {"kernel": ExpKernel(clamp=5.0), "normalizer": normalizer}
    assert parallel_attention(1e4 * q, k, v, **options)[0].isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_undefined_inputs_are_the_callers_to_see(form):
    q, k, v, generator = inputs(B=1, H=1)
    for name in ("q", "k", "v", "log_decay"):
        log_decay = -torch.rand(1, 1, 7, generator=generator, dtype=torch.float64)
        tensors = {"q": q.clone(), "k": k.clone(), "v": v.clone(), "log_decay": log_decay}
        tensors[name][0, 0, 5] = math.nan
        out, _ = FORMS[form](**tensors, kernel=taylor(2))
        assert out[..., 5, :].isnan().all()


@pytest.mark.parametrize("form", FORMS)
def test_a_growing_decay_that_overflows_says_so(form):
    q, k, v, _ = inputs()
    log_decay = torch.full((7,), 500.0, dtype=torch.float64)
    with pytest.raises(OverflowError, match=r"leave the range of torch.float64"):
        FORMS[form](q, k, v, kernel=taylor(2), log_decay=log_decay)


@pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")
def test_finite_input_never_becomes_nan():
    """Sizes from 1e-20 to 1e20 and every normalizer: a number or an OverflowError, never NaN."""
    refused = computed = 0
    for dtype in (torch.float32, torch.float64):
        for q_size in (0.0, 1.0, 1e20):
            for k_size in (1e-20, 1e20):
                for v_size in (0.0, 1e-20, 1e20):
                    q, k, v, _ = inputs(dtype, B=1, H=1)
                    tensors = (q_size * q, k_size * k, v_size * v)
                    for kernel in ("exp", taylor(2), "elu_plus_one", "cosine"):
                        for name in ("sum", "visible_keys", "none", "l2", "rms", "layer"):
                            try:
                                out, _ = parallel_attention(
                                    *tensors, kernel=kernel, normalizer=name
                                )
                            except OverflowError:
                                refused += 1
                            else:
                                computed += 1
                                assert not out.isnan().any()
    assert refused > 50 and computed > 500


# The warning


SIGNED = [
    "identity",
    "cosine",
    taylor(1),
    taylor(3),
    Polynomial((0, 0, 0, 1)),
    ClampedKernel(ReluKernel(), -1.0),
]
POSITIVE = [
    "exp",
    "relu",
    "elu_plus_one",
    taylor(0),
    taylor(2),
    Polynomial((0, 0, 1)),
    PolynomialKernel(taylor(4), packed=False),
]


@pytest.mark.parametrize("kernel", SIGNED, ids=str)
@pytest.mark.parametrize("normalizer", ["sum", SumNormalizer(detach=True), SumNormalizer(eps=1.0)])
def test_signed_weights_over_their_sum_warn(kernel, normalizer):
    words = (
        "normalizer 'sum' divides by a sum of weights that can vanish: .* has weights of both "
        "signs. Better: an even order of taylor, the kernels 'relu' or 'elu_plus_one', or the "
        r"normalizers 'l2', 'rms', 'visible_keys' or SumNormalizer\(floor=1.0\)"
    )
    with pytest.warns(SignedWeightsWarning, match=words) as caught:
        call(kernel=kernel, normalizer=normalizer)
    assert len(caught) == 1
    assert caught[0].filename == call.__code__.co_filename  # it points at the caller


@pytest.mark.parametrize("form", FORMS)
def test_every_form_warns(form):
    with pytest.warns(SignedWeightsWarning):
        call(form, kernel="identity")


def test_nothing_else_warns():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kernel in POSITIVE:
            call(kernel=kernel)
        for kernel in SIGNED:
            for name in ("visible_keys", "none", "l2", "rms", "layer", SumNormalizer(floor=1.0)):
                call(kernel=kernel, normalizer=name)
