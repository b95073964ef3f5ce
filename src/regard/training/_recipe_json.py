"""Recipes as JSON, and the differences between two of them."""

import collections.abc
import dataclasses
import functools
import json
import sys
import types
from collections.abc import Collection
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from regard.support.checks import UnusableInputError, describe
from regard.support.reading import parse_json
from regard.training._recipe import PARTS, Recipe


def encode(value: Any) -> Any:
    """A recipe, or a part of one, as JSON values: a dataclass becomes its fields and the name of its class.

    >>> from regard.training import ScheduleSettings
    >>> encode(ScheduleSettings(decay="linear"))
    {'kind': 'ScheduleSettings', 'warm_up': 0.05, 'decay': 'linear', 'final': 0.0}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
        if "kind" in fields:
            raise ValueError(
                f"{type(value).__name__} has a field called kind, where a recipe's file has the name of the class: rename it"
            )
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [encode(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a recipe holds numbers, strings, tuples and dataclasses of those, got {describe(value)}")


def decode(value: Any, modules: Collection[str] = ()) -> Any:
    """The inverse of :func:`encode`. Only known kinds of parts are constructed.

    Args:
        value: the decoded JSON.
        modules: names of the modules with the classes of the recipe. Two files of a user may have a class of the same
            name: a copy of a recipe, for example.

    >>> from regard.training import ScheduleSettings
    >>> decode(encode(ScheduleSettings(decay="linear")))
    ScheduleSettings(warm_up=0.05, decay='linear', final=0.0)
    """
    if isinstance(value, list):
        return tuple(decode(each, modules) for each in value)
    if not isinstance(value, dict):
        return value
    kinds = _kinds(modules)
    said = value.get("kind")
    kind = kinds.get(said) if isinstance(said, str) else None
    if kind is None:
        raise ValueError(
            f"unknown kind of part {said!r:.100} in a recipe; known are {', '.join(sorted(kinds))} "
            f"(import the module that defines your own first)"
        )
    known = {each.name for each in dataclasses.fields(kind)}
    if unknown := value.keys() - known - {"kind"}:
        raise ValueError(
            f"{kind.__name__} has no field {', '.join(sorted(unknown))}: was the file written by another version?"
        )
    needed = [each.name for each in dataclasses.fields(kind) if _has_no_default(each)]
    if missing := [name for name in needed if name not in value]:
        raise ValueError(f"{kind.__name__} lacks {', '.join(missing)}: is the file complete?")
    fields = {name: decode(each, modules) for name, each in value.items() if name != "kind"}
    for name, hint in field_types(kind).items():
        if name in fields and not fits(fields[name], hint):
            raise ValueError(f"{kind.__name__}: {name} must be {_words(hint)}, got {describe(fields[name]):.200}")
    try:
        return kind(**fields)
    except TypeError as error:  # a value in the file has a wrong type
        raise ValueError(f"{kind.__name__}: {error}") from error


def check_readable(recipe: Recipe) -> None:
    """Refuse a recipe whose file could not be read again, before it is trained: the run would be lost."""
    try:
        written = json.dumps(encode(recipe))
        again = parse_json(written, finite=False)  # as the file is read
        same = json.dumps(encode(decode(again, modules_of(recipe)))) == written
    except UnicodeEncodeError as broken:
        raise UnusableInputError(
            f"the recipe {recipe.name!r:.100} holds {broken.object!r:.200}, which is no complete Unicode: rename the file or "
            f"folder, or, if its name looks right elsewhere, set LC_ALL=C.UTF-8"
        ) from broken
    except (TypeError, ValueError) as error:
        raise UnusableInputError(f"the recipe {recipe.name!r:.100} cannot be saved and read again: {error}") from error
    if not same:
        raise UnusableInputError(
            f"the recipe {recipe.name!r:.100} cannot be saved and read again: one of its parts changes its own fields"
        )


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields; empty if they cannot be resolved."""
    try:
        hints = get_type_hints(kind)
    except (NameError, TypeError, AttributeError):  # a user's class may have any annotations
        return {}
    return {each.name: hints[each.name] for each in dataclasses.fields(kind) if each.name in hints}


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file has a field's type. Types that JSON cannot hold are not checked.

    >>> fits(3, float), fits(True, int), fits((1, "x"), tuple[int, ...]), fits("a", Literal["a", "b"] | None)
    (True, False, False, True)
    """
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inside)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in inside)
    if origin in (tuple, list, collections.abc.Sequence):
        if not isinstance(value, tuple):
            return False
        if origin is tuple and inside and inside[-1] is not ...:
            return len(value) == len(inside) and all(map(fits, value, inside))
        return not inside or all(fits(each, inside[0]) for each in value)
    if hint is None or hint is type(None):
        return value is None
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if hint is list:  # sequences are read as tuples
        return isinstance(value, tuple)
    return not isinstance(hint, type) or isinstance(value, hint)


def _words(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint).replace("typing.", "")


def _has_no_default(each: "dataclasses.Field[Any]") -> bool:
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """The differences of two encoded recipes, as ``"optimizer.learning_rate: 0.1 and 0.2"``.

    >>> from regard.training import ScheduleSettings
    >>> differences(encode(ScheduleSettings()), encode(ScheduleSettings(final=0.1)))
    ['final: 0.0 and 0.1']
    """
    if isinstance(left, dict) and isinstance(right, dict) and left.get("kind") == right.get("kind"):
        names = dict.fromkeys((*left, *right))
        found = [differences(left.get(name), right.get(name), f"{path}.{name}" if path else name) for name in names]
        return [line for lines in found for line in lines]
    both_nan = left != left and right != right
    return [] if left == right or both_nan else [f"{path}: {_brief(left)} and {_brief(right)}"]


def changed_name(recipe: Recipe, original: Recipe, smoke: bool = False) -> str:
    """The recipe's name with the fields that differ from the original, for result files.

    >>> from dataclasses import replace
    >>> demo = regard.recipes.get("demo")
    >>> changed_name(replace(demo, epochs=2, clip=None, seed=7), demo)
    'demo (epochs 2, clip None)'
    """
    then, now = (encode(dataclasses.replace(each, seed=0)) for each in (original, recipe))
    changes = [f"{text.partition(': ')[0]} {text.rpartition(' and ')[2]}" for text in differences(then, now)]
    changes = ["smoke"] * smoke + changes
    return f"{recipe.name} ({', '.join(changes)})" if changes else recipe.name


def _brief(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else value


def modules_of(recipe: Recipe) -> list[str]:
    """Names of the modules with the classes of a recipe."""
    parts = (recipe, recipe.task, recipe.network, recipe.optimizer, recipe.schedule)
    return list(dict.fromkeys(type(part).__module__ for part in parts))


def _kinds(modules: Collection[str]) -> dict[str, Any]:
    """Classes by name. Of several with one name: that of the modules, else regard's own, else the one defined last."""

    def preference(kind: type) -> tuple[bool, bool, bool]:
        return kind.__module__ in modules, kind.__module__.partition(".")[0] == "regard", not _is_replaced(kind)

    found: dict[str, Any] = {}
    pending, seen = [Recipe, *PARTS.values()], set()
    while pending:
        kind = pending.pop(0)
        if kind in seen:
            continue
        seen.add(kind)
        known = found.get(kind.__name__, kind)
        found[kind.__name__] = kind if preference(kind) >= preference(known) else known
        pending += kind.__subclasses__()  # in the order in which they were defined
        pending += [inside for hint in field_types(kind).values() for inside in _dataclasses_in(hint)]
    return found


def _dataclasses_in(hint: Any) -> list[Any]:
    """The dataclasses that a field of this type may hold, such as the augmentation of a task."""
    if dataclasses.is_dataclass(hint):
        return [hint]
    return [each for inside in get_args(hint) for each in _dataclasses_in(inside)]


def _is_replaced(kind: type) -> bool:
    """Whether the module of a class now has another one of this name: its file was read again, or a notebook's cell run."""
    now = getattr(sys.modules.get(kind.__module__), kind.__qualname__, kind)
    return now is not kind
