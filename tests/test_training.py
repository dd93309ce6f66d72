"""Training: what is built, the schedule, checkpoints and resuming, divergence, many processes."""

import csv
import json
import math
import os
import subprocess
import sys

import pytest
import torch

from softattn_lib import (
    VARIANTS,
    AttentionVariant,
    Polynomial,
    PolynomialKernel,
    VariantUnavailableError,
    VisibleKeysNormalizer,
)
from softattn_lib.tasks.presets import PRESETS, preset
from softattn_lib.tasks.records import read_rows
from softattn_lib.tasks.training import (
    COLUMNS,
    build_model,
    load_trained,
    next_token_losses,
    train,
)

pytestmark = pytest.mark.slow  # it trains, a second a test

TINY = {
    "layers": 1,
    "hidden_size": 16,
    "mlp_size": 24,
    "length": 12,
    "batch_size": 4,
    "steps": 6,
    "warmup_steps": 2,
    "held_out_sequences": 6,
    "evaluate_every": 4,
    "checkpoint_every": 3,
}
AVAILABLE = [name for name, entry in VARIANTS.items() if not entry.unavailable]
quiet = pytest.mark.filterwarnings("ignore::softattn_lib.SignedWeightsWarning")


# Presets and models


@pytest.mark.parametrize(("name", "billions"), [("paper-300m", 0.275), ("paper-2b", 2.08)])
def test_the_papers_models_have_the_papers_size(name, billions):
    settings = PRESETS[name]
    with torch.device("meta"):
        model = build_model("softmax", settings, settings.vocab_size)
    assert sum(p.numel() for p in model.parameters()) / 1e9 == pytest.approx(billions, abs=0.005)
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (20, 16)
    assert config.intermediate_size == 2 * config.hidden_size


def test_the_papers_learning_rate_ends_where_its_code_lets_it_end():
    settings = PRESETS["paper-300m"]
    rates = learning_rates(settings, [5_000, 10_000, 100_000])
    assert rates == pytest.approx([0.5e-4, 1e-4, 0.909e-4], rel=1e-3)
    _, as_written = preset("paper-300m", decay_steps=100_000)
    assert learning_rates(as_written, [100_000]) == [0]


def learning_rates(settings, steps):
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=settings.learning_rate)
    schedule = get_scheduler(
        settings.schedule, optimizer, settings.warmup_steps, settings.decay_steps or settings.steps
    )
    return [schedule.lr_lambdas[0](step) * settings.learning_rate for step in steps]


def test_a_changed_preset_says_what_was_changed():
    assert preset("small")[0] == "small"
    assert preset("small", steps=500)[0] == "small"
    name, settings = preset("small", steps=5, learning_rate=1e-3)
    assert name == "small steps=5 learning_rate=0.001"
    assert (settings.steps, settings.learning_rate) == (5, 1e-3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"step": 5}, "no setting 'step'; there are hidden_size, "),
        ({"steps": 0}, "steps must be a whole number >= 1, got 0"),
        ({"steps": "5"}, "steps must be a whole number >= 1, got '5'"),
        ({"learning_rate": math.inf}, "learning_rate must be a number >= 0, got inf"),
        ({"schedule": "constant"}, "schedule must be one of cosine, linear; got"),
        ({"clip": "none"}, "clip must be one of all, gated; got 'none'"),
        ({"precision": "fp8"}, "precision must be one of no, fp16, bf16"),
        ({"heads": 3}, "hidden_size is 64, which 3 heads do not divide"),
        ({"accumulate": 5}, "batch_size is 16, which accumulate=5 does not divide"),
        ({"held_out": 1.0}, "held_out must be between 0 and 1, got 1.0"),
        ({"vocab_size": -1}, "vocab_size must be a whole number >= 1, got -1"),
    ],
)
def test_an_illegal_change_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        preset("small", **changes)


def test_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(KeyError, match="preset must be one of mini, small, paper-300m, paper-2b"):
        train("softmax", "tiny")


# Training


@quiet
@pytest.mark.parametrize("name", [*AVAILABLE, "taylor_2", "taylor_3", "taylor_10", "power_4"])
def test_every_variant_trains_and_every_weight_has_a_gradient(name):
    result = train(name, **TINY | {"steps": 1})
    assert result.row()["status"] == "finished"
    assert math.isfinite(result.held_out_loss)
    ids = torch.arange(26).view(2, 13)
    next_token_losses(result.model, ids).sum().backward()
    assert [n for n, p in result.model.named_parameters() if p.grad is None] == []


