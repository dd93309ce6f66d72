"""A trained model with the attention of another variant: what does its held-out loss become?"""

import json
import math
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Subset

from softattn_lib.llama import swap_attention
from softattn_lib.tasks.presets import Preset
from softattn_lib.tasks.records import code_version, machine
from softattn_lib.tasks.text import corpus_for
from softattn_lib.tasks.training import RUN, load_trained, next_token_losses
from softattn_lib.variants import AttentionVariant, variant

COLUMNS = ["trained", "tested", "seed", "text", "held_out_loss", "commit", "machine"]


@torch.no_grad()
def evaluate(
    folder: str | Path,
    variant_name: str | AttentionVariant | None = None,
    *,
    trained_with: AttentionVariant | None = None,
    text=None,
    column: str = "text",
) -> dict:
    """Test a trained model on the held-out text of its run, without training it further.

    Args:
        folder: of a finished run of `training.train`.
        variant_name: the variant whose attention stands in all layers; None is the one that the
            model was trained with.
        trained_with: the run's variant, where its name is not known to `variants.variant`.
        text, column: what the run was given.

    Returns:
        A row of a table with the `COLUMNS` of this module: the variants trained and tested with,
        the run's seed, `held_out_loss` in nats per token, NaN where it overflows.

    Raises:
        FileNotFoundError: no finished run is there.
        KeyError, VariantUnavailableError: an unknown variant, or one that cannot be built.
        ValueError: a text that is plainly not the run's, or another variant than the run's that
            learns something beside the projections.

    >>> from tempfile import TemporaryDirectory
    >>> from softattn_lib.tasks.training import train
    >>> with TemporaryDirectory() as folder:
    ...     result = train("softmax", steps=2, length=8, held_out_sequences=2, folder=folder)
    ...     same, other = evaluate(folder), evaluate(folder, "taylor_2")
    >>> same["held_out_loss"] == f"{result.held_out_loss:.4f}", other["tested"]
    (True, 'taylor_2')
    """
    model, _ = load_trained(folder, trained_with)
    run = json.loads((Path(folder) / RUN).read_text())
    tested = run["variant"]
    if variant_name not in (None, run["variant"], trained_with):
        chosen = variant(variant_name)
        tested = chosen.name
        if swap_attention(model, chosen).new_parameters:
            raise ValueError(
                f"variant {tested!r} learns {', '.join(chosen.learnables)}, which is not carried "
                f"over from a model trained with {run['variant']!r}; choose a variant without"
            )
    settings = Preset(**run["preset"])
    corpus = corpus_for(settings, text, column)
    if corpus.fingerprint != run["corpus"]:
        raise ValueError(f"text is {corpus.name!r}, which is not what {str(folder)!r} has read")
    tried = range(min(settings.held_out_sequences, len(corpus.held_out)))
    generator = torch.Generator()  # DataLoader would take a number from torch's own
    sequences = Subset(corpus.held_out, tried)
    batches = DataLoader(sequences, batch_size=settings.batch_size, generator=generator)
    try:
        loss = torch.cat([next_token_losses(model, ids) for ids in batches]).mean().item()
    except OverflowError:
        loss = math.nan
    values = (run["variant"], tested, run["seed"], corpus.name, f"{loss:.4f}")
    return dict(zip(COLUMNS, (*values, code_version(), machine()), strict=True))
