"""The entry point: every choice gives the same numbers, and the plan says what runs."""

import importlib
from contextlib import nullcontext

import pytest
import torch

from softattn_lib import (
    ExpKernel,
    SumNormalizer,
    attention,
    chunked_attention,
    explain,
    parallel_attention,
    softmax_attention,
    taylor,
)
from tests.reference import assert_same_states, gates, inputs

module = importlib.import_module("softattn_lib.attention")  # the name is the function's
FORMS = ("parallel", "recurrent", "chunked")
SAME = {"rtol": 1e-10, "atol": 1e-10}


@pytest.mark.parametrize("form", ["auto", *FORMS])
@pytest.mark.parametrize("length", [0, 1, 7, 300])
def test_every_form_is_that_form(form, length):
    q, k, v, generator = inputs(T=length, groups=2)
    options = gates(generator, q, k, gate="after", decay=True, mask=True)
    options.update(kernel=taylor(2), enable_gqa=True)
    out, state = attention(q, k, v, form=form, **options)
    expected, expected_state = parallel_attention(q, k, v, **options)
    torch.testing.assert_close(out, expected, **SAME)
    assert_same_states((state, expected_state), torch.float64)


@pytest.mark.parametrize("length", [1, 40, 400])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("kernel", [taylor(2), taylor(3), "relu", "exp"], ids=str)
def test_the_plan_names_the_form_that_runs(kernel, is_causal, length, monkeypatch):
    """And reads sizes only: its tensors are on the device meta."""
    ran = []

    def spy(name):
        form = module.FORMS[name]
        return lambda *args, **options: ran.append(name) or form(*args, **options)

    monkeypatch.setattr(module, "FORMS", {name: spy(name) for name in FORMS})
    monkeypatch.setattr(
        module, "softmax_attention", lambda *args, **options: ran.append("parallel")
    )
    q, k, v, _ = inputs(torch.float32, T=length)
    options = {"kernel": kernel, "is_causal": is_causal, "normalizer": "sum"}
    with pytest.warns() if kernel == taylor(3) else nullcontext():
        attention(q, k, v, **options)
    plan = explain(*(x.to("meta") for x in (q, k, v)), **options)
    assert [plan.form] == ran
    assert plan.form == min(plan.costs, key=lambda name: plan.costs[name].seconds)
    assert (plan.chunk_size is None) == (plan.form != "chunked")


def test_each_form_is_chosen_where_it_belongs():
    def form(length, num_keys=None):
        q = torch.empty(1, 8, length, 16, device="meta")
        k, v = torch.empty(2, 1, 8, num_keys or length, 16, device="meta")
        return explain(q, k, v, kernel=taylor(2)).form

    assert form(1) == "recurrent"
    assert form(16) == "parallel"
    assert form(4096) == "chunked"


@pytest.mark.parametrize("form", ["auto", "parallel"])
@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("num_queries", [7, 3])
def test_softmax_runs_in_torch(form, is_causal, mask, num_queries, monkeypatch):
    q, k, v, generator = inputs(num_queries=num_queries, groups=2)
    options = gates(generator, q, k, mask=mask)
    options.update(scale=0.3, is_causal=is_causal, enable_gqa=True)
    expected, _ = parallel_attention(q, k, v, kernel="exp", **options)
    monkeypatch.setattr(module, "FORMS", dict.fromkeys(FORMS))
    out, state = attention(q, k, v, kernel=ExpKernel(), form=form, **options)
    torch.testing.assert_close(out, expected, **SAME)
    assert state is None
    torch.testing.assert_close(out, softmax_attention(q, k, v, **options), rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel": ExpKernel(clamp=0.5)},
        {"normalizer": SumNormalizer(floor=1.0)},
        {"normalizer": "l2"},
        {"input_gate": torch.tensor(0.5)},
        {"output_gate": torch.tensor(0.5), "gate_position": "before"},
        {"log_decay": torch.tensor(-0.5)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_softmax_has_not_runs_in_the_parallel_form(options):
    q, k, v, _ = inputs()
    options = {"kernel": "exp", **options}
    expected, _ = parallel_attention(q, k, v, **options)
    torch.testing.assert_close(attention(q, k, v, **options)[0], expected, rtol=0, atol=0)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_exp_has_no_other_form(form):
    q, k, v, _ = inputs()
    with pytest.raises(ValueError, match="no finite state"):
        attention(q, k, v, kernel="exp", form=form)


@pytest.mark.parametrize("form", ["auto", *FORMS])
def test_noncontiguous_inputs_are_left_alone(form):
    q, k, v, _ = inputs(T=20)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2).flip(-1).flip(-1) for x in (q, k, v)]
    strided = [x[..., ::1] for x in strided]
    before = [x.clone() for x in strided]
    out, _ = attention(*strided, kernel=taylor(2), form=form)
    torch.testing.assert_close(out, parallel_attention(q, k, v, kernel=taylor(2))[0], **SAME)
    assert all(map(torch.equal, strided, before))


@pytest.mark.parametrize("form", ["auto", *FORMS])
def test_a_state_is_continued(form):
    q, k, v, _ = inputs(T=11)
    expected, expected_state = parallel_attention(q, k, v, kernel=taylor(2))
    first, state = attention(*(x[..., :4, :] for x in (q, k, v)), kernel=taylor(2), form=form)
    rest = (x[..., 4:, :] for x in (q, k, v))
    second, state = attention(*rest, kernel=taylor(2), form=form, initial_state=state)
    torch.testing.assert_close(torch.cat([first, second], -2), expected, **SAME)
    assert_same_states((state, expected_state), torch.float64)


