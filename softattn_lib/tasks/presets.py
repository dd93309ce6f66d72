"""Sizes of model and training, from half a minute on one core to the paper's two models."""

from dataclasses import dataclass

from softattn_lib.tasks.settings import changed, check, check_choice, label

SCHEDULES = ("cosine", "linear")
CLIPPED = ("all", "gated")
PRECISIONS = ("no", "fp16", "bf16")


@dataclass(frozen=True)
class Preset:
    """A Llama model, its data and its training.

    The batch is that of a step as a whole. More processes, or accumulating over more parts, change
    time and memory and not the result, rounding apart.

    Attributes:
        hidden_size, mlp_size, layers, heads: of the model. Heads have hidden_size / heads
            entries; there are as many key heads as query heads.
        tokenizer: "characters" or "bytes"; "bpe", trained on the text; or the path of a
            tokenizer.json of Hugging Face's format.
        vocab_size: tokens that the model knows; None takes what the tokenizer has.
        length: tokens of a training sequence.
        batch_size: sequences of a step.
        accumulate: parts that the batch is worked off in.
        steps: optimizer steps.
        learning_rate: at the end of the warm-up, of AdamW (0.9, 0.999).
        warmup_steps: steps in which the learning rate grows in a line from 0.
        decay_steps: step at which the learning rate would be 0; None means `steps`.
        schedule: "linear" or "cosine" from the learning rate down to 0.
        weight_decay, epsilon: of AdamW.
        clip: "gated" clips the gradients of variants with learned gates only, as the paper has
            it; "all" those of every variant.
        clip_norm: the norm at which they are clipped.
        precision: "no" for float32; "bf16" or "fp16" for mixed precision.
        held_out: share of the text that is not trained on.
        held_out_sequences: how many sequences of it are tried at most.
        evaluate_every: steps between two evaluations; there is one more at the end.
        checkpoint_every: steps between two checkpoints, where a folder is given.

    Raises:
        ValueError: a value that is not legal, or heads that do not divide hidden_size.
    """

    hidden_size: int
    mlp_size: int
    layers: int
    heads: int
    length: int
    batch_size: int
    steps: int
    learning_rate: float
    warmup_steps: int
    evaluate_every: int
    checkpoint_every: int
    tokenizer: str = "characters"
    vocab_size: int | None = None
    accumulate: int = 1
    decay_steps: int | None = None
    schedule: str = "cosine"
    weight_decay: float = 0.01
    epsilon: float = 1e-8
    clip: str = "all"
    clip_norm: float = 1.0
    precision: str = "no"
    held_out: float = 0.05
    held_out_sequences: int = 512

    def __post_init__(self):
        check(self, may_be_zero=("warmup_steps",))
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("clip", self.clip, CLIPPED)
        check_choice("precision", self.precision, PRECISIONS)
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"hidden_size is {self.hidden_size}, which {self.heads} heads do not divide into "
                "even parts (rotary embedding turns pairs of entries)"
            )
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"batch_size is {self.batch_size}, which accumulate={self.accumulate} "
                "does not divide"
            )
        if not 0 < self.held_out < 1:
            raise ValueError(f"held_out must be between 0 and 1, got {self.held_out}")

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.length


# One core of a laptop. A learning rate this high needs every gradient clipped, and a cosine.
_SMALL = {
    "hidden_size": 64,
    "mlp_size": 128,
    "layers": 2,
    "heads": 4,
    "batch_size": 16,
    "learning_rate": 3e-3,
    "warmup_steps": 50,
}

# The paper trains for 100,000 steps of 36 sequences, and speaks of a linear decay. Its code lets
# the learning rate fall towards step 1,000,000, so that it ends at 0.909 of its peak: as here.
# With decay_steps=100_000 it would fall to 0. One sequence in a thousand is held out.
_PAPER = {
    "layers": 20,
    "heads": 16,
    "tokenizer": "bpe",
    "vocab_size": 32_000,
    "length": 1024,
    "batch_size": 36,
    "steps": 100_000,
    "learning_rate": 1e-4,
    "warmup_steps": 10_000,
    "decay_steps": 1_000_000,
    "schedule": "linear",
    "epsilon": 1e-7,
    "clip": "gated",
    "precision": "bf16",
    "held_out": 0.001,
    "held_out_sequences": 1_000_000,
    "evaluate_every": 10_000,
    "checkpoint_every": 1_000,
}

PRESETS = {
    "mini": Preset(**_SMALL, length=64, steps=400, evaluate_every=200, checkpoint_every=100),
    "small": Preset(**_SMALL, length=96, steps=500, evaluate_every=250, checkpoint_every=100),
    "paper-300m": Preset(**_PAPER, hidden_size=1024, mlp_size=2048),
    "paper-2b": Preset(**_PAPER, hidden_size=3072, mlp_size=6144),
}


def preset(name: str, **changes) -> tuple[str, Preset]:
    """A preset with some of its fields changed, and the label that tells it apart.

    Raises:
        KeyError: an unknown preset.
        ValueError: a change of a field that does not exist, or to an illegal value.

    >>> preset("mini", steps=10, tokenizer="bytes")[0]
    'mini steps=10 tokenizer=bytes'
    """
    if name not in PRESETS:
        raise KeyError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    chosen = changed(PRESETS[name], changes)
    return label(name, chosen, PRESETS[name]), chosen
