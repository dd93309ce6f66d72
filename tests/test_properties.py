"""Properties over shapes, splits, orders and options that nobody chose by hand."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softattn_lib import (
    Polynomial,
    PolynomialKernel,
    attention_step,
    init_state,
    num_features,
    order_for_tolerance,
    parallel_attention,
    polynomial_features,
    recurrent_attention,
    symmetric_power,
    taylor,
    weight_error_bound,
)
from tests.reference import (
    FORMS,
    NORMALIZERS,
    Sums,
    chunked_attention,
    gates,
    inputs,
    largest_ratios,
    polynomial_weight,
)

pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
SOME = settings(max_examples=40)
orders = st.integers(0, 4)
coefficients = st.lists(st.sampled_from([-1.0, -0.3, 0.0, 0.5, 1.0]), min_size=1, max_size=5)


@st.composite
def calls(draw, whole_sequence=False):
    """q, k, v, options that fit them, the coefficients of a kernel and the name of a normalizer."""
    sizes = {name: draw(st.integers(1, top)) for name, top in zip("BHd", (2, 3, 4), strict=True)}
    is_causal, groups = whole_sequence or draw(st.booleans()), draw(st.integers(1, 3))
    num_queries = num_keys = draw(st.integers(0, 9))
    if not whole_sequence:
        num_queries = draw(st.integers(0, num_keys if is_causal else 9))
    seed = draw(st.integers(0, 1000))
    q, k, v, generator = inputs(
        **sizes, T=num_keys, num_queries=num_queries, groups=groups, seed=seed
    )
    options = gates(
        generator,
        q,
        k,
        gate=draw(st.sampled_from([None, "before", "after"])),
        decay=draw(st.booleans()),
        mask=draw(st.booleans()),
    )
    scale = draw(st.integers(-20, 20)) / 20  # no subnormal numbers
    options.update(is_causal=is_causal, enable_gqa=groups > 1, scale=scale)
    return q, k, v, options, draw(coefficients), draw(st.sampled_from(list(NORMALIZERS)))


@SOME
@given(calls(), st.integers(1, 11), st.booleans())
def test_the_forms_agree_with_the_reference(call, chunk_size, packed):
    q, k, v, options, coefficients, name = call
    kernel = PolynomialKernel(Polynomial(coefficients), packed)
    divide = NORMALIZERS[name]
    expected, slack = Sums(q, k, v, weight=polynomial_weight(coefficients), **options).over(divide)
    options.update(kernel=kernel, normalizer=divide.normalizer)
    outs = [
        parallel_attention(q, k, v, **options)[0],
        recurrent_attention(q, k, v, **options)[0],
        chunked_attention(q, k, v, chunk_size=chunk_size, **options)[0],
    ]
    errors = largest_ratios(torch.stack(outs) - expected, slack)
    assert max(errors) <= 1e-12, dict(zip(FORMS, errors, strict=True))


@SOME
@given(calls(whole_sequence=True), st.data())
def test_any_split_gives_the_same(call, data):
    q, k, v, options, coefficients, name = call
    divide = NORMALIZERS[name]
    _, slack = Sums(q, k, v, weight=polynomial_weight(coefficients), **options).over(divide)
    options.update(kernel=Polynomial(coefficients), normalizer=divide.normalizer)
    expected, expected_state = parallel_attention(q, k, v, **options)
    outs, state, start = [], None, 0
    for stop in [*sorted(data.draw(st.lists(st.integers(0, k.shape[-2]), max_size=4))), None]:
        form = FORMS[data.draw(st.sampled_from(list(FORMS)))]
        piece = {n: x[..., start:stop] if torch.is_tensor(x) else x for n, x in options.items()}
        tokens = (x[..., start:stop, :] for x in (q, k, v))
        out, state = form(*tokens, initial_state=state, **piece)
        outs.append(out)
        start = stop
    assert largest_ratios((torch.cat(outs, dim=-2) - expected).unsqueeze(0), slack)[0] <= 1e-12
    size = 1 + expected_state.sums.abs().amax(-1, keepdim=True)
    assert ((state.sums - expected_state.sums).abs() <= 1e-12 * size).all()
    assert torch.equal(state.visible, expected_state.visible)


@SOME
@given(orders.map(lambda n: 2 * (n // 2)), st.integers(1, 4), st.integers(1, 8), st.integers(0, 99))
def test_even_orders_make_weighted_means(order, d, tokens, seed):
    """Weights are positive and sum to one: no output leaves the range of the values."""
    q, k, v, _ = inputs(d=d, T=tokens, seed=seed)
    out, _ = recurrent_attention(3 * q, k, v, kernel=taylor(order))
    lowest, highest = (v.cummin(-2).values, v.cummax(-2).values)
    assert (out >= lowest - 1e-10).all() and (out <= highest + 1e-10).all()
    ones, _ = recurrent_attention(3 * q, k, torch.ones_like(v), kernel=taylor(order))
    torch.testing.assert_close(ones, torch.ones_like(v), **CLOSE)


@SOME
@given(st.integers(0, 5), st.integers(1, 5), st.integers(0, 99))
def test_the_order_of_keys_does_not_matter_without_a_mask(order, d, seed):
    q, k, v, generator = inputs(d=d, seed=seed)
    shuffled = torch.randperm(7, generator=generator)
    options = {"kernel": taylor(order), "is_causal": False, "normalizer": "none"}
    for form in FORMS.values():
        out, _ = form(q, k, v, **options)
        again, _ = form(q, k[..., shuffled, :], v[..., shuffled, :], **options)
        torch.testing.assert_close(out, again, rtol=1e-9, atol=1e-9 * out.abs().max().item())


@SOME
@given(coefficients, st.integers(1, 5), st.booleans(), st.integers(0, 99))
def test_features_multiply_to_the_polynomial(coefficients, d, packed, seed):
    q, k, _, _ = inputs(B=1, H=1, d=d, seed=seed)
    p = Polynomial(coefficients)
    query = polynomial_features(q, p, "query", packed)
    key = polynomial_features(k, p, "key", packed)
    weight = polynomial_weight(coefficients)
    size = weight.size(q, k, 1.0)
    assert ((query @ key.mT - p(q @ k.mT)).abs() <= 1e-13 * (size + 1e-300)).all()
    assert key.shape[-1] <= num_features(d, p.order, packed)


@SOME
@given(st.integers(0, 5), st.integers(1, 5), st.floats(-3, 3), st.integers(0, 99))
def test_symmetric_powers_are_homogeneous(n, d, factor, seed):
    x = inputs(B=1, H=1, T=1, d=d, seed=seed)[0]
    scaled = symmetric_power(factor * x, n)
    torch.testing.assert_close(scaled, factor**n * symmetric_power(x, n), **CLOSE)


@SOME
@given(st.integers(1, 9), st.integers(0, 2), st.integers(0, 99))
def test_steps_are_the_recurrent_form(tokens, order, seed):
    q, k, v, _ = inputs(T=tokens, seed=seed)
    kernel = taylor(order)
    state = init_state(kernel, 4, 5, batch_shape=(2, 3), dtype=torch.float64)
    expected, expected_state = recurrent_attention(q, k, v, kernel=kernel, normalizer="l2")
    for t in range(tokens):
        token = (x[..., t, :] for x in (q, k, v))
        out, state = attention_step(*token, state, kernel=kernel, normalizer="l2")
        torch.testing.assert_close(out, expected[..., t, :], **CLOSE)
    torch.testing.assert_close(state.sums, expected_state.sums, **CLOSE)


@SOME
@given(st.integers(0, 30), st.floats(0, 12), st.floats(-1, 1))
def test_no_score_within_the_radius_exceeds_the_bound(order, radius, where):
    score = radius * where
    p = math.fsum(score**n / math.factorial(n) for n in range(order + 1))
    size = math.fsum(abs(score) ** n / math.factorial(n) for n in range(order + 1))
    error, rounding = abs(p * math.exp(-score) - 1), 1e-14 * size * math.exp(-score)
    assert error <= weight_error_bound(order, radius) + rounding


@SOME
@given(st.floats(1e-8, 1.0), st.floats(0, 15))
def test_the_order_for_a_tolerance_is_even_smallest_and_enough(tolerance, radius):
    order = order_for_tolerance(tolerance, radius)
    assert order % 2 == 0 and weight_error_bound(order, radius) <= tolerance
    assert order == 0 or weight_error_bound(order - 2, radius) > tolerance


@settings(max_examples=25)
@given(coefficients, st.floats(0.1, 6))
def test_the_minimum_and_the_sign_fit_together(coefficients, radius):
    p = Polynomial(coefficients)
    scores = torch.linspace(-radius, radius, 101, dtype=torch.float64)
    minimum, values = p.minimum_on(radius), p(scores)
    assert minimum <= values.min() + 1e-12 * values.abs().max()
    if p.is_positive:
        assert minimum > 0
    if p.is_nonnegative:
        assert minimum >= -1e-15
    elif p.order > 0:
        assert p.minimum_on(1e3) < 0
