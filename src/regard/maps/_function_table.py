"""A table of torch functions: how the interceptor treats each of them.

The interceptor sees every torch function that a model calls, so it must decide quickly. The table computes the decision
once for each function.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch


class FunctionEntry(NamedTuple):
    """How calls of one torch function, or of one operator, are treated.

    Attributes:
        name: its name, without the overload.
        handler: runs the call instead; None if the function itself runs.
        operator: whether it is an operator (``torch.ops.…``), not a Python function.
        quiet: whether a call matters only if one of its arguments is a tensor that is followed.
        reads: whether it only reads an attribute of a tensor.
    """

    name: str
    handler: Callable[..., Any] | None
    operator: bool
    quiet: bool
    reads: bool


class FunctionTable(dict[Any, FunctionEntry]):
    """The entry of each function, made when the function is first looked up.

    Args:
        handlers: handlers by the name of the function.
        quiet: names of functions whose handler matters only if an argument is followed.
        shown: names of functions whose every call matters.

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
