r"""The paper's variants of attention as values: kernel, normalizer, gates, decay.

`VARIANTS` holds the 38 names that the paper's code declares, each with the formula that its code
really computes, and clear names for what was meant where the two differ. `variant(name)` also
knows two families: `taylor_N`, softmax attention with exp cut at order N, and `power_N`, the pure
power of the score. Where two names are one function, `equivalents(name)` says so, and why.

Letters of the formulas: l = q_t . k_s / sqrt(d) after rotary embedding, c = min(l, 5), n the number
of visible keys, sigma a sigmoid gate of the layer's input (one scalar a head and token), iota the
same on the values, sums over the visible s.
"""

import re
from dataclasses import dataclass, replace

from .kernels import (
    KERNELS,
    ClampedKernel,
    CosineKernel,
    EluPlusOneKernel,
    ExpKernel,
    IdentityKernel,
    Kernel,
    PolynomialKernel,
    ReluKernel,
    as_kernel,
)
from .normalizers import (
    NORMALIZERS,
    ChainNormalizer,
    L2Normalizer,
    LayerNormalizer,
    NoNormalizer,
    Normalizer,
    RMSNormalizer,
    SumNormalizer,
    TimesWidthNormalizer,
    VisibleKeysNormalizer,
    as_normalizer,
)
from .polynomials import Polynomial, power, taylor

LEARNED_GATES = ("sigmoid", "exp_negative", "running_sum")  # from the layer's input


class VariantUnavailableError(NotImplementedError):
    """A variant of the paper's code that the formula of this library does not cover."""


