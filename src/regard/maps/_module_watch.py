"""Modules say when they are called, without hooks.

A hook would be copied and saved with its module, and would turn off the fast path of ``nn.TransformerEncoderLayer``. Torch
asks each module for a compiled form of it before a call, and leaves that form out of copies and files: what stands there
says that the call came.
"""

import inspect
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from torch import nn

_PLACE = "_compiled_call_impl"


class _InPlace:
    """Stands in the place of a module's compiled form, until :meth:`end`."""

    __slots__ = ("_before", "_call", "_module", "_over", "_thread")

    def __init__(self, module: nn.Module) -> None:
        self._module, self._thread, self._over = module, threading.get_ident(), False
        variables = vars(module)
        self._before = variables.get(_PLACE)
        self._call = module._call_impl if self._before is None else self._before
        variables[_PLACE] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def end(self) -> None:
        if self._over:
            return
        self._over = True
        variables = vars(self._module)
        while isinstance(found := variables.get(_PLACE), _InPlace) and found._over:  # others may be above or below
            if found._before is None:
                del variables[_PLACE]
            else:
                variables[_PLACE] = found._before

    # A module of its own way to copy itself may take this along: the copy has nothing in its place.

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class _FirstCall(_InPlace):
    """Takes the first call of a module in this thread, says so, and passes it on. Then it is gone."""

    __slots__ = ("_said",)

    def __init__(self, module: nn.Module, said: Callable[[], None]) -> None:
        self._said = said
        super().__init__(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == self._thread and not self._over:
            self.end()
            self._said()
        return self._call(*args, **kwargs)


class ModuleCall(_InPlace):
    """Knows of the innermost running call of a module in this thread what became of it.

    Attributes:
        name: that of the module.
        state: None if the module does not run; "runs"; "attended" once that was noted here, and here alone; "seen" if the
            names of modules count what attends in this call.
        ran: whether the module was called.
    """

    __slots__ = ("name", "ran", "state")

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name, self.ran = name, False
        self.state: str | None = None
        super().__init__(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self._call(*args, **kwargs)
        before, self.state, self.ran = self.state, "runs", True
        try:
            return self._call(*args, **kwargs)
        finally:
            self.state = before


# What runs inside of calls of modules that are watched, and of no others: the numbers of their codes.
WATCHING = frozenset(id(inspect.unwrap(kind.__call__).__code__) for kind in (_InPlace, _FirstCall, ModuleCall))


class ModuleWatch:
    """Until :meth:`end`, ``ran(name)`` is called when one of these modules is called the first time, in this thread."""

    def __init__(self, modules: Iterable[tuple[str, nn.Module]], ran: Callable[[str], None]) -> None:
        self._calls = [_FirstCall(module, partial(ran, name)) for name, module in modules]

    def end(self) -> None:
        for call in self._calls:
            call.end()
        self._calls = []
