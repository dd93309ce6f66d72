"""Train a Llama with the attention of any variant: on one core, or on many accelerators.

Devices, processes, mixed precision and checkpoints are Hugging Face accelerate's. The same call
runs under `accelerate launch` and `torchrun`, and gives the same losses there up to rounding: the
batch of a preset is the batch of all processes together.
"""

import json
import math
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import AcceleratorState
from accelerate.utils import load_checkpoint_in_model
from torch.utils.data import DataLoader, Subset
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler

from softattn_lib.llama import swap_attention
from softattn_lib.tasks.presets import Preset, preset
from softattn_lib.tasks.records import append_row, check_columns, code_version, machine, write_rows
from softattn_lib.tasks.text import Corpus, corpus_for, tokenizer_from_state
from softattn_lib.variants import AttentionVariant, variant

LOG_EVERY = 10  # steps; between them losses stay on the device
RUN, RESULT, CURVE = "run.json", "result.json", "curve.csv"  # files of a run's folder
COLUMNS = [  # of a table of results
    "task", "variant", "preset", "seed", "text", "status", "steps", "tokens", "parameters",
    "train_loss", "held_out_loss", "seconds", "processes", "commit", "machine",
]  # fmt: skip


@dataclass
class History:
    """What has happened in a run so far.

    Attributes:
        losses: mean training loss of each step, nats per token.
        gradient_norms: of each step, before clipping.
        evaluations: (step, held-out loss in nats per token).
        seconds: of training and evaluating, over all parts of an interrupted run.
    """

    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """Steps done."""
        return len(self.losses)

    def state_dict(self):
        return asdict(self)

    def load_state_dict(self, state):
        vars(self).update(state)


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """What came out of one run.

    Attributes:
        variant, seed: of the run.
        preset: its settings; preset_name, the name with what was changed.
        text: name of the text.
        held_out_loss: at the end, nats per token; NaN if the run diverged.
        history: losses, gradient norms and evaluations on the way.
        parameters: learnable numbers in the model.
        processes, device: how many ran, and on what kind of device.
        model, tokenizer: trained, and what it reads.
    """

    variant: str
    preset_name: str
    preset: Preset
    seed: int
    text: str
    held_out_loss: float
    history: History
    parameters: int
    processes: int
    device: torch.device
    model: LlamaForCausalLM
    tokenizer: object

    @property
    def train_loss(self) -> float:
        """Mean training loss of the last tenth of the steps, nats per token."""
        last = self.history.losses[-max(1, self.history.step // 10) :]
        return sum(last) / len(last) if last else math.nan

    def row(self) -> dict:
        """The result as a row of a table, with the code and the machine it comes from."""
        return {
            "task": "text",
            "variant": self.variant,
            "preset": self.preset_name,
            "seed": self.seed,
            "text": self.text,
            "status": "diverged" if math.isnan(self.held_out_loss) else "finished",
            "steps": self.history.step,
            "tokens": self.history.step * self.preset.tokens_per_step,
            "parameters": self.parameters,
            "train_loss": f"{self.train_loss:.4f}",
            "held_out_loss": f"{self.held_out_loss:.4f}",
            "seconds": f"{self.history.seconds:.3g}",
            "processes": self.processes,
            "commit": code_version(),
            "machine": machine(self.device),
        }


def train(
    variant_name: str | AttentionVariant,
    preset_name: str = "mini",
    *,
    text=None,
    column: str = "text",
    seed: int = 0,
    folder: str | Path | None = None,
    results: str | Path | None = None,
    cpu: bool = False,
    show_progress: bool = False,
    on_progress=None,
    **changes,
) -> TrainingResult:
    """Train a language model with the attention of a variant, and test it on held-out text.

    Args:
        variant_name: a name as in `variants.variant`, or an `AttentionVariant`.
        preset_name: one of `presets.PRESETS`.
        text, column: see `text.make_corpus`; None is the text that comes with the package.
        seed: of the weights and of the order of the sequences.
        folder: where checkpoints, the curve and the trained model go; None keeps nothing. A run
            that was interrupted there goes on where its last checkpoint is, with the very losses
            that it would have had.
        results: CSV file that a row with the result is appended to.
        cpu: use the CPU even where there is an accelerator.
        show_progress: show a bar with the loss and tokens per second.
        on_progress: called with the `History` every 10 steps.
        changes: fields of the preset that are to differ.

    Raises:
        KeyError, VariantUnavailableError: an unknown variant or preset, or one that cannot be
            built.
        ValueError: changes or a text that do not fit; a folder that holds another run.
        FileExistsError: a folder that holds a finished run.

    >>> result = train("taylor_2", "mini", steps=2, length=8, held_out_sequences=2)
    >>> result.preset_name, len(result.history.losses)
    ('mini length=8 steps=2 held_out_sequences=2', 2)
    """
    chosen = variant(variant_name)
    preset_name, settings = preset(preset_name, **changes)
    if results:
        check_columns(results, COLUMNS)
    accelerator = _accelerator(settings, cpu)
    corpus = corpus_for(settings, text, column)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        run = _Run(accelerator, chosen, settings, corpus, seed)
        store = _Store(folder, accelerator, run.describe()) if folder else None
        held_out_loss = run.finish(store, show_progress, on_progress)
    result = TrainingResult(
        variant=chosen.name,
        preset_name=preset_name,
        preset=settings,
        seed=seed,
        text=corpus.name,
        held_out_loss=held_out_loss,
        history=run.history,
        parameters=sum(p.numel() for p in run.bare_model.parameters()),
        processes=accelerator.num_processes,
        device=accelerator.device,
        model=accelerator.unwrap_model(run.model, keep_fp32_wrapper=False),
        tokenizer=corpus.tokenizer,
    )
    if store:
        store.keep(result, run.model)
    if results and accelerator.is_main_process:
        append_row(results, result.row())
    return result


def build_model(
    variant_name: str | AttentionVariant, settings: Preset, vocab_size: int
) -> LlamaForCausalLM:
    """A new Llama of a preset's size, with the attention of a variant.

    Embedding and read-out have weights of their own. Weights are normal with the variance that
    `torch.nn.Linear` gives to the projections of this width, as in the paper's code.

    >>> from softattn_lib.tasks.presets import PRESETS
    >>> with torch.device("meta"):  # no memory, no numbers
    ...     model = build_model("softmax", PRESETS["paper-300m"], vocab_size=32_000)
    >>> sum(p.numel() for p in model.parameters())
    275293184
    """
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.mlp_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        max_position_embeddings=settings.length,
        initializer_range=(3 * settings.hidden_size) ** -0.5,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    swap_attention(model, variant_name)
    return model


def load_trained(folder: str | Path, variant_name: AttentionVariant | None = None):
    """The model that a run has left in its folder.

    Args:
        folder: the one that `train` was given.
        variant_name: the variant, where its name is not known to `variants.variant`.

    Returns:
        (model, tokenizer): a ``LlamaForCausalLM`` ready to evaluate, and its tokenizer.

    Raises:
        FileNotFoundError: no finished run is there.
    """
    folder = Path(folder)
    if not (folder / RESULT).is_file():
        raise FileNotFoundError(f"folder is {str(folder)!r}, which holds no finished run")
    run = json.loads((folder / RUN).read_text())
    tokenizer = tokenizer_from_state(run["tokenizer_state"])
    with torch.random.fork_rng(devices=[]):  # its first weights are replaced at once
        chosen = variant_name or run["variant"]
        model = build_model(chosen, Preset(**run["preset"]), tokenizer.size)
    load_checkpoint_in_model(model, folder, strict=True)
    return model.eval(), tokenizer


def make_accelerator(cpu: bool, precision: str = "no", accumulate: int = 1) -> Accelerator:
    """Hugging Face accelerate's, for batches that all processes share; see `Preset`."""
    # accelerate keeps it for the whole process, where an earlier run may have had another precision
    AcceleratorState._reset_state()
    return Accelerator(
        # Without an accelerator it has to be told, or processes would not know of each other.
        cpu=cpu or not torch.accelerator.is_available(),
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(split_batches=True),
    )


def _accelerator(settings: Preset, cpu: bool) -> Accelerator:
    accelerator = make_accelerator(cpu, settings.precision, settings.accumulate)
    if settings.batch_size // settings.accumulate % accelerator.num_processes:
        raise ValueError(
            f"batch_size={settings.batch_size} in accumulate={settings.accumulate} parts cannot be "
            f"shared by {accelerator.num_processes} processes; choose a multiple of them"
        )
    return accelerator


class _Run:
    """Model, optimizer, data and history of one run, prepared by accelerate."""

    def __init__(self, accelerator, chosen, settings: Preset, corpus: Corpus, seed: int):
        self.accelerator, self.variant, self.settings = accelerator, chosen, settings
        self.corpus, self.seed, self.history = corpus, seed, History()
        self.bare_model = build_model(chosen, settings, corpus.tokenizer.size)
        optimizer = torch.optim.AdamW(
            self.bare_model.parameters(),
            lr=settings.learning_rate,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )
        schedule = get_scheduler(
            settings.schedule,
            optimizer,
            num_warmup_steps=settings.warmup_steps,
            num_training_steps=settings.decay_steps or settings.steps,
        )
        part = settings.batch_size // settings.accumulate
        order = torch.randint(
            len(corpus.train),
            (settings.steps * settings.batch_size,),
            generator=torch.Generator().manual_seed(seed),
        )
        tried = range(min(settings.held_out_sequences, len(corpus.held_out)))
        self.model, self.optimizer, self.schedule, self.batches, self.test_batches = (
            accelerator.prepare(
                self.bare_model,
                optimizer,
                schedule,
                DataLoader(Subset(corpus.train, order.tolist()), batch_size=part),
                DataLoader(Subset(corpus.held_out, tried), batch_size=part),
            )
        )
        accelerator.register_for_checkpointing(self.history)

    def describe(self) -> dict:
        """What makes the run the one it is, to compare with what a folder holds."""
        return {
            "variant": self.variant.name,
            "preset": asdict(self.settings),
            "seed": self.seed,
            "corpus": self.corpus.fingerprint,
            "tokenizer_state": self.corpus.tokenizer.state(),
        }

    def finish(self, store, show_progress, on_progress) -> float:
        """Train up to the last step, from the last checkpoint if there is one.

        Returns the held-out loss, NaN where training diverged.
        """
        if store:
            store.restore()
        history, tokens = self.history, self.settings.tokens_per_step
        bar = tqdm(
            desc=self.variant.name,
            total=self.settings.steps * tokens,
            initial=history.step * tokens,
            unit=" tokens",
            unit_scale=True,
            disable=not (show_progress and self.accelerator.is_main_process),
        )
        try:
            for _ in self._steps():
                bar.update(history.step * tokens - bar.n)
                bar.set_postfix(loss=f"{history.losses[-1]:.3f}")
                if store and history.step % self.settings.checkpoint_every == 0:
                    store.checkpoint(history.step)
                if on_progress:
                    on_progress(history)
        except OverflowError:
            if self.accelerator.num_processes > 1:
                raise  # the other processes may not have met it
            return math.nan
        finally:
            bar.close()
        return history.evaluations[-1][1]

    def _steps(self):
        """Train, and yield whenever the history has been brought up to date."""
        accelerator, history, settings = self.accelerator, self.history, self.settings
        clips = settings.clip == "all" or self.variant.clips_gradient
        max_norm = settings.clip_norm if clips else math.inf
        done = history.step * settings.accumulate
        start, losses, norms = time.perf_counter(), [], []
        for ids in accelerator.skip_first_batches(self.batches, done):
            with accelerator.accumulate(self.model):
                loss = next_token_losses(self.model, ids).mean()
                accelerator.backward(loss)
                losses.append(loss.detach())
                if accelerator.sync_gradients:
                    norms.append(accelerator.clip_grad_norm_(self.model.parameters(), max_norm))
                self.optimizer.step()
                self.schedule.step()
                self.optimizer.zero_grad()
            if accelerator.sync_gradients and self._is_due(history.step + len(norms)):
                self._record(losses, norms)
                now = time.perf_counter()
                history.seconds += now - start
                start, losses, norms = now, [], []
                yield

    def _is_due(self, step) -> bool:
        settings = self.settings
        intervals = (LOG_EVERY, settings.evaluate_every, settings.checkpoint_every)
        return step == settings.steps or any(step % interval == 0 for interval in intervals)

    def _record(self, losses, norms) -> None:
        """Bring the history up to date; OverflowError where the loss is not finite any more."""
        history, settings = self.history, self.settings
        losses = self.accelerator.reduce(torch.stack(losses), "mean")
        history.losses += losses.view(-1, settings.accumulate).mean(-1).tolist()
        history.gradient_norms += torch.stack(norms).tolist()
        if not losses.isfinite().all():
            raise OverflowError(f"the loss is not finite at step {history.step}")
        if history.step % settings.evaluate_every == 0 or history.step == settings.steps:
            history.evaluations.append((history.step, self._held_out_loss()))

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self.model.eval()
        losses = [
            self.accelerator.gather_for_metrics(next_token_losses(self.model, ids))
            for ids in self.test_batches
        ]
        self.model.train()
        return torch.cat(losses).mean().item()


def next_token_losses(model, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of each sequence, in nats per token.

    Args:
        ids: (B, T + 1); the first T are read, each foretells the one after it.

    Returns:
        (B,) in float32.
    """
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits.float()
    return F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(-1)


class _Store:
    """The folder of one run: what it is, its last checkpoint, and at the end what came out."""

    def __init__(self, folder, accelerator: Accelerator, run: dict):
        self.folder, self.accelerator = Path(folder), accelerator
        if (self.folder / RESULT).exists():
            raise FileExistsError(f"folder {str(folder)!r} holds a finished run; choose another")
        file = self.folder / RUN
        if file.exists():
            _check_same_run(folder, json.loads(file.read_text()), run)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(run, indent=1) + "\n")

    def _checkpoints(self) -> list[Path]:
        """Complete checkpoints, oldest first."""
        return sorted(self.folder.glob("step-*[0-9]"))

    def restore(self) -> None:
        """Load the last checkpoint, if there is one."""
        for last in self._checkpoints()[-1:]:
            self.accelerator.load_state(last)

    def checkpoint(self, step: int) -> None:
        """Write a checkpoint, and only then delete those before it."""
        name = f"step-{step:09d}"
        partial = self.folder / f"{name}.partial"
        self.accelerator.save_state(partial)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            partial.rename(self.folder / name)
            self._remove_checkpoints(keep=name)

    def keep(self, result: TrainingResult, model) -> None:
        """Write model, curve and result; a finished run needs no checkpoint."""
        self.accelerator.save_model(model, self.folder)
        if self.accelerator.is_main_process:
            _write_curve(self.folder / CURVE, result.history)
            (self.folder / RESULT).write_text(json.dumps(result.row(), indent=1) + "\n")
            self._remove_checkpoints()

    def _remove_checkpoints(self, keep: str = "") -> None:
        for checkpoint in self.folder.glob("step-*"):
            if checkpoint.name != keep:
                shutil.rmtree(checkpoint)


def _check_same_run(folder, found: dict, run: dict) -> None:
    """Raise a ValueError that names what differs, if two descriptions do."""
    pairs = {name: (found[name], run[name]) for name in run if name != "preset"}
    pairs |= {name: (found["preset"][name], value) for name, value in run["preset"].items()}
    differing = [
        name if name in ("corpus", "tokenizer_state") else f"{name} ({old} there, {new} now)"
        for name, (old, new) in pairs.items()
        if old != new
    ]
    if differing:
        raise ValueError(
            f"folder {str(folder)!r} holds another run; it differs in {', '.join(differing)}"
        )


def _write_curve(path: Path, history: History) -> None:
    evaluations = dict(history.evaluations)
    steps = enumerate(zip(history.losses, history.gradient_norms, strict=True), start=1)
    columns = ("step", "train_loss", "gradient_norm", "held_out_loss")
    rows = [(step, f"{a:.6g}", f"{b:.6g}", evaluations.get(step, "")) for step, (a, b) in steps]
    write_rows(path, [dict(zip(columns, row, strict=True)) for row in rows])