@dataclass(frozen=True, eq=False)
class AttentionVariant:
    """One way to do attention, as a value.

    Attributes:
        name: as in `VARIANTS`.
        formula: LaTeX of the output of one head.
        kernel: what stands where exp stood; a polynomial or a name becomes its kernel.
        normalizer: what stands where the denominator stood, without its learned weights, or a name.
        scale: of the score; None means d ** -0.5. The paper's linear entries use 1.
        input_gate: None; "sigmoid" of the layer's input; "power_of_position", n_s ** -m with a
            learned m per head.
        output_gate: None; "sigmoid"; "exp_negative", exp(-g_t); "running_sum",
            1 / max(1, sum_{u <= t} exp(g_u)); "power_of_position", n_t ** -m.
        gate_position: of the output gate, "after" the normalizer or "before" it.
        decay: None; "softplus", log_decay_t = -softplus(g_t); "signed", g_{t-1} / 1024 of either
            sign.
        learned_norm: whether the norm has a learned weight (and layer a bias), shared by heads.
        rotary: whether queries and keys are rotated by position.
        norm_over_heads: queries and keys are divided by their length over the heads (a slip of
            the paper's code, kept to show what it computes).
        number: the row in the list of the paper's code, 1 to 38; None for names of ours.
        unavailable: why it cannot be built, "" if it can.
    """

    name: str
    formula: str
    kernel: Kernel = KERNELS["exp"]
    normalizer: Normalizer = NORMALIZERS["sum"]
    scale: float | None = None
    input_gate: str | None = None
    output_gate: str | None = None
    gate_position: str = "after"
    decay: str | None = None
    learned_norm: bool = False
    rotary: bool = True
    norm_over_heads: bool = False
    number: int | None = None
    unavailable: str = ""

    def __post_init__(self):
        object.__setattr__(self, "kernel", as_kernel(self.kernel))
        object.__setattr__(self, "normalizer", as_normalizer(self.normalizer))
        for name, value, legal in (
            ("input_gate", self.input_gate, (None, "sigmoid", "power_of_position")),
            ("output_gate", self.output_gate, (None, *LEARNED_GATES, "power_of_position")),
            ("gate_position", self.gate_position, ("after", "before")),
            ("decay", self.decay, (None, "softplus", "signed")),
        ):
            if value not in legal:
                raise ValueError(f"{name} must be one of {legal}, got {value!r}")

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a state of constant size."""
        return self.kernel.has_features and not self.unavailable

    def state_size(self, d: int, e: int) -> int | None:
        """Numbers in the state of one head, D * (e + 1), or None without a finite state."""
        return self.kernel.num_features(d) * (e + 1) if self.is_recurrent else None

    @property
    def clips_gradient(self) -> bool:
        """Whether the paper trained it with gradients clipped at norm 1: the gated ones."""
        return bool({self.input_gate, self.output_gate} & set(LEARNED_GATES))

    @property
    def learnables(self) -> tuple[str, ...]:
        """What it learns beside the projections of queries, keys, values and outputs."""
        names = {
            "input gate": self.input_gate in LEARNED_GATES,
            "output gate": self.output_gate in LEARNED_GATES,
            "power of position": "power_of_position" in (self.input_gate, self.output_gate),
            "decay": self.decay,
            "norm": self.learned_norm,
        }
        return tuple(name for name, present in names.items() if present)


def variant(name: str) -> AttentionVariant:
    """The variant of a name: one of `VARIANTS`, `taylor_N`, `power_N` (N >= 1), or any of exp with
    its scores clamped, for instance `no_denominator_clamp5`.

    Raises:
        KeyError: for another name, listing the legal ones.

    Example:
        >>> variant("taylor_4").state_size(d=16, e=16)
        82365
        >>> variant("softmax").is_recurrent
        False
    """
    if isinstance(name, AttentionVariant):
        return name
    if name in VARIANTS:
        return VARIANTS[name]
    if match := re.fullmatch(r"(taylor|power)_(\d+)", name):
        family, order = match[1], int(match[2])
        return (_taylor if family == "taylor" else _power)(name, order)
    if match := re.fullmatch(r"(.+)_clamp(\d+(?:\.\d+)?)", name):
        return with_clamp(match[1], float(match[2]))
    raise KeyError(
        f"name must be taylor_N, power_N, one of {', '.join(VARIANTS)}, or one of these with exp "
        f"and _clamp5 behind it; got {name!r}"
    )


def equivalents(name: str) -> dict[str, str]:
    """The other names that compute the same function (with the same weights), each with the reason.

    Reasons hold exactly unless they say otherwise; rounding apart.

    Raises:
        KeyError: for a name that `variant` does not know.

    Example:
        >>> sorted(equivalents("softmax_divs"))
        ['gated_softmax_no_gate_no_norm']
    """
    name = variant(name).name
    found = {}
    for names, reason in EQUALITIES:
        if name in names:
            found |= {other: reason for other in names if other != name}
    return found


def _taylor(name, order):
    return AttentionVariant(
        name,
        rf"\frac{{\sum P_{{{order}}}(l)\,v}}{{\sum P_{{{order}}}(l)}},\quad"
        rf" P_{{{order}}}(l) = \sum_{{n \le {order}}} l^n / n!",
        kernel=PolynomialKernel(taylor(order)),
    )


def _power(name, order):
    return AttentionVariant(
        name,
        rf"\frac{{\sum l^{{{order}}} v}}{{\sum l^{{{order}}}}}",
        kernel=PolynomialKernel(power(order)),
    )


_EXP, _CLAMPED = ExpKernel(), ExpKernel(clamp=5.0)
_SUM, _NONE, _VISIBLE = SumNormalizer(), NoNormalizer(), VisibleKeysNormalizer()
_L2 = L2Normalizer()
_RMS = RMSNormalizer(eps=1e-6)  # LlamaRMSNorm's default; the paper's value is not known to us
_MEAN_RMS = ChainNormalizer((_VISIBLE, _RMS))
_MEAN_LAYER = ChainNormalizer((_VISIBLE, LayerNormalizer(eps=1e-5)))
_MEAN_L2 = ChainNormalizer((_VISIBLE, _L2))

_CONVOLUTION = "it needs a causal convolution before the attention, which this library leaves out"
_DELETED = "its module was deleted from the paper's code"

_PAPER = [
    AttentionVariant("softmax", formula=r"\frac{\sum e^{l} v}{\sum e^{l}}"),
    AttentionVariant(
        "softmax_clamp_denom",
        formula=r"\frac{\sum e^{c} v}{\max(1, \sum e^{c})}",
        kernel=_CLAMPED,
        normalizer=SumNormalizer(floor=1.0),
    ),
    AttentionVariant(
        "softmax_detach_denom",
        formula=r"\frac{\sum e^{c} v}{\mathrm{sg}[\max(1, \sum e^{c})]}",
        kernel=_CLAMPED,
        normalizer=SumNormalizer(floor=1.0, detach=True),
    ),
    AttentionVariant(
        "softmax_detach_denom_gate",
        formula=r"\frac{\sigma_t \sum e^{c} v}{\mathrm{sg}[\sum e^{c}] + 10^{-4}}",
        kernel=_CLAMPED,
        normalizer=SumNormalizer(detach=True, eps=1e-4),
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "softmax_divs", formula=r"\frac{1}{n_t} \sum e^{c} v", kernel=_CLAMPED, normalizer=_VISIBLE
    ),
    AttentionVariant(
        "softmax_gate",
        formula=r"\sigma_t \sum e^{c} v",
        kernel=_CLAMPED,
        normalizer=_NONE,
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "softmax_divS_gate",
        formula=r"\frac{\sigma_t}{n_t} \sum e^{c} v",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "softmax_divS_gatev2",
        formula=r"\frac{1}{n_t} \sum \sigma_t e^{c} v",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
        output_gate="sigmoid",
        gate_position="before",
    ),
    AttentionVariant(
        "softmax_divS_norm",
        formula=r"\mathrm{RMS}\big(\tfrac{1}{n_t} \sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=_MEAN_RMS,
        learned_norm=True,
    ),
    AttentionVariant(
        "softmax_taylor_80terms",
        formula=r"\sum P_{79}(l)\, v",
        kernel=PolynomialKernel(taylor(79)),
        normalizer=_NONE,
    ),
    AttentionVariant(
        "gated_softmax",
        formula=r"\mathrm{LN}\big(\tfrac{\sigma_t}{n_t} \sum e^{c} \iota_s v_s\big)",
        kernel=_CLAMPED,
        normalizer=_MEAN_LAYER,
        input_gate="sigmoid",
        output_gate="sigmoid",
        gate_position="before",
        learned_norm=True,
    ),
    AttentionVariant(
        "gated_softmax_no_norm",
        formula=r"\frac{\sigma_t}{n_t} \sum e^{c} \iota_s v_s",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
        input_gate="sigmoid",
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "gated_softmax_no_in_gate",
        formula=r"\mathrm{LN}\big(\tfrac{\sigma_t}{n_t} \sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=_MEAN_LAYER,
        output_gate="sigmoid",
        gate_position="before",
        learned_norm=True,
    ),
    AttentionVariant(
        "gated_softmax_no_out_gate",
        formula=r"\mathrm{LN}\big(\tfrac{1}{n_t} \sum e^{c} \iota_s v_s\big)",
        kernel=_CLAMPED,
        normalizer=_MEAN_LAYER,
        input_gate="sigmoid",
        learned_norm=True,
    ),
    AttentionVariant(
        "gated_softmax_no_out_gate_no_norm",
        formula=r"\frac{1}{n_t} \sum e^{c} \iota_s v_s",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
        input_gate="sigmoid",
    ),
    AttentionVariant(
        "gated_softmax_no_in_gate_no_norm",
        formula=r"\frac{\sigma_t}{n_t} \sum e^{c} v",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "gated_relu_no_in_gate_no_norm",
        formula=r"\frac{\sigma_t}{n_t} \sum"
        r" \min\big(\tfrac{\mathrm{relu}(q) \cdot \mathrm{relu}(k)}{\sqrt d}, 5\big)\, v",
        kernel=ClampedKernel(ReluKernel(), 5.0),
        normalizer=_VISIBLE,
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "gated_softmax_no_gate",
        formula=r"\mathrm{LN}\big(\tfrac{1}{n_t} \sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=_MEAN_LAYER,
        learned_norm=True,
    ),
    AttentionVariant(
        "gated_softmax_no_gate_L2norm_nodivS",
        formula=r"\mathrm{L2}\big(\sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=_L2,
    ),
    AttentionVariant(
        "gated_softmax_no_gate_L2norm_nodivS_noclamp",
        formula=r"\mathrm{L2}\big(\sum e^{l} v\big)",
        kernel=_EXP,
        normalizer=_L2,
    ),
    AttentionVariant(
        "gated_ReLU_no_gate_L2norm_nodivS_noclamp",
        formula=r"\mathrm{L2}\big(\sum"
        r" \tfrac{\mathrm{relu}(q) \cdot \mathrm{relu}(k)}{\sqrt d}\, v\big)",
        kernel=ReluKernel(),
        normalizer=_L2,
    ),
    AttentionVariant(
        "gated_softmax_out_gate_L2norm_nodivS_noclamp",
        formula=r"\mathrm{L2}\big(\tfrac{\sigma_t}{n_t} \sum e^{l} v\big)",
        kernel=_EXP,
        normalizer=_MEAN_L2,
        output_gate="sigmoid",
        gate_position="before",
    ),
    AttentionVariant(
        "gated_softmax_post_out_gate_L2norm_nodivS_noclamp",
        formula=r"\sigma_t\, \mathrm{L2}\big(\tfrac{1}{n_t} \sum e^{l} v\big)",
        kernel=_EXP,
        normalizer=_MEAN_L2,
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "gated_softmax_no_gate_rmsnorm",
        formula=r"\mathrm{RMS}\big(\tfrac{1}{n_t} \sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=_MEAN_RMS,
        learned_norm=True,
    ),
    AttentionVariant(
        "gated_softmax_no_gate_rmsnorm_nodivS",
        formula=r"\mathrm{RMS}\big(\sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=_RMS,
        learned_norm=True,
    ),
    AttentionVariant(
        "gated_softmax_no_gate_no_norm",
        formula=r"\frac{1}{n_t} \sum e^{c} v",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
    ),
    AttentionVariant(
        "gated_softmax_no_gate_customnorm",
        formula=r"d \cdot \mathrm{L2}\big(\tfrac{1}{n_t} \sum e^{c} v\big)",
        kernel=_CLAMPED,
        normalizer=ChainNormalizer((_VISIBLE, _L2, TimesWidthNormalizer())),
    ),
    AttentionVariant(
        "gated_softmax_cumgate",
        formula=r"\frac{\sum e^{c} v}{\max(1, \sum_{u \le t} e^{g_u})}",
        kernel=_CLAMPED,
        normalizer=_NONE,
        output_gate="running_sum",
    ),
    AttentionVariant(
        "cumulative_gated_softmax",
        formula=r"\frac{e^{-g_t}}{n_t} \sum e^{c} v",
        kernel=_CLAMPED,
        normalizer=_VISIBLE,
        output_gate="exp_negative",
    ),
    AttentionVariant(
        "gated_softmax_plusplus",
        formula=r"\text{gated\_softmax after a convolution}",
        unavailable=_CONVOLUTION,
    ),
    AttentionVariant(
        "gated_softmax_plusplus_extratoks",
        formula=r"\text{gated\_softmax\_plusplus with three masked tokens in front}",
        unavailable=_CONVOLUTION,
    ),
    AttentionVariant(
        "gated_softmax_plusplus_mamba", formula=r"\text{not known}", unavailable=_DELETED
    ),
    AttentionVariant(
        "gated_softmax_plusplus_mamba2", formula=r"\text{not known}", unavailable=_DELETED
    ),
    AttentionVariant(
        "gated_softmax_decay",
        formula=r"\mathrm{LN}\big(\tfrac{\sigma_t}{n_t} \sum e^{c}"
        r" e^{(C_t - C_s)/1024} \iota_s v_s\big),\quad C_t = \sum_{u < t} g_u",
        kernel=_CLAMPED,
        normalizer=_MEAN_LAYER,
        input_gate="sigmoid",
        output_gate="sigmoid",
        gate_position="before",
        decay="signed",
        learned_norm=True,
        rotary=False,
    ),
    AttentionVariant(
        "linear_elu",
        formula=r"\frac{\sum \phi(q) \cdot \phi(k)\, v}{\sum \phi(q) \cdot \phi(k)},\quad"
        r" \phi = \mathrm{elu} + 1",
        kernel=EluPlusOneKernel(),
        scale=1.0,
    ),
    AttentionVariant(
        "linear_relu",
        formula=r"\frac{\sum \phi(q) \cdot \phi(k)\, v}{\sum \phi(q) \cdot \phi(k) + 10^{-8}},"
        r"\quad \phi = \mathrm{relu}",
        kernel=ReluKernel(),
        normalizer=SumNormalizer(eps=1e-8),
        scale=1.0,
    ),
    AttentionVariant(
        "linear_cosine",
        formula=r"\sum (\hat q \cdot \hat k)\, v_s / n_s^{\mathrm{sigmoid}(m)},\quad"
        r" \hat{} \text{ over the heads}",
        kernel=IdentityKernel(),
        normalizer=_NONE,
        scale=1.0,
        input_gate="power_of_position",
        norm_over_heads=True,
    ),
    AttentionVariant(
        "linear_mamba",
        formula=r"\text{Mamba-2, from another package}",
        unavailable="it is a Mamba-2 block of another package and no variant of attention",
    ),
]

_OURS = [
    AttentionVariant("l2", formula=r"\mathrm{L2}\big(\sum e^{l} v\big)", normalizer=_L2),
    AttentionVariant(
        "rms", formula=r"\mathrm{RMS}\big(\sum e^{l} v\big)", normalizer=_RMS, learned_norm=True
    ),
    AttentionVariant(
        "layer",
        formula=r"\mathrm{LN}\big(\sum e^{l} v\big)",
        normalizer=LayerNormalizer(eps=1e-5),
        learned_norm=True,
    ),
    AttentionVariant(
        "gate",
        formula=r"\frac{\sigma_t}{n_t} \sum e^{l} v",
        normalizer=_VISIBLE,
        output_gate="sigmoid",
    ),
    AttentionVariant(
        "gate_without_1_over_t",
        formula=r"\sigma_t \sum e^{l} v",
        normalizer=_NONE,
        output_gate="sigmoid",
    ),
    AttentionVariant("1_over_t", formula=r"\frac{1}{n_t} \sum e^{l} v", normalizer=_VISIBLE),
    AttentionVariant("no_denominator", formula=r"\sum e^{l} v", normalizer=_NONE),
    AttentionVariant(
        "cosine",
        formula=r"n_t^{-\mathrm{sigmoid}(m)} \sum \frac{q \cdot k}{|q|\,|k|}\, v",
        kernel=CosineKernel(),
        normalizer=_NONE,
        scale=1.0,
        output_gate="power_of_position",
    ),
    AttentionVariant(
        "power_2_decay",
        formula=r"\frac{\sum l^2 e^{A_t - A_s} v}{\sum l^2 e^{A_t - A_s}},\quad"
        r" A_t = -\sum_{u \le t} \mathrm{softplus}(g_u)",
        kernel=PolynomialKernel(Polynomial((0, 0, 1))),
        decay="softplus",
    ),
]

VARIANTS = {entry.name: replace(entry, number=n) for n, entry in enumerate(_PAPER, start=1)}
VARIANTS |= {entry.name: entry for entry in _OURS}

EQUALITIES = [
    (("softmax_divS_gate", "softmax_divS_gatev2", "gated_softmax_no_in_gate_no_norm"),
     "a scalar times a sum is the sum of the scaled weights"),
    (("softmax_divs", "gated_softmax_no_gate_no_norm"), "the same formula under two names"),
    (("softmax_divS_norm", "gated_softmax_no_gate_rmsnorm"), "the same formula under two names"),
    (("gated_softmax_no_gate_rmsnorm", "gated_softmax_no_gate_rmsnorm_nodivS"),
     "1/n_t cancels inside the norm, up to its eps"),
    (("softmax_divS_norm", "gated_softmax_no_gate_rmsnorm_nodivS"),
     "1/n_t cancels inside the norm, up to its eps"),
    (("gated_softmax_no_gate_L2norm_nodivS_noclamp", "l2"), "the same formula under two names"),
    (("gated_softmax_no_gate_L2norm_nodivS_noclamp",
      "gated_softmax_out_gate_L2norm_nodivS_noclamp"),
     "a positive scalar (gate, 1/n_t) cancels inside the L2 norm"),
    (("l2", "gated_softmax_out_gate_L2norm_nodivS_noclamp"),
     "a positive scalar (gate, 1/n_t) cancels inside the L2 norm"),
    (("gated_softmax", "gated_softmax_no_out_gate"),
     "the output gate cancels inside the layer norm, up to its eps"),
    (("gated_softmax_no_in_gate", "gated_softmax_no_gate"),
     "the output gate cancels inside the layer norm, up to its eps"),
    (("softmax_clamp_denom", "softmax_detach_denom"),
     "the same values; only the gradient through the denominator differs"),
]  # fmt: skip


def with_clamp(name: str, clamp: float) -> AttentionVariant:
    """A variant with its scores clamped before exp, as most of the paper's runs have them.

    Raises:
        ValueError: if its kernel is not exp.

    Example:
        >>> with_clamp("gate", 5.0).kernel
        ExpKernel(clamp=5.0)
        >>> variant("gate_clamp5").name == with_clamp("gate", 5.0).name == "gate_clamp5"
        True
    """
    base = variant(name)
    if not isinstance(base.kernel, ExpKernel):
        raise ValueError(f"only exp can be clamped; the kernel of {name!r} is {base.kernel!r}")
    name = f"{base.name}_clamp{clamp:g}"
    return replace(base, name=name, kernel=ExpKernel(clamp=clamp), number=None)
