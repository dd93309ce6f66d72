"""Settings of a task: named numbers that are checked once, compared, changed and labelled."""

import ast
import math
from dataclasses import fields, replace


def check(settings, may_be_zero=()) -> None:
    """Check the numbers among the fields of a dataclass, None apart where a field allows it.

    Whole numbers are at least 1, or 0 where the name is in `may_be_zero`; others are finite and
    not negative.

    Raises:
        ValueError: naming the field, its value and what is legal.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.type is float:
            _check_number(field.name, value, (int, float), "a number", least=0)
        elif field.type is int or (field.type == int | None and value is not None):
            least = 0 if field.name in may_be_zero else 1
            _check_number(field.name, value, int, "a whole number", least)


def _check_number(name, value, kinds, kind, least) -> None:
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value) and value >= least):
        raise ValueError(f"{name} must be {kind} >= {least}, got {value!r}")


def check_choice(name: str, value, legal) -> None:
    """Raise a ValueError unless the value is one of the legal ones.

    >>> check_choice("schedule", "linear", ("linear", "cosine"))
    """
    if value not in legal:
        raise ValueError(f"{name} must be one of {', '.join(legal)}; got {value!r}")


def changed(settings, changes: dict):
    """The settings with some fields changed.

    Raises:
        ValueError: a field that does not exist, with the list of those that do.

    >>> from softattn_lib.tasks.recall import RecallSettings
    >>> changed(RecallSettings(), {"steps": 10}).steps
    10
    """
    legal = [field.name for field in fields(settings)]
    for name in changes:
        if name not in legal:
            raise ValueError(f"there is no setting {name!r}; there are {', '.join(legal)}")
    return replace(settings, **changes)


def label(name: str, settings, default) -> str:
    """The name of settings, followed by the fields that differ from the default of that name.

    >>> from softattn_lib.tasks.recall import RecallSettings
    >>> label("recall", RecallSettings(steps=10), RecallSettings())
    'recall steps=10'
    """
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    changes = [f"{k}={v}" for k, v in values.items() if v != getattr(default, k)]
    return " ".join([name, *changes])


def parse_changes(words: list[str]) -> dict:
    """Changes of settings as typed on a command line.

    Raises:
        ValueError: a word without "=".

    >>> parse_changes(["steps=100", "learning_rate=3e-3", "tokenizer=bytes"])
    {'steps': 100, 'learning_rate': 0.003, 'tokenizer': 'bytes'}
    """
    changes = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"a setting is written NAME=VALUE, got {word!r}")
        try:
            changes[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):  # a word, not a number
            changes[name] = value
    return changes
