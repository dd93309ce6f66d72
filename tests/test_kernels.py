"""What stands where exp stood: weights, features, and how far exp may go."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from softattn_lib import (
    ClampedKernel,
    CosineKernel,
    ExpKernel,
    FeatureMapKernel,
    L2Normalizer,
    Polynomial,
    PolynomialKernel,
    ReluKernel,
    RMSNormalizer,
    SumNormalizer,
    check_kernel,
    parallel_attention,
    taylor,
)
from softattn_lib.kernels import KERNELS as NAMED
from softattn_lib.kernels import as_kernel
from tests.reference import FORMS, KERNELS, inputs


@pytest.mark.parametrize("name", KERNELS)
def test_the_product_of_features_is_the_weight(name):
    kernel, weight = as_kernel(KERNELS[name][0]), KERNELS[name][1]
    q, k, _, _ = inputs(num_queries=6)
    expected, size = weight(q, k, 0.45), weight.size(q, k, 0.45)
    query, key = kernel.query_features(q, 0.45), kernel.key_features(k)
    assert query.shape[-1] == key.shape[-1] == kernel.num_features(4)
    assert ((query @ key.mT - expected).abs() <= 1e-13 * size).all()
    scores = kernel.scores(q, k, 0.45)
    assert ((kernel.weight(scores) - expected).abs() <= 1e-13 * size).all()


def test_keys_do_not_know_the_scale():
    q, k, _, _ = inputs()
    for name in KERNELS:
        kernel = as_kernel(KERNELS[name][0])
        key = kernel.key_features(k)
        one = kernel.query_features(q, 1.0) @ key.mT
        assert torch.allclose(one, kernel.weight(kernel.scores(q, k, 1.0)))


@pytest.mark.parametrize("name", ["identity", "relu", "elu_plus_one", "cosine"])
def test_the_scale_multiplies_after_a_feature_map(name):
    q, k, _, _ = inputs()
    kernel = NAMED[name]
    torch.testing.assert_close(kernel.scores(q, k, 3.0), 3 * kernel.scores(q, k, 1.0))


def test_feature_maps_by_hand():
    x = torch.tensor([[3.0, -4.0, 0.0]])
    assert torch.equal(NAMED["identity"].feature_map(x), x)
    assert torch.equal(NAMED["relu"].feature_map(x), torch.tensor([[3.0, 0.0, 0.0]]))
    torch.testing.assert_close(NAMED["cosine"].feature_map(x), torch.tensor([[0.6, -0.8, 0.0]]))
    elu = torch.tensor([[4.0, math.exp(-4), 1.0]])
    torch.testing.assert_close(NAMED["elu_plus_one"].feature_map(x), elu)


def test_which_kernels_have_features_and_cannot_go_negative():
    nonnegative = {"exp", "relu", "elu_plus_one"}
    for name, kernel in NAMED.items():
        assert kernel.is_nonnegative == (name in nonnegative)
        assert kernel.has_features == (name != "exp")
    for order in range(6):
        assert as_kernel(taylor(order)).is_nonnegative == (order % 2 == 0)
    assert as_kernel(Polynomial((0, 0, 1))).is_nonnegative
    assert not as_kernel(Polynomial((0, 0, 0, 1))).is_nonnegative


def test_names_polynomials_and_kernels():
    assert as_kernel(taylor(2)) == PolynomialKernel(taylor(2))
    assert as_kernel(taylor(2)) != PolynomialKernel(taylor(2), packed=False)
    assert as_kernel("cosine") == CosineKernel()
    own = ReluKernel()
    assert as_kernel(own) is own


def test_feature_sets_say_what_is_exchangeable():
    two, other = as_kernel(taylor(2)), as_kernel(Polynomial((3, -1, 7)))
    assert two.feature_set == other.feature_set
    assert two.feature_set != PolynomialKernel(taylor(2), packed=False).feature_set
    assert two.feature_set != as_kernel(Polynomial((1, 0, 1))).feature_set
    assert two.feature_set != as_kernel(taylor(3)).feature_set
    assert as_kernel("relu").feature_set != as_kernel("identity").feature_set


def test_cosine_of_zero_huge_and_tiny_vectors():
    x = torch.tensor([[0.0, 0.0], [3e200, -4e200], [3e-200, -4e-200]], dtype=torch.float64)
    x.requires_grad_()
    cosine = CosineKernel().feature_map(x)
    expected = x.detach().new_tensor([[0, 0], [0.6, -0.8], [0.6, -0.8]])
    torch.testing.assert_close(cosine, expected)
    (gradient,) = torch.autograd.grad(cosine[:2].sum(), x)
    assert gradient.isfinite().all()


# exp


def test_exp_is_the_limit_of_the_orders():
    q, k, v, _ = inputs(d=2)
    for normalizer in ("sum", "none", "l2"):
        exp, _ = parallel_attention(q, k, v, kernel="exp", normalizer=normalizer)
        errors = []
        for order in (4, 10, 30):
            out, _ = parallel_attention(q, k, v, kernel=taylor(order), normalizer=normalizer)
            errors.append((out - exp).abs().max().item())
        assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-12


def test_the_clamp_cuts_scores():
    score = torch.tensor([-10.0, 4.0, 5.0, 6.0, 1e4])
    expected = torch.tensor([-10.0, 4.0, 5.0, 5.0, 5.0]).exp()
    torch.testing.assert_close(ExpKernel(clamp=5.0).weight(score), expected)
    q, k, v, _ = inputs()
    out, state = parallel_attention(9 * q, k, v, kernel=ExpKernel(clamp=5.0), scale=1.0)
    weights = (9 * q @ k.mT).clamp(max=5.0).exp().tril()
    torch.testing.assert_close(out, weights @ v / weights.sum(-1, keepdim=True))
    assert state is None


def test_a_clamped_kernel_has_no_state():
    q, k, v, _ = inputs()
    out, state = parallel_attention(q, k, v, kernel=ClampedKernel(ReluKernel(), 0.3))
    weights = (0.5 * q.relu() @ k.relu().mT).clamp(max=0.3).tril()
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(out, expected.nan_to_num(nan=0.0))
    assert state is None
    assert ClampedKernel(ReluKernel(), 0.3).is_nonnegative
    assert not ClampedKernel(ReluKernel(), -0.3).is_nonnegative
    assert not ClampedKernel(CosineKernel(), 0.3).is_nonnegative


def scored(scores, dtype, e=3):
    """One query and keys that have exactly these scores at scale 1, and values."""
    k = torch.tensor(scores, dtype=dtype).unsqueeze(-1)
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(len(scores), e, generator=generator, dtype=torch.float64).to(dtype)
    return torch.ones(1, 1, dtype=dtype), k, v


EXTREMES = {
    "far apart": [1e4, -1e4, 9999.0, 0.0],
    "all high": [1e4, 9998.5, 9999.0, 1e4],
    "all low": [-1e4, -10000.5, -9999.0, -1e4],
    "stress": [30.0, -30.0, 29.0, 0.0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scores", EXTREMES.values(), ids=list(EXTREMES))
def test_exp_with_a_sum_or_a_norm_survives_any_score(scores, dtype):
    q, k, v = (x.requires_grad_() for x in scored(scores, dtype))
    mean = torch.softmax(k.detach().double()[:, 0], 0) @ v.detach().double()
    centred = mean - mean.mean()
    expected = {
        "sum": mean,
        "l2": mean / mean.norm(),
        "rms": mean / mean.square().mean().sqrt(),
        "layer": centred / centred.square().mean().sqrt(),
    }
    for normalizer, value in expected.items():
        out, _ = parallel_attention(q, k, v, kernel="exp", normalizer=normalizer, scale=1.0)
        torch.testing.assert_close(out[0].double(), value, rtol=1e-5, atol=1e-6)
        gradients = torch.autograd.grad(out.square().sum() + out.sum(), (q, k, v))
        assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("level", [-300.0, -40.0, 0.0, 40.0, 300.0])
def test_floor_and_eps_are_exact_under_the_shift_of_exp(level):
    """They are meant for the weights as they are; the shift by the row's maximum must not show."""
    q, k, v = scored([level, level - 1.5, level + 0.25, level - 40], torch.float64)
    weights = k[:, 0].exp()
    y, total = weights @ v, weights.sum()
    for size in (1e-6, 1.0, math.exp(level), math.exp(-level / 2)):
        expected = {
            SumNormalizer(floor=size): y / total.clamp(min=size),
            SumNormalizer(eps=size): y / (total + size),
            L2Normalizer(eps=size): y / y.norm().clamp(min=size),
        }
        if abs(level) < 300:  # the square itself stays in range
            expected[RMSNormalizer(eps=size)] = y / (y.square().mean() + size).sqrt()
        for normalizer, value in expected.items():
            out, _ = parallel_attention(q, k, v, kernel="exp", normalizer=normalizer, scale=1.0)
            torch.testing.assert_close(out[0], value, rtol=1e-11, atol=0.0)


