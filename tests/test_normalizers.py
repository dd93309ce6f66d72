"""What stands where the denominator stood: formulas, zeros, units, and the edges of float."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from softattn_lib import (
    ChainNormalizer,
    L2Normalizer,
    LayerNormalizer,
    NoNormalizer,
    Normalizer,
    RMSNormalizer,
    SumNormalizer,
    TimesWidthNormalizer,
    VisibleKeysNormalizer,
    parallel_attention,
    taylor,
)
from softattn_lib.normalizers import NORMALIZERS as NAMED
from softattn_lib.normalizers import as_normalizer
from tests import reference
from tests.reference import FORMS, inputs

pytestmark = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")

WEIGHT, BIAS = torch.tensor([reference.WEIGHT, reference.BIAS]).double()
SCALED = [
    SumNormalizer(),
    SumNormalizer(floor=0.7),
    SumNormalizer(eps=0.3, floor=0.2),
    SumNormalizer(detach=True),
    L2Normalizer(),
    L2Normalizer(eps=0.5),
    RMSNormalizer(),
    RMSNormalizer(WEIGHT, eps=0.2),
    LayerNormalizer(),
    LayerNormalizer(WEIGHT, BIAS, eps=0.1),
    ChainNormalizer((VisibleKeysNormalizer(), L2Normalizer(eps=0.5))),
    ChainNormalizer((L2Normalizer(eps=0.5), TimesWidthNormalizer())),
    ChainNormalizer((TimesWidthNormalizer(), LayerNormalizer(eps=0.1))),
    ChainNormalizer((L2Normalizer(eps=0.5), SumNormalizer(eps=0.3))),
    ChainNormalizer((SumNormalizer(), SumNormalizer(floor=0.7))),
]


def rows(dtype=torch.float64):
    """Numerators (3, 4, 5), denominators (3, 4, 1), visible keys (3, 4, 1), unit 0."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    total = torch.rand(3, 4, 1, generator=generator, dtype=torch.float64) + 0.1
    visible = torch.arange(1, 13).reshape(3, 4, 1)
    return y.to(dtype), total.to(dtype), visible, torch.zeros((), dtype=dtype)


def test_formulas_against_torch():
    y, total, visible, unit = rows()
    expected = {
        SumNormalizer(): y / total,
        SumNormalizer(floor=0.5): y / total.clamp(min=0.5),
        SumNormalizer(eps=0.25): y / (total + 0.25),
        SumNormalizer(floor=0.5, eps=0.25): y / (total.clamp(min=0.5) + 0.25),
        SumNormalizer(detach=True): y / total,
        VisibleKeysNormalizer(): y / visible,
        NoNormalizer(): y,
        L2Normalizer(): F.normalize(y, dim=-1),
        L2Normalizer(eps=2.0): F.normalize(y, dim=-1, eps=2.0),
        RMSNormalizer(): F.rms_norm(y, (5,), eps=0.0),
        RMSNormalizer(WEIGHT, 0.125): F.rms_norm(y, (5,), WEIGHT, 0.125),
        LayerNormalizer(): F.layer_norm(y, (5,), eps=0.0),
        LayerNormalizer(WEIGHT, BIAS, 0.1): F.layer_norm(y, (5,), WEIGHT, BIAS, 0.1),
        LayerNormalizer(bias=BIAS): F.layer_norm(y, (5,), None, BIAS, 0.0),
        TimesWidthNormalizer(): 5 * y,
        ChainNormalizer((VisibleKeysNormalizer(), RMSNormalizer(eps=0.1))): F.rms_norm(
            y / visible, (5,), eps=0.1
        ),
        ChainNormalizer((TimesWidthNormalizer(), SumNormalizer())): 5 * y / total,
    }
    for normalizer, value in expected.items():
        torch.testing.assert_close(normalizer(y, total, visible, unit), value)


