"""The registry of recipes."""

import inspect
from collections.abc import Callable

from regard.support.checks import check_text
from regard.training import Recipe

_RECIPES: dict[str, Callable[[], Recipe]] = {}


def recipe(function: Callable[[], Recipe]) -> Callable[[], Recipe]:
    """Register a function under its name, with dashes."""
    _RECIPES[function.__name__.replace("_", "-")] = function
    return function


def names() -> tuple[str, ...]:
    """The names of all recipes, in alphabetical order."""
    return tuple(sorted(_RECIPES))


def get(name: str) -> Recipe:
    """The recipe of that name.

    >>> regard.recipes.get("ex06-vit")
    Traceback (most recent call last):
    ValueError: there is no recipe 'ex06-vit'; did you mean 'ex05-vit'?
    """
    check_text("name", name)
    if name not in _RECIPES:
        import difflib

        close = difflib.get_close_matches(name, _RECIPES, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names())}"
        raise ValueError(f"there is no recipe {name!r}; {hint}")
    return _RECIPES[name]()


def summary(name: str) -> str:
    """The docstring of a recipe."""
    get(name)
    return inspect.getdoc(_RECIPES[name]) or ""