def test_a_norm_of_exp_is_the_norm_of_softmax_attention():
    """The paper's Norm form keeps the direction of softmax attention and drops its length."""
    q, k, v, _ = inputs()
    norm, _ = parallel_attention(q, k, v, kernel="exp", normalizer="l2")
    softmax, _ = parallel_attention(q, k, v, kernel="exp")
    torch.testing.assert_close(norm, F.normalize(softmax, dim=-1))


@pytest.mark.parametrize("order", [2, 4])
def test_polynomials_at_scores_of_thirty(order):
    q, k, v = scored([30.0, -30.0, 29.0, 0.0], torch.float64)
    p = [sum(s**n / math.factorial(n) for n in range(order + 1)) for s in k[:, 0].tolist()]
    expected = v.new_tensor(p) @ v / sum(p)
    for form in FORMS.values():
        out, _ = form(q, k, v, kernel=taylor(order), scale=1.0)
        torch.testing.assert_close(out[0], expected, rtol=1e-12, atol=1e-12)


# Somebody's own


@dataclass(frozen=True)
class Pairs(FeatureMapKernel):
    """Products of neighbouring entries: fewer features than d."""

    def feature_map(self, x):
        return x[..., 1:] * x[..., :-1]

    def num_features(self, d):
        return d - 1


def test_ten_lines_make_a_kernel():
    q, k, v, _ = inputs()
    expected, state = parallel_attention(q, k, v, kernel=Pairs(), normalizer="l2")
    assert state.sums.shape == (2, 3, 3, 6)
    for form in FORMS.values():
        torch.testing.assert_close(form(q, k, v, kernel=Pairs(), normalizer="l2")[0], expected)
    assert check_kernel(Pairs())