@pytest.mark.parametrize("normalizer", SCALED, ids=str)
@pytest.mark.parametrize("shift", [-30.0, -2.0, 3.0, 30.0])
def test_a_unit_that_cancels_does_not_show(normalizer, shift):
    """Numerators and denominators in units of exp(shift) give what they give as they are."""
    y, total, visible, unit = rows()
    assert normalizer.cancels_unit
    expected = normalizer(y, total, visible, unit)
    small = math.exp(-shift)
    out = normalizer(y * small, total * small, visible, torch.full_like(total, shift))
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["visible_keys", "none"])
def test_a_unit_that_does_not_cancel_is_said_so(name):
    assert not NAMED[name].cancels_unit
    assert not ChainNormalizer((NAMED[name], TimesWidthNormalizer())).cancels_unit


def test_names_and_objects():
    assert as_normalizer("l2") == L2Normalizer() and as_normalizer("sum") == SumNormalizer()
    own = SumNormalizer(floor=1.0)
    assert as_normalizer(own) is own


@pytest.mark.parametrize("normalizer", [*NAMED.values(), *SCALED], ids=str)
def test_exact_zeros_give_zeros_and_finite_gradients(normalizer):
    y = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    total = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    seen, unit = torch.tensor([[3], [0]]), torch.zeros((), dtype=torch.float64)
    out = normalizer(y, total, seen, unit)
    bias = getattr(normalizer, "bias", None)
    assert torch.equal(out[0], torch.zeros(5).double() if bias is None else bias)
    assert not out[1].any()
    if out.requires_grad:
        gradients = torch.autograd.grad(out.sum(), (y, total), allow_unused=True)
        assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


def test_a_denominator_that_is_exactly_zero_gives_zero():
    """Two keys whose scores cancel, under the kernel that lets them."""
    q = torch.tensor([[1.0], [1.0]], dtype=torch.float64)
    k = torch.tensor([[1.0], [-1.0]], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([[2.0, 1.0], [5.0, 3.0]], dtype=torch.float64)
    for form in FORMS.values():
        out, _ = form(q, k, v, kernel="identity", scale=1.0)
        assert torch.equal(out, v.new_tensor([[2.0, 1.0], [0.0, 0.0]]))
        (gradient,) = torch.autograd.grad(out.sum(), k)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["l2", "rms", "layer"])
def test_norms_of_huge_and_tiny_rows(name, dtype):
    """Squares of 1e30 overflow float32 and squares of 1e-30 vanish; the norms must not."""
    y, total, visible, unit = rows(dtype)
    expected = NAMED[name](y, total, visible, unit)
    for size in (1e-36, 1e-30, 1e30, 1e37):
        scaled = (y * size).requires_grad_()
        out = NAMED[name](scaled, total, visible, unit)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    if dtype == torch.float64:
        for size in (1e-300, 1e300):
            out = NAMED[name](y * size, total, visible, unit)
            torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("size", [1e-33, 1e-25, 1e-20, 1e-10, 1.0])
@pytest.mark.parametrize("name", ["L2", "RMS", "Layer"])
def test_eps_of_tiny_rows_in_float32_is_that_of_float64(name, size):
    """y / sqrt(eps), and its gradient 1 / sqrt(eps), however small y is."""
    normalizers = {
        "L2": L2Normalizer(eps=1e-6),
        "RMS": RMSNormalizer(eps=1e-6),
        "Layer": LayerNormalizer(eps=1e-6),
    }
    results = []
    for dtype in (torch.float32, torch.float64):
        y, total, visible, unit = rows(dtype)
        y = (y * size).requires_grad_()
        out = normalizers[name](y, total, visible, unit)
        direction = torch.arange(60, dtype=dtype).reshape(y.shape).sin()
        (gradient,) = torch.autograd.grad((out * direction).sum(), y)
        results.append((out.detach().double(), gradient.double()))
    for short, long in zip(*results, strict=True):
        assert ((short - long).abs() <= 1e-5 * long.abs().amax(-1, keepdim=True)).all()


def test_detach_stops_the_gradient_of_the_denominator_only():
    y, total, visible, unit = (x.clone() for x in rows())
    y, total = y.requires_grad_(), total.requires_grad_()
    out = SumNormalizer(detach=True)(y, total, visible, unit)
    by_y, by_total = torch.autograd.grad(out.sum(), (y, total), allow_unused=True)
    assert by_total is None
    torch.testing.assert_close(by_y, (1 / total).expand_as(y))


