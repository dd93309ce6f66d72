"""The command `softattn`: thin wrappers around the library."""

import argparse
import functools
import sys
import time
from pathlib import Path

from softattn_lib.small_model import SmallModelError


def main(arguments=None):
    """Run one subcommand and return its exit status, 0 when all is well.

    >>> main(["doctor", "--help"])
    Traceback (most recent call last):
    SystemExit: 0
    """
    options = parser().parse_args(arguments)
    return options.run(options)


def parser():
    root = argparse.ArgumentParser(prog="softattn", description="Attention as a sum of RNNs.")
    commands = root.add_subparsers(required=True, metavar="command", dest="command")

    doctor = commands.add_parser("doctor", help="say what is wrong here and how to mend it")
    doctor.set_defaults(run=run_doctor)

    model = commands.add_parser("model", help="fetch the small language model into the cache, once")
    model.add_argument(
        "--from-hub",
        action="store_true",
        help="take other weights, from the Hugging Face hub: outputs differ from those stored",
    )
    model.set_defaults(run=run_model)

    recall = commands.add_parser("recall", help="train one layer to look up values, in seconds")
    recall.add_argument("--variant", nargs="+", default=["softmax", "taylor_2", "linear_relu"])
    recall.add_argument("--seeds", nargs="+", type=int, default=[0])
    recall.add_argument("--results", help="CSV file that a row for each run is appended to")
    _add_settings(recall)
    recall.set_defaults(run=run_recall)

    train = commands.add_parser("train", help="train a language model with one variant")
    train.add_argument("--variant", default="softmax")
    train.add_argument("--preset", default="mini", help="mini, small, paper-300m or paper-2b")
    train.add_argument("--seed", type=int, default=0)
    source = train.add_mutually_exclusive_group()
    source.add_argument("--text", help="file to train on, instead of the text of the package")
    source.add_argument("--dataset", help="Hugging Face data set to train on: a name or a folder")
    train.add_argument("--column", default="text", help="column of the data set")
    train.add_argument("--folder", help="of the run; default runs/VARIANT-PRESET-seedSEED")
    train.add_argument("--results", default="runs/results.csv", help="default runs/results.csv")
    train.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
    _add_settings(train)
    train.set_defaults(run=run_train)

    evaluate = commands.add_parser("evaluate", help="test trained models with other variants")
    evaluate.add_argument("folder", nargs="+", help="of a finished run")
    evaluate.add_argument("--variant", nargs="+", required=True, help="to test with")
    evaluate.add_argument("--text", help="file that the runs were trained on, if not the default")
    evaluate.add_argument("--results", help="CSV file that a row for each test is appended to")
    evaluate.set_defaults(run=run_evaluate)

    adapt = commands.add_parser("adapt", help="train the polynomials of a calibration on text")
    adapt.add_argument("calibration", help="file that a calibration was saved in")
    adapt.add_argument("--out", required=True, help="file for the adapted calibration")
    adapt.add_argument("--text", nargs="+", help="files to read, instead of texts that come along")
    adapt.add_argument("--steps", type=int, default=100)
    adapt.add_argument("--length", type=int, default=256, help="tokens of a sequence, default 256")
    adapt.add_argument("--batch", type=int, default=4, help="sequences of a step, default 4")
    adapt.add_argument(
        "--learning-rate", type=float, help="default 0.03; 0.003 where weights can be negative"
    )
    adapt.add_argument(
        "--held-out", type=int, default=16, help="sequences of each text to judge on; 0: do not"
    )
    adapt.add_argument(
        "--results", help="CSV file that a row for each held-out text is appended to"
    )
    adapt.add_argument("--cpu", action="store_true", help="even where there is an accelerator")
    adapt.set_defaults(run=run_adapt)

    sweep = commands.add_parser("sweep", help="run variants times seeds from a YAML file")
    sweep.add_argument("file")
    sweep.set_defaults(run=run_sweep)
    return root


def _add_settings(command):
    command.add_argument(
        "--set", nargs="+", default=[], metavar="NAME=VALUE", help="other settings, steps=100"
    )


def run_doctor(options):
    from softattn_lib import doctor

    text, well = doctor.report()
    print(text)
    return 0 if well else 1


