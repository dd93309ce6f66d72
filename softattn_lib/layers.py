"""An attention layer for any variant: projections, rotary embedding, gates, normalizer, memory."""

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import nn

from .attention import attention
from .normalizers import ChainNormalizer, LayerNormalizer, RMSNormalizer
from .numerics import safe_divide
from .parallel import parallel_attention, softmax_attention
from .state import AttentionState
from .variants import (
    LEARNED_GATES,
    VARIANTS,
    AttentionVariant,
    VariantUnavailableError,
    variant,
)

MAX_STATE_FEATURES = 50_000  # per key head; with more, keys and values are remembered instead


@dataclass(frozen=True, eq=False)
class LayerMemory:
    """What a layer remembers of the tokens it has seen; immutable, as the state inside it.

    Attributes:
        visible: (B,), int64: visible tokens so far.
        state: the state of constant size, or None for a variant that has none.
        k, v, key_mask, log_decay: (B, H_k, T, d), (B, H_k, T, e), (B, 1, T), (B, H_k, T): keys and
            values (input gate included) where there is no state, None where there is one.
        gate_sum: (B, H), the running sum of the gate "running_sum", or None.
        last_decay: (B, H_k), the last value of the decay "signed", or None.
    """

    visible: torch.Tensor
    state: AttentionState | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    key_mask: torch.Tensor | None = None
    log_decay: torch.Tensor | None = None
    gate_sum: torch.Tensor | None = None
    last_decay: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the state, or of the keys and values."""
        if self.state is not None:
            return self.state.nbytes
        return sum(x.numel() * x.element_size() for x in (self.k, self.v))

    def map(self, function) -> "LayerMemory":
        """The memory with a function applied to each tensor, for instance a choice of rows."""
        mapped = {
            field.name: function(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        if self.state is not None:
            sums, visible = function(self.state.sums), function(self.state.visible)
            mapped["state"] = replace(self.state, sums=sums, visible=visible)
        return replace(self, **mapped)


class SoftAttention(nn.Module):
    """Attention of any variant, with the projections of a Llama layer.

    Args:
        variant: a name or an `AttentionVariant`.
        hidden_size: width of the layer's input and output.
        num_heads: query heads.
        num_key_value_heads: key heads, a divisor of num_heads; None means num_heads.
        head_dim: d = e; None means hidden_size // num_heads.
        bias: whether q_proj, k_proj, v_proj and o_proj have a bias.
        rotary_base: base of the rotary embedding that the layer computes when it is handed none;
            None for no rotary embedding.

    Its state_dict has the Llama names q_proj, k_proj, v_proj, o_proj; what a variant learns beside
    them is in input_gate, output_gate, decay, norm_weight and norm_bias.

    Raises:
        VariantUnavailableError: for the rows of the paper's code that need another module.

    Example:
        >>> layer = SoftAttention("taylor_2", hidden_size=12, num_heads=3)
        >>> x = torch.randn(2, 5, 12)
        >>> out, memory = layer(x, remember=True)
        >>> more, memory = layer(x[:, :1], memory=memory, remember=True)
        >>> out.shape, more.shape, memory.state.sums.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 1, 12]), torch.Size([2, 3, 15, 5]))
    """

    def __init__(
        self,
        variant_name: str | AttentionVariant,
        hidden_size: int,
        num_heads: int,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = False,
        rotary_base: float | None = 10000.0,
    ):
        super().__init__()
        self.variant = variant(variant_name)
        if self.variant.unavailable:
            raise VariantUnavailableError(
                f"variant {self.variant.name!r} cannot be built: {self.variant.unavailable}"
            )
        self.num_heads = num_heads
        self.num_key_heads = num_key_value_heads or num_heads
        self.head_dim = head_dim or hidden_size // num_heads
        self.rotary_base = rotary_base
        widths = (self.num_heads * self.head_dim, self.num_key_heads * self.head_dim)
        self.q_proj = nn.Linear(hidden_size, widths[0], bias=bias)
        self.k_proj = nn.Linear(hidden_size, widths[1], bias=bias)
        self.v_proj = nn.Linear(hidden_size, widths[1], bias=bias)
        self.o_proj = nn.Linear(widths[0], hidden_size, bias=bias)
        self.hidden_size = hidden_size
        self.reset_learnables()

    def reset_learnables(self, device=None, dtype=None):
        """Make what the variant learns beside the projections anew: gates near 0.5, norms at 1."""
        chosen, hidden_size = self.variant, self.hidden_size
        place = {"device": device, "dtype": dtype}
        if chosen.input_gate == "sigmoid":
            self.input_gate = nn.Linear(hidden_size, self.num_key_heads, **place)
        if chosen.output_gate in LEARNED_GATES:
            self.output_gate = nn.Linear(hidden_size, self.num_heads, **place)
        if "power_of_position" in (chosen.input_gate, chosen.output_gate):
            heads = self.num_key_heads if chosen.input_gate else self.num_heads
            self.position_power = nn.Parameter(torch.full((heads,), 0.5, **place))
        if chosen.decay:
            self.decay = nn.Linear(hidden_size, self.num_key_heads, **place)
        if chosen.learned_norm:
            self.norm_weight = nn.Parameter(torch.ones(self.head_dim, **place))
            if any(isinstance(step, LayerNormalizer) for step in _steps(chosen.normalizer)):
                self.norm_bias = nn.Parameter(torch.zeros(self.head_dim, **place))

    def forward(self, x, *, rotary=None, key_mask=None, memory=None, remember=False, form="auto"):
        """Attend.

        Args:
            x: (B, T, hidden_size).
            rotary: (cos, sin), each (B or 1, T, head_dim), for these tokens; None lets the layer
                compute them, counting from the tokens in the memory.
            key_mask: (B, T) bool, True = visible.
            memory: the `LayerMemory` of the tokens before these.
            remember: return the memory after these tokens.
            form: "parallel", "recurrent", "chunked", or "auto".

        Returns:
            (out, memory): (B, T, hidden_size), and a `LayerMemory` or None.
        """
        batch, length, _ = x.shape
        q, k, v = self._heads(x, rotary, memory)
        visible = torch.ones(batch, length, dtype=torch.bool, device=x.device)
        visible = visible if key_mask is None else key_mask
        past = memory or LayerMemory(visible=x.new_zeros(batch, dtype=torch.int64))
        position = (past.visible.unsqueeze(-1) + visible.cumsum(-1)).unsqueeze(1)  # (B, 1, T)

        input_gate = self._input_gate(x, position)
        if input_gate is not None:
            v = (v * input_gate.unsqueeze(-1)).to(v.dtype)
        output_gate, gate_sum = self._output_gate(x, position, visible, past)
        log_decay, last_decay = self._log_decay(x, past)
        kept = replace(past, visible=position[:, 0, -1], gate_sum=gate_sum, last_decay=last_decay)
        out, kept = self._attend(
            q, k, v, past, kept, remember, form,
            output_gate=output_gate, log_decay=log_decay,
            key_mask=None if key_mask is None else key_mask.unsqueeze(1),
        )  # fmt: skip
        out = out.transpose(1, 2).reshape(batch, length, -1)
        return self.o_proj(out), kept if remember else None

    def _heads(self, x, rotary, memory):
        """Queries (B, H, T, d), keys and values (B, H_k, T, d), rotated where the variant is."""
        q, k, v = (
            projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.variant.norm_over_heads:
            q, k = (
                safe_divide(y, torch.linalg.vector_norm(y, dim=1, keepdim=True)) for y in (q, k)
            )
        if self.variant.rotary and (rotary is not None or self.rotary_base is not None):
            cos, sin = rotary or self._rotary(x, memory)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        return q, k, v

    def _rotary(self, x, memory):
        start = 0 if memory is None else memory.visible.max().item()
        return rotary_embedding(x.shape[1], self.head_dim, self.rotary_base, start, like=x)

    def _input_gate(self, x, position):
        if self.variant.input_gate == "sigmoid":
            return self.input_gate(x).sigmoid().mT
        if self.variant.input_gate == "power_of_position":
            return self._power(position)
        return None

    def _power(self, position):
        exponent = -self.position_power.sigmoid().unsqueeze(-1)
        return position.clamp(min=1).to(exponent.dtype) ** exponent

    def _output_gate(self, x, position, visible, past):
        """(B, H, T), and the running sum (B, H) that the next tokens need."""
        kind = self.variant.output_gate
        if kind is None:
            return None, None
        if kind == "power_of_position":
            return self._power(position), None
        g = self.output_gate(x).mT
        if kind == "sigmoid":
            return g.sigmoid(), None
        if kind == "exp_negative":
            return (-g).exp(), None
        total = (g.exp() * visible.unsqueeze(1)).cumsum(-1)
        if past.gate_sum is not None:
            total = total + past.gate_sum.unsqueeze(-1)
        return 1 / total.clamp(min=1), total[..., -1]

    def _log_decay(self, x, past):
        """(B, H_k, T), and the last value (B, H_k) that the next tokens need."""
        if self.variant.decay is None:
            return None, None
        g = self.decay(x).mT
        if self.variant.decay == "softplus":
            return -F.softplus(g), None
        first = torch.zeros_like(g[..., 0]) if past.last_decay is None else past.last_decay
        shifted = torch.cat([first.unsqueeze(-1), g[..., :-1]], dim=-1)
        return shifted / 1024, g[..., -1]

    def _attend(self, q, k, v, past, kept, remember, form, **options):
        """(B, H, T, e) and the memory after these tokens."""
        options["enable_gqa"] = self.num_heads != self.num_key_heads
        if self.keeps_state:
            out, state = attention(
                q, k, v, form=form, initial_state=past.state, return_state=remember, **options,
                **self._core(),
            )  # fmt: skip
            return out, replace(kept, state=state)
        k, v, options = _append(past, k, v, options)
        kept = replace(kept, k=k, v=v, **{n: options[n] for n in ("key_mask", "log_decay")})
        if self._is_plain_softmax:
            names = ("enable_gqa", "key_mask")
            return softmax_attention(q, k, v, **{n: options[n] for n in names}), kept
        out, _ = parallel_attention(q, k, v, return_state=False, **options, **self._core())
        return out, kept

    @property
    def keeps_state(self) -> bool:
        """Whether the layer remembers a state of constant size, or keys and values."""
        kernel = self.variant.kernel
        return kernel.has_features and kernel.num_features(self.head_dim) <= MAX_STATE_FEATURES

    @property
    def _is_plain_softmax(self) -> bool:
        return self.variant is VARIANTS["softmax"]

    def _core(self) -> dict:
        chosen = self.variant
        return {
            "kernel": chosen.kernel,
            "normalizer": self._normalizer(chosen.normalizer),
            "scale": chosen.scale,
            "gate_position": chosen.gate_position,
        }

    def _normalizer(self, normalizer):
        """The variant's normalizer with this layer's learned weights in it."""
        if not self.variant.learned_norm:
            return normalizer
        if isinstance(normalizer, ChainNormalizer):
            return ChainNormalizer(tuple(self._normalizer(step) for step in normalizer.steps))
        if isinstance(normalizer, LayerNormalizer):
            return replace(normalizer, weight=self.norm_weight, bias=self.norm_bias)
        if isinstance(normalizer, RMSNormalizer):
            return replace(normalizer, weight=self.norm_weight)
        return normalizer


def rotary_embedding(length, head_dim, base, start=0, like=None):
    """(cos, sin), each (1, length, head_dim), of the positions start..start+length-1.

    Source: Su et al., RoFormer (2021), in Llama's layout: entry i turns with entry i + d / 2.
    """
    rates = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(start, start + length, dtype=torch.float64).unsqueeze(-1) * rates
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(0)
    return angles.cos().to(like), angles.sin().to(like)


def rotate(x, cos, sin):
    """Rotate x (B, H, T, d) by cos, sin (B or 1, T, d), which may be of a longer dtype."""
    low, high = x.chunk(2, dim=-1)
    turned = x * cos.unsqueeze(1) + torch.cat([-high, low], dim=-1) * sin.unsqueeze(1)
    return turned.to(x.dtype)


def _steps(normalizer):
    return normalizer.steps if isinstance(normalizer, ChainNormalizer) else (normalizer,)


def _append(past, k, v, options):
    """Keys, values, mask and decay of the memory with the new ones behind them."""
    if past.k is None:
        return k, v, options
    options = dict(options)
    new_mask, old_mask = options["key_mask"], past.key_mask
    if new_mask is not None or old_mask is not None:
        ones = k.new_ones(k.shape[0], 1, 1, dtype=torch.bool)
        old_mask = ones.expand(-1, -1, past.k.shape[-2]) if old_mask is None else old_mask
        new_mask = ones.expand(-1, -1, k.shape[-2]) if new_mask is None else new_mask
        options["key_mask"] = torch.cat([old_mask, new_mask], dim=-1)
    if past.log_decay is not None:
        options["log_decay"] = torch.cat([past.log_decay, options["log_decay"]], dim=-1)
    return torch.cat([past.k, k], dim=-2), torch.cat([past.v, v], dim=-2), options
