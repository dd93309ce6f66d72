"""Associative recall: what a single attention layer can look up, in seconds on a CPU.

A sequence is P pairs, then P queries. The token of a pair is the embedding of a key plus that of a
value; the token of a query is the embedding of one of the keys plus that of a blank value. At each
query the model has to name the value that stood with the key. One attention layer without
positions and a linear read-out: whatever the accuracy shows, the attention made it.
"""

import math
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from softattn_lib.layers import SoftAttention
from softattn_lib.tasks.records import code_version, machine
from softattn_lib.tasks.settings import changed, check, label
from softattn_lib.variants import AttentionVariant, variant

TEST_BATCHES = 16
TEST_SEED = 2**32  # plus the seed of the run: sequences that no run trains on


@dataclass(frozen=True)
class RecallSettings:
    """The task and how it is trained.

    Attributes:
        pairs: P, the pairs to remember; as many queries follow.
        symbols: how many keys there are, and how many values; the P keys of a sequence differ.
        heads, head_dim: of the attention layer, whose width is heads * head_dim. With one head
            and a norm before the read-out denominators could not matter; there are two.
        batch_size, steps: sequences in a step, and steps. Each step draws new sequences.
        learning_rate: of Adam, after a linear warm-up and along a cosine to 0. At 1e-3 the models
            stay for long on a plateau where they guess any of the values in the sequence.
        warmup_steps: of the learning rate.
        clip_norm: the gradient is clipped at this norm.

    Raises:
        ValueError: a number that is not legal, or more pairs than symbols.
    """

    pairs: int = 16
    symbols: int = 32
    heads: int = 2
    head_dim: int = 8
    batch_size: int = 64
    steps: int = 600
    learning_rate: float = 1e-2
    warmup_steps: int = 20
    clip_norm: float = 1.0

    def __post_init__(self):
        check(self)
        if self.pairs > self.symbols:
            raise ValueError(f"pairs is {self.pairs}; there are only {self.symbols} symbols")


@dataclass(frozen=True, eq=False)
class RecallResult:
    """What came out of one run.

    Attributes:
        variant, seed, settings: of the run.
        accuracy: share of queries answered with the right value, on new sequences. Naming any
            value of the sequence gives 1/P + (1 - 1/P) / symbols, for equal values count too;
            blind guessing 1/symbols. NaN if it diverged.
        loss: mean cross-entropy of those queries, in nats. NaN if it diverged.
        losses: the training loss of each step, in nats.
        seconds: of training and testing.
        model: the trained `RecallModel`.
    """

    variant: str
    seed: int
    settings: RecallSettings
    accuracy: float
    loss: float
    losses: list[float]
    seconds: float
    model: nn.Module

    def row(self) -> dict:
        """The result as a row of a table, with the code and the machine it comes from."""
        return {
            "task": "recall",
            "variant": self.variant,
            "preset": label("recall", self.settings, RecallSettings()),
            "seed": self.seed,
            "status": "diverged" if math.isnan(self.loss) else "finished",
            "steps": len(self.losses),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "accuracy": f"{self.accuracy:.4f}",
            "held_out_loss": f"{self.loss:.4f}",
            "seconds": f"{self.seconds:.3g}",
            "commit": code_version(),
            "machine": machine(),
        }


