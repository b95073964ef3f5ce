"""Errors about a recipe's fields that name the options of the command line as they were typed."""

import dataclasses
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from regard.support.checks import UnusableInputError


class UnfitOptionsError(UnusableInputError):
    """Options contradict each other, or a value does not fit."""


@contextmanager
def named_as_typed(recipe: Any, arguments: Sequence[str], smoke: bool = False) -> Iterator[None]:
    """Add to an error about fields of the recipe the options that set them, as they were typed."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if isinstance(error, UnusableInputError) or not (named := options_in(str(error), recipe, arguments, smoke)):
            raise
        raise UnfitOptionsError(f"{error} ({named})") from error


@contextmanager
def unboxed_errors() -> Iterator[None]:
    """Raise errors about parts of the recipe that tyro would print in a box. Its other messages are still printed, without
    the markup of docstrings."""
    printed, boxed = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(printed), redirect_stderr(boxed):
            yield
    except SystemExit as stopped:
        cause = stopped.__context__
        if isinstance(getattr(cause, "arg", None), str):  # a part of the recipe, not one option's value
            raise ValueError(str(getattr(cause, "message", cause))) from None
        raise
    finally:
        if not isinstance(sys.exception(), ValueError):
            sys.stdout.write(without_markup(printed.getvalue()))
            sys.stderr.write(without_markup(boxed.getvalue()))


def without_markup(text: str) -> str:
    """The text of a docstring as a terminal shows it.

    >>> without_markup('``"grid"``, or the settings of :class:`AdamW`')
    '"grid", or the settings of AdamW'
    """
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")


def options_in(message: str, recipe: Any, arguments: Sequence[str], smoke: bool = False) -> str:
    """The options that a message is about, that is, whose name and value it contains; empty if none was typed.

    >>> from regard import recipes
    >>> options_in("dim 64 is not divisible by heads 5", recipes.get("fashion-vit"), ["--network.heads", "5"])
    '--network.heads 5; the recipe fashion-vit has --network.dim 64'
    """
    typed = typed_options(arguments)
    words = {word.strip("'\"") for word in re.findall(r"[\w.'\"+-]+", message)}
    ours, others = [], []
    for path, value in fields_of(recipe):
        name = path.rpartition(".")[2]
        if name not in words:
            continue
        if path in typed:
            ours.append(typed[path])
        elif str(value) in words:
            others.append(f"--{path.replace('_', '-')} {value}")
    if not ours:
        return ""
    origin = f"the recipe {recipe.name} has" if not smoke else "--smoke and the recipe choose"
    return "; ".join([" and ".join(ours), *([f"{origin} {' and '.join(others)}"] if others else [])])


def fields_of(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field with its path, such as ("network.heads", 4)."""
    for field in dataclasses.fields(part):
        value, path = getattr(part, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from fields_of(value, f"{path}.")
        else:
            yield path, value


def typed_options(arguments: Sequence[str]) -> dict[str, str]:
    """Each option that was typed, by the path of its field: ``{"network.heads": "--network.heads 4"}``.

    >>> typed_options(["--network.head-dim=4", "--no-compile"])
    {'network.head_dim': '--network.head-dim=4', 'compile': '--no-compile'}
    """
    found: dict[str, str] = {}
    path = ""
    for word in arguments:
        if word.startswith("--"):
            place, _, name = word[2:].partition("=")[0].rpartition(".")
            path = ".".join([*([place] if place else []), name.removeprefix("no-")]).replace("-", "_")
            found[path] = word
        elif path:
            found[path] += f" {word}"
    return found
