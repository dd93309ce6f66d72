"""A trained model with the attention of another variant: what does its held-out loss become?"""

import json
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

from softattn_lib.llama import swap_attention
from softattn_lib.tasks.presets import Preset
from softattn_lib.tasks.records import code_version, machine
from softattn_lib.tasks.text import corpus_for
from softattn_lib.tasks.training import RUN, load_trained, next_token_losses
from softattn_lib.variants import AttentionVariant, variant


@torch.no_grad()
def evaluate(
    folder: str | Path,
    variant_name: str | AttentionVariant | None = None,
    *,
    text=None,
    column: str = "text",
) -> dict:
    """Test a trained model on the held-out text of its run, without training it further.

    Args:
        folder: of a finished run of `training.train`.
        variant_name: the variant whose attention stands in all layers; None is the one that the
            model was trained with.
        text, column: what the run was given.

    Returns:
        A row of a table: the variants trained and tested with, the run's seed, and
        `held_out_loss` in nats per token.

    Raises:
        FileNotFoundError: no finished run is there.
        ValueError: a text that the run does not know, or a variant that has to learn something
            which the model has not learned.

    >>> from tempfile import TemporaryDirectory
    >>> from softattn_lib.tasks.training import train
    >>> with TemporaryDirectory() as folder:
    ...     result = train("softmax", steps=2, length=8, held_out_sequences=2, folder=folder)
    ...     same, other = evaluate(folder), evaluate(folder, "taylor_2")
    >>> same["held_out_loss"] == f"{result.held_out_loss:.4f}", other["tested"]
    (True, 'taylor_2')
    """
    model, _ = load_trained(folder)
    run = json.loads((Path(folder) / RUN).read_text())
    chosen = variant(variant_name or run["variant"])
    if chosen.name != run["variant"]:
        learned = swap_attention(model, chosen).new_parameters
        if learned:
            raise ValueError(
                f"variant {chosen.name!r} learns {', '.join(chosen.learnables)}, which a model "
                f"trained with {run['variant']!r} lacks; choose a variant without"
            )
    settings = Preset(**run["preset"])
    corpus = corpus_for(settings, text, column)
    if corpus.fingerprint != run["corpus"]:
        raise ValueError(f"text is {corpus.name!r}, which is not what {str(folder)!r} has read")
    tried = range(min(settings.held_out_sequences, len(corpus.held_out)))
    batches = DataLoader(Subset(corpus.held_out, tried), batch_size=settings.batch_size)
    losses = torch.cat([next_token_losses(model, ids) for ids in batches])
    return {
        "trained": run["variant"],
        "tested": chosen.name,
        "seed": run["seed"],
        "text": corpus.name,
        "held_out_loss": f"{losses.mean().item():.4f}",
        "commit": code_version(),
        "machine": machine(),
    }
