"""Finds the arguments of a module's ``forward`` that can be read without the local variables of its frame.

A repeated call must find the cache that the module was called with. Reading the local variables of a running function would
show it, but copies all of them into a dictionary, which takes more time than most steps of a repeated call. It is not needed
for an argument that the function never assigns to: this is still the one with which the module was called. Whether a function
assigns to it is read from its bytecode, once.
"""

import dis
import inspect
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

_CALLED = nn.Module._call_impl.__code__  # on the stack inside every call of a module; its ``self`` is that module
_LAST = 2**31  # the position of an argument that is passed by its name only

Places = tuple[tuple[str, int], ...]


def places_of(module: nn.Module, codes: tuple[CodeType, ...], depth: int, names: list[str]) -> Places | None:
    """Where the arguments of these names stand among those of a module's call: their names and positions.

    None if the function at this depth of the stack may have other arguments: it is not the module's own ``forward``, called
    without hooks, or assigns to ``self`` or to one of these variables. A later call must still have no other ``forward``, see
    :func:`is_own`.

    Args:
        codes: the code objects of the functions inside the module's call, the innermost first.
    """
    function: Any = getattr(type(module), "forward", None)
    called = depth + 1 < len(codes) and codes[depth + 1] is _CALLED
    if (
        not isinstance(function, FunctionType)
        or function.__code__ is not codes[depth]
        or not called
        or not is_own(module)
    ):
        return None
    found = _unassigned(function.__code__)
    own = function.__code__.co_varnames[:1]
    parameters = inspect.signature(function, follow_wrapped=False).parameters
    if not own or not found.issuperset((*own, *names)):
        return None
    if any(name not in parameters or parameters[name].default not in (None, inspect.Parameter.empty) for name in names):
        return None
    order = [name for name, x in parameters.items() if x.kind in (x.POSITIONAL_ONLY, x.POSITIONAL_OR_KEYWORD)]
    return tuple((name, order.index(name) - 1 if name in order else _LAST) for name in names)


def is_own(module: nn.Module) -> bool:
    """Whether a module runs the ``forward`` of its class."""
    return "forward" not in module.__dict__


def argument(places: Places, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The first of these arguments that is not None.

    >>> argument((("cache", 1), ("past", 0)), ("x",), {"cache": None})
    'x'
    """
    for name, position in places:
        found = args[position] if position < len(args) else kwargs.get(name)
        if found is not None:
            return found
    return None


@lru_cache(4096)
def _unassigned(code: CodeType) -> frozenset[str]:
    """The parameters of a function that it never assigns to, nor shares with functions inside of it.

    >>> def function(a, b, c, *, d=None):
    ...     b = [c for c in a]
    ...     del d
    ...     return b
    >>> "a" in _unassigned(function.__code__), "b" in _unassigned(function.__code__), "d" in _unassigned(function.__code__)
    (True, False, False)
    """
    changed = set(code.co_cellvars)
    for step in dis.get_instructions(code):
        reads = step.opname.startswith("LOAD_FAST") and "CLEAR" not in step.opname and "STORE" not in step.opname
        if "_FAST" in step.opname and not reads:
            changed.update(step.argval if isinstance(step.argval, tuple) else (step.argval,))
    return frozenset(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - changed