def test_a_chunk_size_is_handed_on():
    q, k, v, _ = inputs(T=50)
    out, _ = attention(q, k, v, kernel=taylor(2), form="chunked", chunk_size=7)
    expected, _ = chunked_attention(q, k, v, kernel=taylor(2), chunk_size=7)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    q, k, v = torch.empty(3, 8, 9000, 8, device="meta")
    assert explain(q, k, v, kernel=taylor(2), chunk_size=7).chunk_size == 7


@pytest.mark.parametrize("function", [attention, explain])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"form": "quick"}, ValueError, "auto, parallel, recurrent, chunked; got 'quick'"),
        ({"form": "parallel", "chunk_size": 4}, ValueError, "chunk_size=4 is for the forms"),
        ({"chunk_size": 0}, ValueError, "chunk_size must be an integer >= 1 or None, got 0"),
        ({"scal": 1.0}, TypeError, "has no option 'scal'; it has kernel, normalizer, scale,"),
        ({"kernel": "cosin"}, ValueError, "kernel must be .* got 'cosin'"),
        ({"enable_gqa": True}, ValueError, "H_q divisible by H_k, got H_q=4, H_k=3"),
    ],
)
def test_bad_options_are_named(function, options, error, message):
    q, k, v = torch.randn(1, 4, 5, 4), torch.randn(1, 3, 5, 4), torch.randn(1, 3, 5, 4)
    with pytest.raises(error, match=message):
        function(q, k, v, **{"kernel": taylor(2), **options})


def test_a_state_too_large_to_build_leaves_the_parallel_form():
    q, k, v, _ = inputs(T=300, d=64)
    options = {"kernel": taylor(10), "return_state": False}
    plan = explain(q, k, v, **options)
    assert set(plan.costs) == {"parallel"}
    assert "is not built" in plan.reason
    out, _ = attention(q, k, v, **options)
    torch.testing.assert_close(out, parallel_attention(q, k, v, **options)[0], rtol=0, atol=0)


def test_a_plan_reads_as_a_table():
    q, k, v = torch.empty(3, 1, 8, 65536, 16, device="meta")
    plan = explain(q, k, v, kernel=taylor(2))
    first, head, *rows, last = str(plan).splitlines()
    assert first == f"chunked: {plan.reason}"
    assert head.split() == ["flops", "working", "B", "state", "B", "seconds"]
    assert [row.split()[-5] for row in rows] == ["parallel", "recurrent", "chunked", "(softmax)"]
    assert last == f"chunked is faster than softmax from T = {plan.crossover} (causal)"
    softmax = explain(q, k, v, kernel="exp")
    assert softmax.costs == {"parallel": softmax.softmax}
    assert softmax.crossover is None
    assert "scaled_dot_product_attention" in softmax.reason
    assert explain(q, k, v, kernel=taylor(2), form="recurrent").reason == (
        'form="recurrent" was asked for'
    )
    assert "no finite state" in explain(q, k, v, kernel=ExpKernel(clamp=5.0)).reason


@pytest.mark.parametrize("form", ["auto", "parallel"])
@pytest.mark.parametrize("kernel", [taylor(2), "exp"], ids=str)
def test_the_gradients_are_those_of_the_parallel_form(form, kernel):
    q, k, v, _ = inputs(T=9)
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def gradients(function, **options):
        return torch.autograd.grad(
            function(q, k, v, kernel=kernel, **options)[0].square().sum(), leaves
        )

    expected = gradients(parallel_attention)
    for got, right in zip(gradients(attention, form=form), expected, strict=True):
        torch.testing.assert_close(got, right, **SAME)


@pytest.mark.parametrize("dynamic", [False, None])  # None: T becomes a symbol once it changes
def test_the_choice_compiles_without_a_graph_break(dynamic, monkeypatch):
    """Whether a form does is for its own tests: here each stands for a number."""
    stand_ins = {
        name: lambda q, k, v, n=n, **options: (q + n, None) for n, name in enumerate(FORMS, 1)
    }
    monkeypatch.setattr(module, "FORMS", stand_ins)
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: attention(q, k, v, kernel=taylor(2)),
        backend="eager",
        fullgraph=True,
        dynamic=dynamic,
    )
    for length in (16, 4096, 17):
        q, k, v = torch.zeros(3, 8, length, 16)
        form = explain(q, k, v, kernel=taylor(2)).form
        assert compiled(q, k, v)[0].unique().item() == 1 + FORMS.index(form)


@pytest.mark.parametrize("form", ["recurrent", "chunked"])
def test_explain_refuses_a_form_that_the_kernel_lacks_as_attention_does(form):
    q = torch.randn(2, 3, 4)
    for function in (attention, explain):
        with pytest.raises(ValueError, match="has no finite state"):
            function(q, q, q, kernel="exp", form=form)


def test_tensors_are_checked_before_they_are_cut():
    cut = torch.tensor([0, 2])
    with pytest.raises(TypeError, match="q must be a tensor"):
        attention([1.0], torch.ones(2, 3), torch.ones(2, 3), kernel="relu", cu_seqlens=cut)
