"""The command `softattn`: thin wrappers around the library."""

import argparse
import sys


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
    commands = root.add_subparsers(required=True, metavar="command")

    doctor = commands.add_parser("doctor", help="say what is wrong here and how to mend it")
    doctor.set_defaults(run=run_doctor)

    model = commands.add_parser("model", help="fetch the small language model into the cache, once")
    model.add_argument(
        "--from-hub",
        action="store_true",
        help="take other weights, from the Hugging Face hub: outputs differ from those stored",
    )
    model.set_defaults(run=run_model)
    return root


def run_doctor(options):
    from softattn_lib import doctor

    text, well = doctor.report()
    print(text)
    return 0 if well else 1


def run_model(options):
    from softattn_lib import small_model

    try:
        print(small_model.fetch(from_hub=options.from_hub))
    except small_model.SmallModelError as error:
        print(f"softattn model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