def test_training_learns():
    result = train("taylor_4", **TINY | {"steps": 60, "learning_rate": 1e-2})
    assert result.history.losses[0] == pytest.approx(math.log(63), abs=0.3)
    assert result.train_loss < 3.1
    assert result.held_out_loss < 3.2


def test_the_losses_are_those_of_a_loop_written_out():
    result = train("gate", **TINY)
    expected = losses_written_out("gate")
    assert result.history.losses == pytest.approx(expected, abs=1e-6)


def losses_written_out(name):
    """The training of `TINY`, in plain torch."""
    from transformers import get_cosine_schedule_with_warmup

    from softattn_lib.tasks.text import make_corpus

    _, settings = preset("mini", **TINY)
    corpus = make_corpus(length=12)
    torch.manual_seed(0)
    model = build_model(name, settings, corpus.tokenizer.size)
    order = torch.randint(len(corpus.train), (6 * 4,), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, eps=1e-8)
    schedule, losses = get_cosine_schedule_with_warmup(optimizer, 2, 6), []
    for chosen in order.view(6, 4).tolist():
        ids = torch.stack([corpus.train[i] for i in chosen])
        logits = model(ids[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def test_a_run_follows_from_its_seed_alone():
    torch.manual_seed(5)
    first = train("taylor_2", seed=3, **TINY)
    assert train("taylor_2", seed=3, **TINY).history.losses == first.history.losses
    assert train("taylor_2", seed=4, **TINY).history.losses != first.history.losses


def test_variants_start_from_the_same_weights():
    losses = {name: train(name, **TINY | {"steps": 1}).history.losses[0]
              for name in ["softmax", "taylor_10"]}  # fmt: skip
    assert losses["softmax"] == pytest.approx(losses["taylor_10"], abs=1e-5)


def test_accumulating_changes_no_loss():
    whole = train("softmax", **TINY)
    parts = train("softmax", accumulate=2, **TINY)
    assert parts.history.losses == pytest.approx(whole.history.losses, abs=1e-5)
    assert parts.history.gradient_norms == pytest.approx(whole.history.gradient_norms, rel=1e-4)
    assert parts.held_out_loss == pytest.approx(whole.held_out_loss, abs=1e-5)


def test_gradients_are_clipped_for_the_gated_variants_only_where_the_preset_says_so():
    tight = TINY | {"clip_norm": 1e-3, "weight_decay": 0.0, "epsilon": 1.0, "clip": "gated"}
    free = TINY | {"clip_norm": 1e9, "weight_decay": 0.0, "epsilon": 1.0, "clip": "gated"}
    for name, is_clipped in [("softmax", False), ("gate", True)]:
        changed = train(name, **tight).history.losses != train(name, **free).history.losses
        assert changed == is_clipped, name
    everything = tight | {"clip": "all"}
    assert train("softmax", **everything).history.losses != train("softmax", **free).history.losses


def test_the_gradient_norms_are_those_before_clipping():
    norms = train("softmax", **TINY | {"clip_norm": 1e-3}).history.gradient_norms
    assert len(norms) == 6
    assert min(norms) > 1e-2


def test_the_held_out_loss_is_that_of_the_returned_model():
    result = train("rms", **TINY)
    from softattn_lib.tasks.text import make_corpus

    held_out = make_corpus(length=12).held_out
    with torch.no_grad():
        losses = next_token_losses(result.model, torch.stack([held_out[i] for i in range(6)]))
    assert result.held_out_loss == pytest.approx(losses.mean().item(), abs=1e-5)
    assert [step for step, _ in result.history.evaluations] == [4, 6]


def test_mixed_precision_runs_and_the_next_run_may_have_another_one():
    assert math.isfinite(train("taylor_2", precision="bf16", **TINY).held_out_loss)
    assert train("taylor_2", **TINY).held_out_loss == train("taylor_2", **TINY).held_out_loss


def test_the_model_of_a_mixed_precision_run_computes_in_its_own_precision(tmp_path):
    result = train("taylor_2", precision="bf16", folder=tmp_path, **TINY)
    model, _ = load_trained(tmp_path)
    ids = torch.arange(10)[None]
    assert torch.equal(result.model.eval()(ids).logits, model(ids).logits)


def test_a_variant_of_ones_own_trains_and_can_be_loaded(tmp_path):
    own = AttentionVariant("own", r"\sum l^2 v / n", kernel=PolynomialKernel(Polynomial((0, 0, 1))),
                           normalizer=VisibleKeysNormalizer())  # fmt: skip
    result = train(own, folder=tmp_path, **TINY)
    assert result.row()["variant"] == "own"
    with pytest.raises(KeyError, match="own"):
        load_trained(tmp_path)
    model, _ = load_trained(tmp_path, own)
    ids = torch.arange(10)[None]
    assert torch.equal(result.model.eval()(ids).logits, model(ids).logits)


def test_progress_is_reported(capsys):
    seen = []
    train(
        "softmax",
        show_progress=True,
        on_progress=lambda history: seen.append(history.step),
        **TINY | {"steps": 25, "evaluate_every": 25, "checkpoint_every": 25},
    )
    assert seen == [10, 20, 25]
    shown = capsys.readouterr().err
    assert "softmax: 100%" in shown and "tokens/s" in shown and "loss=" in shown


def test_a_run_that_diverges_says_so(tmp_path):
    wild = {"learning_rate": 1e6, "clip_norm": 1e30, "steps": 40}
    result = train("no_denominator", results=tmp_path / "r.csv", **TINY | wild)
    assert math.isnan(result.held_out_loss)
    (row,) = read_rows(tmp_path / "r.csv")
    assert (row["status"], row["held_out_loss"]) == ("diverged", "nan")
    assert int(row["steps"]) < 40


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(VariantUnavailableError, match="linear_mamba"):
        train("linear_mamba", **TINY)
    with pytest.raises(ValueError, match="tokenizer 'bytes' has 256 tokens and the model 100"):
        train("softmax", tokenizer="bytes", vocab_size=100, **TINY)
    short = tmp_path / "short.txt"
    short.write_text("In the beginning")
    with pytest.raises(ValueError, match=r"text 'short.txt' is too short"):
        train("softmax", text=short, **TINY)


# The folder of a run


def test_a_row_is_appended_for_each_run(tmp_path):
    table = tmp_path / "new" / "results.csv"
    for seed in range(2):
        train("gate", "mini", seed=seed, results=table, **TINY)
    rows = read_rows(table)
    assert list(rows[0]) == COLUMNS
    assert [row["seed"] for row in rows] == ["0", "1"]
    assert rows[0]["variant"] == "gate"
    assert rows[0]["preset"].startswith("mini hidden_size=16 mlp_size=24 layers=1 ")
    assert (rows[0]["steps"], rows[0]["tokens"]) == ("6", "288")
    assert rows[0]["commit"] and rows[0]["machine"] and float(rows[0]["seconds"]) > 0


def test_a_table_with_other_columns_is_left_alone(tmp_path):
    table = tmp_path / "results.csv"
    table.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"results.csv has the columns \['a', 'b'\]"):
        train("gate", results=table, on_progress=pytest.fail, **TINY)  # before anything runs
    assert table.read_text() == "a,b\n1,2\n"


def test_the_trained_model_can_be_loaded(tmp_path):
    result = train("gated_softmax", folder=tmp_path, **TINY)
    model, tokenizer = load_trained(tmp_path)
    ids = tokenizer.encode("In the beginning")[None]
    assert torch.equal(model(ids).logits, result.model.eval()(ids).logits)
    assert tokenizer.decode(model.generate(ids, max_new_tokens=3)[0].tolist())[:16] == (
        "In the beginning"
    )
    with (tmp_path / "curve.csv").open() as file:
        curve = list(csv.DictReader(file))
    assert [float(row["train_loss"]) for row in curve] == pytest.approx(
        result.history.losses, rel=1e-5
    )
    assert float(curve[-1]["held_out_loss"]) == pytest.approx(result.held_out_loss)
    assert json.loads((tmp_path / "result.json").read_text())["variant"] == "gated_softmax"
    assert not list(tmp_path.glob("step-*"))


def test_a_folder_without_a_finished_run_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no finished run"):
        load_trained(tmp_path)


class Interrupted(Exception):
    pass


def interrupt(at):
    def on_progress(history):
        if history.step >= at:
            raise Interrupted

    return on_progress


@pytest.mark.parametrize(  # at step 3, 4 or 6 of 8, with checkpoints after 3 and 6
    ("at", "changes"), [(3, {}), (4, {}), (6, {}), (4, {"accumulate": 2, "layers": 2})]
)
def test_an_interrupted_run_resumes_with_the_very_same_losses(at, changes, tmp_path):
    settings = TINY | {"steps": 8} | changes
    straight = train("gate", **settings)
    with pytest.raises(Interrupted):
        train("gate", folder=tmp_path, on_progress=interrupt(at), **settings)
    reported = []
    resumed = train(
        "gate",
        folder=tmp_path,
        on_progress=lambda history: reported.append(history.step),
        **settings,
    )
    assert reported == ([8] if at == 6 else [4, 6, 8])
    assert resumed.history.losses == straight.history.losses
    assert resumed.history.gradient_norms == straight.history.gradient_norms
    assert resumed.history.evaluations == straight.history.evaluations
    for name, weight in straight.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


def test_a_run_interrupted_before_its_first_checkpoint_starts_anew(tmp_path):
    with pytest.raises(Interrupted):
        train("gate", folder=tmp_path, on_progress=interrupt(4), **TINY | {"checkpoint_every": 5})
    assert not list(tmp_path.glob("step-*"))
    resumed = train("gate", folder=tmp_path, **TINY | {"checkpoint_every": 5})
    assert resumed.history.losses == train("gate", **TINY).history.losses


def test_a_half_written_checkpoint_is_not_taken(tmp_path):
    straight = train("gate", **TINY)
    with pytest.raises(Interrupted):
        train("gate", folder=tmp_path, on_progress=interrupt(4), **TINY)
    (tmp_path / "step-000000005.partial").mkdir()
    assert train("gate", folder=tmp_path, **TINY).history.losses == straight.history.losses
    assert not list(tmp_path.glob("step-*"))


def test_a_finished_run_is_not_overwritten(tmp_path):
    train("gate", folder=tmp_path, **TINY)
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(FileExistsError, match="holds a finished run"):
        train("gate", folder=tmp_path, **TINY)
    assert (tmp_path / "result.json").read_bytes() == before


def test_another_run_in_the_folder_is_named(tmp_path):
    with pytest.raises(Interrupted):
        train("gate", folder=tmp_path, on_progress=interrupt(4), **TINY)
    with pytest.raises(ValueError, match=r"differs in variant \(gate there, l2 now\), seed \(0 "):
        train("l2", folder=tmp_path, seed=1, **TINY)
    with pytest.raises(ValueError, match=r"differs in steps \(6 there, 7 now\)"):
        train("gate", folder=tmp_path, **TINY | {"steps": 7})
    with pytest.raises(ValueError, match=r"differs in corpus, tokenizer_state$"):
        train("gate", folder=tmp_path, text=__file__, **TINY)


# Many processes


@pytest.mark.parametrize("launcher", ["accelerate", "torchrun"])
def test_two_processes_get_the_losses_of_one(launcher, tmp_path):
    settings = [f"{name}={value}" for name, value in (TINY | {"held_out_sequences": 7}).items()]
    command = ["train", "--variant", "gate", "--folder", tmp_path / "run"]
    command += ["--results", tmp_path / "r.csv", "--set", *settings]
    launch = {
        "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes=2",
                       "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no",
                       "--main_process_port=0"],
        "torchrun": ["torch.distributed.run", "--nproc_per_node=2", "--standalone"],
    }[launcher]  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", *launch, "-m", "softattn_lib.cli", *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=True,
    )
    alone = train("gate", **TINY | {"held_out_sequences": 7})
    with (tmp_path / "run" / "curve.csv").open() as file:
        losses = [float(row["train_loss"]) for row in csv.DictReader(file)]
    assert losses == pytest.approx(alone.history.losses, abs=1e-5)
    (row,) = read_rows(tmp_path / "r.csv")  # one row, though two processes ran
    assert row["processes"] == "2"
    assert float(row["held_out_loss"]) == pytest.approx(alone.held_out_loss, abs=1e-4)