class RecallModel(nn.Module):
    """Embeddings, one attention layer of a variant, a linear read-out."""

    def __init__(self, variant_name: str | AttentionVariant, settings: RecallSettings):
        super().__init__()
        width = settings.heads * settings.head_dim
        self.keys = nn.Embedding(settings.symbols, width)
        self.values = nn.Embedding(settings.symbols + 1, width)  # the last one is the blank
        self.readout = nn.Linear(width, settings.symbols)
        # Last, so that what a variant learns beside the projections moves no other weight.
        self.attention = SoftAttention(variant_name, width, settings.heads, rotary_base=None)

    def forward(self, keys, values):
        """(B, 2P) keys and values -> (B, P, symbols), a score for each value at each query."""
        out, _ = self.attention(self.keys(keys) + self.values(values))
        return self.readout(out[:, keys.shape[1] // 2 :])


def recall_batch(settings: RecallSettings, generator: torch.Generator):
    """One batch of sequences.

    Returns:
        (keys, values, targets): int64, (B, 2P), (B, 2P) and (B, P). The queries ask for all keys of
        their sequence, in another order; their value is the blank, number `symbols`.

    >>> settings = RecallSettings(pairs=3, symbols=5, batch_size=1)
    >>> keys, values, targets = recall_batch(settings, torch.Generator().manual_seed(0))
    >>> pairs = dict(zip(keys[0, :3].tolist(), values[0, :3].tolist()))
    >>> [pairs[key] for key in keys[0, 3:].tolist()] == targets[0].tolist()
    True
    """
    size, pairs = settings.batch_size, settings.pairs
    keys = torch.rand(size, settings.symbols, generator=generator).argsort(-1)[:, :pairs]
    values = torch.randint(settings.symbols, (size, pairs), generator=generator)
    order = torch.rand(size, pairs, generator=generator).argsort(-1)
    blanks = torch.full_like(values, settings.symbols)
    keys_and_queries = torch.cat([keys, keys.gather(1, order)], dim=1)
    return keys_and_queries, torch.cat([values, blanks], dim=1), values.gather(1, order)


def recall(
    variant_name: str | AttentionVariant, *, seed: int = 0, on_step=None, **settings
) -> RecallResult:
    """Train one variant on associative recall, and test it on new sequences.

    Args:
        variant_name: a name as in `variants.variant`, or an `AttentionVariant`.
        seed: of the weights and of the sequences.
        on_step: called with (step, loss) after each step.
        settings: fields of `RecallSettings` that are to differ.

    Raises:
        KeyError, VariantUnavailableError: an unknown variant, or one that cannot be built.
        ValueError: settings that do not exist, or of illegal value.

    >>> result = recall("softmax", pairs=2, symbols=4, steps=5)
    >>> len(result.losses), 0 <= result.accuracy <= 1
    (5, True)
    """
    settings, start = changed(RecallSettings(), settings), time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = RecallModel(variant_name, settings)
    losses = []
    try:
        for loss in _training_steps(model, settings, torch.Generator().manual_seed(seed)):
            losses.append(loss)
            if on_step:
                on_step(len(losses), loss)
        accuracy, loss = _test(model, settings, torch.Generator().manual_seed(TEST_SEED + seed))
    except OverflowError:
        accuracy = loss = math.nan
    return RecallResult(
        variant=variant(variant_name).name,
        seed=seed,
        settings=settings,
        accuracy=accuracy,
        loss=loss,
        losses=losses,
        seconds=time.perf_counter() - start,
        model=model,
    )


def _training_steps(model, settings, generator):
    """Train, and yield the loss of each step; OverflowError if it diverges."""
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, settings))
    for _ in range(settings.steps):
        keys, values, targets = recall_batch(settings, generator)
        loss = F.cross_entropy(model(keys, values).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        schedule.step()
        if not loss.isfinite():
            raise OverflowError(f"the loss is {loss.item()}")
        yield loss.item()


def _rate(step: int, settings: RecallSettings) -> float:
    """Share of the learning rate: up in a line, down along a cosine."""
    warmup = min(1.0, (step + 1) / settings.warmup_steps)
    return warmup * 0.5 * (1 + math.cos(math.pi * step / settings.steps))


@torch.no_grad()
def _test(model, settings, generator) -> tuple[float, float]:
    batches = replace(settings, batch_size=settings.batch_size * TEST_BATCHES)
    keys, values, targets = recall_batch(batches, generator)
    scores = model(keys, values).flatten(0, 1)
    accuracy = (scores.argmax(-1) == targets.flatten()).float().mean()
    return accuracy.item(), F.cross_entropy(scores, targets.flatten()).item()