def test_a_floor_lets_no_smaller_denominator_through():
    q, k, v, _ = inputs()
    for form in FORMS.values():
        out, _ = form(q, k, v, kernel="identity", normalizer=SumNormalizer(floor=1.0))
        weights = (0.5 * q @ k.mT).tril()
        expected = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1.0)
        torch.testing.assert_close(out, expected)


def test_gates_before_a_norm_do_nothing_and_after_it_do():
    q, k, v, generator = inputs()
    gate = torch.rand(2, 3, 7, generator=generator, dtype=torch.float64) + 0.1
    for name in ("l2", "rms", "layer"):
        plain, _ = parallel_attention(q, k, v, kernel=taylor(2), normalizer=name)
        options = {"kernel": taylor(2), "normalizer": name, "output_gate": gate}
        before, _ = parallel_attention(q, k, v, gate_position="before", **options)
        after, _ = parallel_attention(q, k, v, gate_position="after", **options)
        torch.testing.assert_close(before, plain)
        torch.testing.assert_close(after, plain * gate.unsqueeze(-1))


def test_visible_keys_counts_what_is_seen():
    q, k, v, _ = inputs(B=1, H=1)
    mask = torch.tensor([0, 1, 1, 0, 1, 1, 0], dtype=torch.bool)
    counts = torch.tensor([0, 1, 2, 2, 3, 4, 4], dtype=torch.float64).unsqueeze(-1)
    for form in FORMS.values():
        options = {"kernel": taylor(2), "key_mask": mask}
        summed, _ = form(q, k, v, normalizer="none", **options)
        out, state = form(q, k, v, normalizer="visible_keys", **options)
        torch.testing.assert_close(out, summed / counts.clamp(min=1))
        assert state.visible.tolist() == [[4]]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_weights_may_differ_by_head(form, groups):
    """They broadcast against the output, (..., H, T, e), grouped queries or not."""
    q, k, v, generator = inputs(groups=groups)
    shape = (3 * groups, 1, 5)
    weight, bias = (torch.randn(shape, generator=generator).double() for _ in range(2))
    form, options = FORMS[form], {"kernel": taylor(2), "enable_gqa": groups > 1}
    for plain, own in (
        (RMSNormalizer(), RMSNormalizer(weight)),
        (LayerNormalizer(), LayerNormalizer(weight)),
    ):
        expected, _ = form(q, k, v, normalizer=plain, **options)
        out, _ = form(q, k, v, normalizer=own, **options)
        torch.testing.assert_close(out, expected * weight)
    out, _ = form(q, k, v, normalizer=LayerNormalizer(weight, bias), **options)
    torch.testing.assert_close(out, form(q, k, v, normalizer="layer", **options)[0] * weight + bias)


@dataclass(frozen=True)
class Shapes(Normalizer):
    """Somebody's own normalizer: checks what it is given."""

    lead: tuple

    def __call__(self, numerator, denominator, visible, log_unit):
        assert numerator.shape == (*self.lead, 5)
        assert denominator.shape == visible.shape == (*self.lead, 1)
        assert log_unit.shape in ((), (*self.lead, 1))
        return numerator / visible


@pytest.mark.parametrize("form", FORMS)
def test_a_normalizer_gets_the_shapes_of_the_output(form):
    q, k, v, _ = inputs(groups=2, num_queries=6)
    form, options = FORMS[form], {"kernel": taylor(2), "enable_gqa": True}
    out, _ = form(q, k, v, normalizer=Shapes((2, 6, 6)), **options)
    torch.testing.assert_close(out, form(q, k, v, normalizer="visible_keys", **options)[0])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SumNormalizer(floor=0.0), "floor must be > 0 or None, got 0.0"),
        (lambda: SumNormalizer(floor=math.nan), "floor must be > 0 or None, got nan"),
        (lambda: SumNormalizer(eps=-1.0), "eps must be finite and >= 0, got -1.0"),
        (lambda: L2Normalizer(eps=math.inf), "eps must be finite and >= 0, got inf"),
        (lambda: RMSNormalizer(eps=-1e-9), "eps must be finite and >= 0, got -1e-09"),
        (lambda: LayerNormalizer(eps=math.nan), "eps must be finite and >= 0, got nan"),
    ],
)
def test_bad_settings_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()