def one_line_errors(run):
    """What was asked for does not fit or is not there: one line and status 1, no traceback."""
    expected = (ValueError, KeyError, NotImplementedError, ImportError, OSError, SmallModelError)

    @functools.wraps(run)
    def run_or_explain(options):
        try:
            return run(options)
        except expected as error:
            message = error.args[0] if isinstance(error, KeyError) else error
            print(f"softattn {options.command}: {message}", file=sys.stderr)
            return 1

    return run_or_explain


@one_line_errors
def run_model(options):
    from softattn_lib import small_model

    print(small_model.fetch(from_hub=options.from_hub))
    return 0


@one_line_errors
def run_recall(options):
    from softattn_lib.tasks.recall import recall
    from softattn_lib.tasks.records import append_row
    from softattn_lib.tasks.settings import parse_changes

    for name in options.variant:
        for seed in options.seeds:
            result = recall(name, seed=seed, **parse_changes(options.set))
            if options.results:
                append_row(options.results, result.row())
            print(
                f"{result.variant:<24}seed {seed}  accuracy {result.accuracy:.3f}  "
                f"loss {result.loss:.3f}  {result.seconds:.1f} s"
            )
    return 0


@one_line_errors
def run_train(options):
    from accelerate import PartialState

    from softattn_lib.tasks.settings import parse_changes
    from softattn_lib.tasks.text import load_table
    from softattn_lib.tasks.training import train

    name = f"{options.variant}-{options.preset}-seed{options.seed}"
    result = train(
        options.variant,
        options.preset,
        text=load_table(options.dataset) if options.dataset else options.text,
        column=options.column,
        seed=options.seed,
        folder=options.folder or f"runs/{name}",
        results=options.results,
        cpu=options.cpu,
        show_progress=True,
        **parse_changes(options.set),
    )
    PartialState().print(  # once, however many processes there are
        f"{result.variant}  {result.preset_name}  seed {result.seed}  held-out loss "
        f"{result.held_out_loss:.4f} nats per token  {result.history.seconds:.1f} s"
    )
    return 0


@one_line_errors
def run_evaluate(options):
    from softattn_lib.tasks.evaluation import COLUMNS, evaluate
    from softattn_lib.tasks.records import append_row, check_columns

    if options.results:
        check_columns(options.results, COLUMNS)
    for folder in options.folder:
        for name in options.variant:
            row = evaluate(folder, name, text=options.text)
            print(
                f"trained with {row['trained']} (seed {row['seed']}), tested with {row['tested']}: "
                f"held-out loss {row['held_out_loss']} nats per token"
            )
            if options.results:
                append_row(options.results, row)
    return 0


@one_line_errors
def run_adapt(options):
    from accelerate import PartialState

    from softattn_lib.calibration import load_calibration
    from softattn_lib.llama import load_small_model
    from softattn_lib.tasks import adapt, beyond_taylor
    from softattn_lib.tasks.records import append_row, check_columns

    if options.results:
        check_columns(options.results, beyond_taylor.ADAPTED_COLUMNS)
    if Path(options.out).is_dir():
        raise ValueError(f"--out is {options.out}, a folder; name a file in it")
    before = load_calibration(options.calibration)
    model, tokenizer = load_small_model()
    texts = beyond_taylor.pieces(tokenizer, options.text, options.length)
    start = time.perf_counter()
    after = adapt.adapt(
        model,
        texts,
        before,
        steps=options.steps,
        learning_rate=options.learning_rate,
        batch_size=options.batch,
        cpu=options.cpu,
    )
    seconds = f"{time.perf_counter() - start:.0f}"
    if not PartialState().is_main_process:
        return 0
    after.save(options.out)
    for when, calibration in (("before", before), ("after", after)):
        found = adapt.match(model, beyond_taylor.one_of_each(texts), calibration)
        lacking = f", {found.not_positive} rows left out" if found.not_positive else ""
        print(f"{when}: matching loss {found.loss:.4f}{lacking}")
    rows = beyond_taylor.adapted_rows(
        model, tokenizer, before, after, options.held_out, options.steps, seconds
    )
    for row in rows:
        print(
            f"{row['text']}: held-out loss {row['before']} before, {row['after']} after, "
            f"{row['softmax']} with softmax, nats per token"
        )
        if options.results:
            append_row(options.results, row)
    return 0


@one_line_errors
def run_sweep(options):
    from softattn_lib.tasks.sweep import sweep

    sweep(options.file, report=print)
    return 0


if __name__ == "__main__":
    sys.exit(main())
