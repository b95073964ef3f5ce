"""What an interceptor knows of a function of torch. Every call of the model's comes to it, so each is looked up once."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch


class FunctionEntry(NamedTuple):
    """A function of torch, or an operator.

    Attributes:
        name: without that of the overload.
        handler: what runs it instead, if anything does.
        operator: whether it is called as an operator, not as a function.
        quiet: whether a call matters only if one of its arguments is followed.
        reads: whether it only reads a property.
    """

    name: str
    handler: Callable[..., Any] | None
    operator: bool
    quiet: bool
    reads: bool


class FunctionTable(dict[Any, FunctionEntry]):
    """What is known of each function, by the function.

    Args:
        handlers: what runs functions of these names instead.
        quiet: names of those that have a handler only for the case that an argument is followed.
        shown: names of functions of which every call matters.

    >>> known = FunctionTable({})
    >>> known[torch.relu], known[torch.ops.aten.mul.Tensor].name
    (FunctionEntry(name='relu', handler=None, operator=False, quiet=True, reads=False), 'mul')
    """

    def __init__(
        self, handlers: Mapping[str, Callable[..., Any]], quiet: Collection[str] = (), shown: Collection[str] = ()
    ) -> None:
        self._handlers, self._quiet, self._shown = handlers, quiet, shown

    def __missing__(self, func: Any) -> FunctionEntry:
        operator = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
        name = getattr(func, "__name__", "")
        name = name.partition(".")[0] if operator else name
        handler = self._handlers.get(name)
        quiet = not operator and (handler is None or name in self._quiet) and name not in self._shown
        found = self[func] = FunctionEntry(name, handler, operator, quiet, name == "__get__")
        return found
