"""`check_kernel` passes kernels that keep their promises and names the promise that is broken."""

from dataclasses import dataclass

import pytest
import torch

from softattn_lib import (
    ClampedKernel,
    ExpKernel,
    FeatureMapKernel,
    Kernel,
    KernelCheckError,
    Polynomial,
    PolynomialKernel,
    ReluKernel,
    check_kernel,
)
from tests.reference import KERNELS

ALL = ["inputs", "features", "sign", "causality", "forms", "splits", "gradients"]
PARALLEL_ONLY = ["inputs", "sign", "causality", "gradients"]


FEW = ("order2", "order3_full", "gaps", "relu", "elu_plus_one", "cosine")


@pytest.mark.parametrize(
    "kernel", [k if k in FEW else pytest.param(k, marks=pytest.mark.slow) for k in KERNELS]
)
def test_every_kernel_with_features_passes_every_check(kernel):
    assert check_kernel(KERNELS[kernel][0]) == ALL


@pytest.mark.parametrize(
    "kernel", ["exp", ExpKernel(1.0), ClampedKernel(ReluKernel(), 0.5)], ids=str
)
def test_kernels_without_features_pass_what_applies(kernel):
    assert check_kernel(kernel) == PARALLEL_ONLY


@pytest.mark.parametrize("d", [1, 5])
def test_any_width_and_any_seed(d):
    assert check_kernel("elu_plus_one", d=d, seed=d) == ALL


# Somebody's own, in ten lines


@dataclass(frozen=True)
class Squares(FeatureMapKernel):
    """(q . k)^2 written as a feature map of all products, positive by construction."""

    def feature_map(self, x):
        return (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2)

    def num_features(self, d):
        return d**2


class RandomFeatures(FeatureMapKernel):
    """Positive random features for exp (Choromanski et al., 2021), drawn once."""

    is_nonnegative = True

    def __init__(self, d, size, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.directions = torch.randn(d, size, generator=generator, dtype=torch.float64)

    def feature_map(self, x):
        return torch.exp(x @ self.directions - x.square().sum(-1, keepdim=True) / 2)

    def num_features(self, d):
        return self.directions.shape[1]


class Laplace(Kernel):
    """exp(-|score|): a weight of one's own without features."""

    has_features = False
    is_nonnegative = True

    def weight(self, score):
        return torch.exp(-score.abs())


def test_own_kernels_pass():
    assert check_kernel(Squares()) == ALL
    assert check_kernel(RandomFeatures(3, 8)) == ALL
    assert check_kernel(Laplace()) == PARALLEL_ONLY


# Broken on purpose


class InPlace(FeatureMapKernel):
    def feature_map(self, x):
        return x.relu_()


class Miscounted(FeatureMapKernel):
    def feature_map(self, x):
        return torch.cat([x, x**2], dim=-1)


class WrongWeight(PolynomialKernel):
    """A coefficient that the features do not know of."""

    def weight(self, score):
        return super().weight(score) + 0.1 * score


class ForgottenScale(PolynomialKernel):
    def query_features(self, q, scale):
        return super().query_features(q, 1.0)


class Undefined(FeatureMapKernel):
    def feature_map(self, x):
        return x.log()


class NotNonnegative(FeatureMapKernel):
    is_nonnegative = True

    def feature_map(self, x):
        return x


class LooksAhead(FeatureMapKernel):
    """A stabilising maximum that runs over time."""

    def feature_map(self, x):
        return torch.exp(x - x.amax((-2, -1), keepdim=True))


class LooksAheadWithoutFeatures(Kernel):
    has_features = False

    def weight(self, score):
        return torch.softmax(score, dim=-1)


class Remembers(FeatureMapKernel):
    """Mixes each token with those before it: causal, but no longer a map of one token."""

    def feature_map(self, x):
        return x.cumsum(-2)


class OneTokenIsSpecial(FeatureMapKernel):
    def feature_map(self, x):
        return x if x.dim() == 3 else 2 * x


class Forgets(FeatureMapKernel):
    """Right for every whole sequence and for single tokens, wrong for a rest of three."""

    def feature_map(self, x):
        return 2 * x if x.dim() == 3 and x.shape[-2] == 6 else x


class CutGradient(FeatureMapKernel):
    def feature_map(self, x):
        return x.detach().relu()


class CutGradientWithoutFeatures(Laplace):
    def weight(self, score):
        return super().weight(score.detach())


BROKEN = {
    "q was changed in place": InPlace(),
    r"features: num_features\(3\) is 3, but query_features .* has shape \(2, 7, 6\)": Miscounted(),
    "features: .* is not the weight: relative error 0": WrongWeight(Polynomial((1, 1, 1))),
    "features: .* is not the weight: relative error [0-9]": ForgottenScale(Polynomial((1, 1))),
    "features: .* is not the weight: relative error nan": Undefined(),
    "sign: is_nonnegative is True, but a weight is -": NotNonnegative(),
    "causality: later tokens change earlier outputs": LooksAhead(),
    "causality: later tokens change earlier outputs: relative": LooksAheadWithoutFeatures(),
    "forms: chunked and parallel outputs differ": Remembers(),
    "forms: recurrent and parallel outputs differ": OneTokenIsSpecial(),
    "splits: parallel cut at 1: other state: relative error": Forgets(),
    "gradients: parallel form: Jacobian mismatch": CutGradient(),
    "gradients: parallel form: .*Jacobian mismatch": CutGradientWithoutFeatures(),
}


@pytest.mark.parametrize(
    ("words", "kernel"), list(BROKEN.items()), ids=[type(k).__name__ for k in BROKEN.values()]
)
def test_a_broken_kernel_is_rejected_with_the_promise_it_broke(words, kernel):
    with pytest.raises(KernelCheckError, match=words):
        check_kernel(kernel)


def test_a_failed_check_is_an_assertion():
    """So that it may stand in anybody's test suite."""
    assert issubclass(KernelCheckError, AssertionError)


def test_names_are_checked_as_everywhere():
    with pytest.raises(ValueError, match=r"kernel must be .*got 'soft'"):
        check_kernel("soft")
