"""Adapt a calibration on text: a few dozen steps that bring the heads nearer to softmax.

The model keeps its own attention and its weights. In every layer, from the same q, k and v, the
heads are computed a second time by the polynomials of the calibration, and what is made small is

    sum over layers, mean over heads:  |W_h (g_h o_h - o_h*)|^2 / |W_h o_h*|^2,

    o_h = sum_s p_h(l_s) v_s / sum_s p_h(l_s),    l_s = tau_h q . (k_s - c),

o_h* the output of softmax, W_h the head's part of the output projection. Trained are the
coefficients of p_h, the temperature tau_h, the gate g_h and the key shift c. A layer's term depends
on that layer only, so it is differentiated while the model runs: the memory is that of one layer.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader

from softattn_lib.calibration import (
    Calibration,
    LayerCalibration,
    common_length,
    describe,
    head_mixing,
)
from softattn_lib.families import chebyshev_basis
from softattn_lib.llama import attention_function, decoder_layers
from softattn_lib.matching import by_head, whitening
from softattn_lib.tasks.training import make_accelerator

LEARNING_RATE = 0.03  # where weights are squares
SIGNED_LEARNING_RATE = 0.003  # where they can be negative: ten times that may end worse


class AdaptedHeads(nn.Module):
    """The heads of one layer, with what is trained of them; all parameters begin at 0.

    The parameters are steps away from the calibration, in coordinates in which a step of one size
    means the same for each: see `choose_coordinates`.

    Args:
        layer: where to begin; its heads have equally many coefficients.
        project: (hidden size, Hq * e), the weight of the layer's output projection.
    """

    def __init__(self, layer: LayerCalibration, project: Tensor):
        super().__init__()
        self.begin, polynomials = layer, layer.polynomials
        self.is_squared = polynomials[0].is_squared
        # A square is positive in any precision; other polynomials need the digits.
        self.dtype = dtype = torch.float32 if self.is_squared else torch.float64
        first = torch.tensor([p.terms for p in polynomials], dtype=dtype)  # (Hq, terms, K)
        shift, gate = layer.key_shift.to(dtype), layer.gate.to(dtype)  # (Hk, d), (Hq,)
        buffers = {
            "first_terms": first,
            "first_shift": shift,
            "first_gate": gate,
            "low": torch.tensor([p.basis[0] for p in polynomials], dtype=dtype),
            "high": torch.tensor([p.basis[1] for p in polynomials], dtype=dtype),
            "mixing": head_mixing(project, len(first)).to(dtype),
            "of_terms": torch.eye(first.shape[-1], dtype=dtype).repeat(len(first), 1, 1),
            "of_shift": torch.eye(shift.shape[-1], dtype=dtype).repeat(len(shift), 1, 1),
        }
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        self.terms = nn.Parameter(torch.zeros_like(first))
        self.log_temperature = nn.Parameter(torch.zeros_like(gate))
        self.gate = nn.Parameter(torch.zeros_like(gate))
        self.key_shift = nn.Parameter(torch.zeros_like(shift))

    @torch.no_grad()
    def choose_coordinates(self, q: Tensor, k: Tensor) -> None:
        """Let a step of size 1 move the weights of a row, or its scores, by about their own size.

        The coefficients get coordinates u with |u|^2 the mean over the rows of sum_s q(l_s)^2 /
        sum_s p(l_s) for a square, of sum_s (p(l_s) / sum_s p)^2 for other polynomials; the key
        shift such that |u|^2 is the variance of its products with the queries.

        Args:
            q, k: as in `output`.
        """
        seen, basis = self._basis(q, k)
        _, total, positive = self._weights(seen, basis)
        unit = total.rsqrt() if self.is_squared else 1 / total
        unit = unit * positive * seen
        rows = torch.stack([values * unit for values in basis], -1).flatten(1, 3)
        self.of_terms = whitening(rows.double() * math.sqrt(q.shape[-2])).to(self.dtype)
        rows = q.unflatten(1, (k.shape[1], -1)).transpose(0, 1).flatten(1, 3).double()
        self.of_shift = whitening(rows - rows.mean(1, keepdim=True)).to(self.dtype)

    def output(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Causal attention by the polynomials, and where it is one.

        Args:
            q: (B, Hq, T, d), with the scale of the scores.
            k, v: (B, Hk, T, d), (B, Hk, T, e).

        Returns:
            (Hq, B, T, e) gated outputs and (Hq, B, T) bool, False where the weights of a row have
            a sum that is not positive; the output is 0 there.
        """
        seen, basis = self._basis(q, k)
        weights, total, positive = self._weights(seen, basis)
        weights = weights / total * positive
        v = v.repeat_interleave(q.shape[1] // v.shape[1], 1).transpose(0, 1).to(self.dtype)
        return weights @ v * by_head(self.first_gate + self.gate, v), positive.squeeze(-1)

    def errors(self, q: Tensor, k: Tensor, v: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """(Hq,) relative squared errors of the heads' outputs, and how many rows they lack.

        Rows of weights whose sum is not positive are left out and counted.

        Args:
            q, k, v: as in `output`.
            target: (B, T, Hq, e), the outputs of softmax.

        Raises:
            ValueError: a head has no row with a positive sum.
        """
        out, positive = self.output(q, k, v)
        mixing, target = self.mixing.unsqueeze(1), target.permute(2, 0, 1, 3).to(self.dtype)
        error = ((out - target) @ mixing).square().sum(-1) * positive
        size = (target @ mixing).square().sum(-1) * positive
        return error.sum((1, 2)) / size.sum((1, 2)), (~positive).sum()

    @torch.no_grad()
    def calibration(self) -> LayerCalibration:
        """Where the parameters are now; a temperature is one of the ends: p(tau s) on [a, b] / tau.

        Raises:
            ValueError: a parameter is not finite.
        """
        terms = self._step_of_terms().double().cpu().unbind(0)
        temperatures = self.log_temperature.double().exp().tolist()
        polynomials = tuple(
            replace(
                old,
                low=old.low / tau,
                high=old.high / tau,
                terms=(torch.tensor(old.terms, dtype=torch.float64) + step).tolist(),
                basis=tuple(end / tau for end in old.basis),
            )
            for old, step, tau in zip(self.begin.polynomials, terms, temperatures, strict=True)
        )
        return LayerCalibration(
            polynomials,
            self.begin.key_shift + self._step_of_shift().float().cpu(),
            self.begin.gate + self.gate.float().cpu(),
        )

    def _step_of_terms(self) -> Tensor:
        return torch.einsum("hij,hcj->hci", self.of_terms, self.terms)

    def _step_of_shift(self) -> Tensor:
        return torch.einsum("gij,gj->gi", self.of_shift, self.key_shift)

    def _basis(self, q: Tensor, k: Tensor) -> tuple[Tensor, list[Tensor]]:
        """(T, T) bool, the visible keys, and T_0(t), T_1(t), ..., each (Hq, B, T, T)."""
        seen = torch.ones(*[q.shape[-2]] * 2, dtype=torch.bool, device=q.device).tril()
        k = k - (self.first_shift + self._step_of_shift()).to(k).unsqueeze(1)
        scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
        scores = scores.transpose(0, 1).to(self.dtype) * by_head(self.log_temperature.exp(), q)
        low, high = by_head(self.low, q), by_head(self.high, q)
        t = ((scores - (low + high) / 2) * (2 / (high - low))).masked_fill(~seen, 0.0)
        return seen, chebyshev_basis(t, self.terms.shape[-1])

    def _weights(self, seen: Tensor, basis: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Weights, their sum over the keys (1 where it is not positive) and whether it is."""
        terms = (self.first_terms + self._step_of_terms()).permute(1, 2, 0)  # (terms, K, Hq)
        values = [sum(by_head(c, b) * b for c, b in zip(x, basis, strict=True)) for x in terms]
        weights = sum(x.square() for x in values) if self.is_squared else sum(values)
        total = (weights * seen).sum(-1, keepdim=True)
        positive = total > 0
        if not (rows := positive.flatten(1).any(1)).all():
            raise ValueError(
                f"the weights of head {rows.tolist().index(False)} have no row with a positive sum "
                "(or no finite one: then lower learning_rate); squares are always positive"
            )
        return weights * seen, total.where(positive, 1.0), positive


@dataclass(frozen=True)
class Match:
    """How near the heads of a model come to softmax.

    Attributes:
        loss: sum over the layers of the mean over the heads of the relative squared error.
        not_positive: rows of weights without a positive sum, over all heads; the loss lacks them.
    """

    loss: float
    not_positive: int


@torch.no_grad()
def match(model, token_ids: Tensor, calibration: Calibration) -> Match:
    """The loss that `adapt` makes small, on some texts (n, T).

    Raises:
        ValueError: the calibration is of another model, or a head has no row with a positive sum.
    """
    calibration.check(model)
    heads, found = _heads(model, calibration).to(model.device), []
    _visit(model, token_ids, lambda layer, *qkvo: found.append(heads[layer].errors(*qkvo)))
    losses, lacking = zip(*found, strict=True)
    return Match(sum(loss.mean().item() for loss in losses), sum(lacking).item())


def adapt(
    model,
    texts: Mapping[str, Tensor],
    calibration: Calibration,
    *,
    steps: int = 100,
    learning_rate: float | None = None,
    batch_size: int = 4,
    seed: int = 0,
    cpu: bool = False,
    on_step: Callable[[int, Match], None] = lambda step, match: None,
) -> Calibration:
    """Train what a calibration holds so that the heads' outputs come nearer to those of softmax.

    Runs as it is under `accelerate launch` and `torchrun`; the batch is that of all processes
    together, the loss the mean of theirs. The model is moved to the device of its process and not
    changed otherwise.

    Args:
        model: that of the calibration, with its own attention in place.
        texts: name -> token ids (n, T), T the same for all; each text is read equally often.
        calibration: where to begin; with 0 steps its numbers come back as they were.
        steps: of AdamW.
        learning_rate: the highest on the way; a step of 0.01 changes weights by about 1%. None for
            `LEARNING_RATE` with squares, `SIGNED_LEARNING_RATE` with other polynomials.
        batch_size: sequences a step, a multiple of the number of processes.
        seed: of the choice of the sequences.
        cpu: use the CPU even where there is an accelerator.
        on_step: called after each step with its number and the `Match` of its batch before it.

    Raises:
        ValueError: arguments that do not fit, a calibration of another model, a head without a row
            of weights with a positive sum, or a loss that is not finite.

    Returns:
        The adapted calibration, whose `adaptations` tell of this one.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from softattn_lib.calibration import calibrate
        >>> config = LlamaConfig(vocab_size=50, hidden_size=12, intermediate_size=20, head_dim=4,
        ...     num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
        ...     initializer_range=0.3)
        >>> model, digits = LlamaForCausalLM(config).eval(), {"digits": torch.arange(20)[None]}
        >>> before = calibrate(model, digits, 2, "square")
        >>> after = adapt(model, digits, before, steps=20, batch_size=1, cpu=True)
        >>> losses = [match(model, digits["digits"], c).loss for c in (before, after)]
        >>> about = after.adaptations[0]
        >>> losses[1] < losses[0], about["steps"], list(about["texts"])
        (True, 20, ['digits'])
    """
    calibration.check(model)
    accelerator = make_accelerator(cpu)
    batches = accelerator.prepare(_batches(texts, steps, batch_size, seed, accelerator))
    device = accelerator.device
    heads = _heads(model.to(device), calibration).to(device)
    if learning_rate is None:
        learning_rate = LEARNING_RATE if heads[0].is_squared else SIGNED_LEARNING_RATE
    first = torch.cat([ids[:1] for ids in texts.values()]).to(device)
    _visit(model, first, lambda layer, q, k, v, out: heads[layer].choose_coordinates(q, k))
    optimizer = torch.optim.AdamW(heads.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    for step, ids in enumerate(batches, start=1):
        on_step(step, _step(model, heads, ids, accelerator))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    about = {"steps": steps, "learning_rate": learning_rate, "batch_size": batch_size, "seed": seed}
    return replace(
        calibration,
        layers=tuple(layer.calibration() for layer in heads),
        adaptations=(*calibration.adaptations, about | {"texts": describe(texts)}),
    )


def _step(model, heads: nn.ModuleList, ids: Tensor, accelerator: Accelerator) -> Match:
    """Leave the gradient of a batch, the mean over the processes, in the parameters."""
    found = []

    def learn(layer, *qkvo):
        with torch.enable_grad():
            errors, lacking = heads[layer].errors(*qkvo)
            accelerator.backward(errors.mean())
        found.append(torch.stack([errors.mean().detach().double(), lacking.double()]))

    _visit(model, ids, learn)
    losses, lacking = accelerator.reduce(torch.stack(found), "sum").T  # (layers,) each
    if not losses.isfinite().all():
        raise ValueError("the loss is not finite any more; lower learning_rate")
    for layer in heads:
        for parameter in layer.parameters():
            parameter.grad = accelerator.reduce(parameter.grad, "mean")
        nn.utils.clip_grad_norm_(layer.parameters(), 1.0)  # its loss depends on no other layer
    return Match(losses.sum().item() / accelerator.num_processes, int(lacking.sum()))


@torch.no_grad()
def _visit(model, token_ids: Tensor, call: Callable) -> None:
    """Run texts (n, T) through a model, and call in each layer with q, k, v and softmax's output.

    The arguments are the layer's index and those of `AdaptedHeads.errors`.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module, query, key, value, attention_mask, *, scaling, **kwargs):
        kwargs["dropout"] = 0.0
        out, rest = sdpa(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
        call(module.layer_idx, (query * scaling).float(), key.float(), value.float(), out.float())
        return out, rest

    with attention_function(model, attention):
        model.base_model(input_ids=token_ids.to(model.device), use_cache=False)


def _rate(step: int, steps: int) -> float:
    """The learning rate as a part of the highest: a tenth of the steps up, then down a cosine."""
    rise = min(1.0, (step + 1) / (1 + steps // 10))
    return rise * (1 + math.cos(math.pi * step / max(steps, 1))) / 2


def _heads(model, calibration: Calibration) -> nn.ModuleList:
    layers = zip(calibration.layers, decoder_layers(model), strict=True)
    return nn.ModuleList(AdaptedHeads(c, layer.self_attn.o_proj.weight) for c, layer in layers)


def _batches(texts, steps: int, batch_size: int, seed: int, accelerator) -> DataLoader:
    """Batches of sequences, each text in turn."""
    common_length(texts)
    if steps < 0 or batch_size < 1 or batch_size % accelerator.num_processes:
        raise ValueError(
            f"steps must be >= 0 and batch_size a multiple of the {accelerator.num_processes} "
            f"processes; got steps={steps}, batch_size={batch_size}"
        )
    generator, groups = torch.Generator().manual_seed(seed), list(texts.values())
    chosen = [groups[i % len(groups)] for i in range(steps * batch_size)]
    drawn = [ids[torch.randint(len(ids), (), generator=generator)] for ids in chosen]
    return DataLoader(drawn, batch_size=batch_size)
