"""Reports the first call of a module, without a hook.

A hook would be copied and saved with its module, and would turn off the fast path of ``nn.TransformerEncoderLayer``.
Instead this uses ``_compiled_call_impl``: before each call torch looks there for a compiled version of the module, and
leaves it out of copies and files. A callable object in this place sees the first call, and then removes itself.
"""

import inspect
import threading
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

_PLACE = "_compiled_call_impl"
_thread_now = threading.get_ident


class _FirstCall:
    """Stands in for the compiled version of a module until its first call in this thread, which it reports and passes on."""

    __slots__ = ("_before", "_module", "_name", "_over", "_said", "_thread")

    def __init__(self, module: nn.Module, name: str, said: Callable[[str], None], thread: int) -> None:
        self._module, self._name, self._said, self._thread, self._over = module, name, said, thread, False
        variables = module.__dict__
        self._before = variables.get(_PLACE)
        variables[_PLACE] = self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        before, module = self._before, self._module
        if not self._over and _thread_now() == self._thread:
            self.end()
            self._said(self._name)
        if before is None:
            return module._call_impl(*args, **kwargs)
        return before(*args, **kwargs)

    def end(self) -> None:
        """Put back what was in this place before."""
        self._over = True
        variables = self._module.__dict__
        if self._before is None and variables.get(_PLACE) is self:
            del variables[_PLACE]
            return
        while isinstance(found := variables.get(_PLACE), _FirstCall) and found._over:  # several watches may be stacked
            if found._before is None:
                del variables[_PLACE]
            else:
                variables[_PLACE] = found._before

    # A module that copies or pickles itself in its own way may include this object: the copy gets None.

    def __deepcopy__(self, memo: Any) -> None:
        return None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


FIRST_CALL = inspect.unwrap(_FirstCall.__call__).__code__  # on the stack only inside the first call of a module


class ModuleWatch:
    """Calls ``ran(name)`` at the first call of each of these modules in this thread, until :meth:`end`."""

    def __init__(self, modules: Iterable[tuple[str, nn.Module]], ran: Callable[[str], None]) -> None:
        thread = _thread_now()
        self._calls = [_FirstCall(module, name, ran, thread) for name, module in modules]

    def end(self) -> None:
        for call in self._calls:
            if not call._over:
                call.end()
        self._calls = []
