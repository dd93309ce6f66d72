"""torch.compile takes every form in one graph, forward and backward, and changes no number."""

import shutil

import pytest
import torch

from softattn_lib import (
    PolynomialKernel,
    attention,
    attention_step,
    chunked_attention,
    init_state,
    parallel_attention,
    recurrent_attention,
    softmax_attention,
    taylor,
)
from tests.reference import FORMS, gates, inputs

KERNEL = taylor(2)
FULL = PolynomialKernel(taylor(2), packed=False)

# It traces into our caches of constant factors and says so.
pytestmark = pytest.mark.filterwarnings("ignore:Dynamo detected a call to a .functools.lru_cache")

CALLS = {
    **{name: lambda *qkv, form=form: form(*qkv, kernel=KERNEL)[0] for name, form in FORMS.items()},
    "chunked in pieces": lambda *qkv: chunked_attention(*qkv, kernel=FULL, chunk_size=2)[0],
    "parallel exp": lambda *qkv: parallel_attention(*qkv, kernel="exp")[0],
    "not causal": lambda *qkv: recurrent_attention(*qkv, kernel="relu", is_causal=False)[0],
    "norm": lambda *qkv: parallel_attention(*qkv, kernel=KERNEL, normalizer="layer")[0],
    "softmax": softmax_attention,
    "entry point": lambda *qkv: attention(*qkv, kernel=KERNEL)[0],
    "entry point, exp": lambda *qkv: attention(*qkv, kernel="exp")[0],
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(function, backend="aot_eager"):
    return torch.compile(function, fullgraph=True, backend=backend)


def out_and_gradients(function, *tensors):
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    return out, *torch.autograd.grad(out.square().sum(), leaves)


def assert_same(function, *tensors, backend="aot_eager"):
    expected = out_and_gradients(function, *tensors)
    found = out_and_gradients(compiled(function, backend), *tensors)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_a_form_compiles_to_one_graph(name):
    assert_same(CALLS[name], *inputs(B=1, H=1, T=3)[:3])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_gates_masks_groups_and_a_past_compile_too(form):
    q, k, v, generator = inputs(groups=2, T=3)
    options = gates(generator, q, k, gate="after", decay=True, mask=True)
    options.update(kernel=KERNEL, normalizer="visible_keys", enable_gqa=True)
    _, past = FORMS[form](q, k, v, **options)

    def call(q, k, v):
        out, state = FORMS[form](q, k, v, initial_state=past, **options)
        return torch.cat([out.flatten(), state.sums.flatten()])

    assert_same(call, q, k, v)


def test_a_step_compiles_to_one_graph():
    q, k, v, _ = inputs(T=1)
    start = init_state(KERNEL, 4, 5, batch_shape=(2, 3), dtype=torch.float64)

    def step(q, k, v):
        out, state = attention_step(q, k, v, start, kernel=KERNEL)
        return torch.cat([out.flatten(), state.sums.flatten()])

    assert_same(step, *(x.squeeze(-2) for x in (q, k, v)))


@pytest.mark.filterwarnings("ignore::UserWarning")  # of the compiler, about its own future
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the default backend needs g++")
@pytest.mark.parametrize("name", ["parallel", "chunked", "recurrent"])
def test_the_default_backend_gives_the_same(name):
    assert_same(CALLS[name], *inputs(B=1, H=1, T=3)[:3], backend="inductor")


def test_a_compiled_overflow_is_an_error_and_infinite_inputs_are_not():
    q, k, v = torch.full((3, 2), 1e-12), torch.full((3, 2), 1e12), torch.ones(3, 2)
    form = compiled(lambda *qkv: parallel_attention(*qkv, kernel=KERNEL, scale=1.0)[1].sums)
    form(q, k, v)
    with pytest.raises(RuntimeError, match=r"leave the range of torch\.float32"):
        form(q, 1e10 * k, v)
    assert not form(q, k * torch.inf, v).isfinite().all()


def test_a_compiled_form_does_not_warn_of_signed_weights():
    """It is decided by sympy, which cannot be traced; the call itself warns, see test_errors.py."""
    q, k, v, _ = inputs(T=3)
    compiled(lambda *qkv: parallel_attention(*qkv, kernel="identity")[0])(q, k, v)
