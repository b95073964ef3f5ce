"""Modules that look like attention. Those that ran and gave no map are reported, so that nothing is missing in silence."""

import re
from typing import Any

import torch
from torch import nn

from regard.maps._module_names import clean

_NAME = re.compile(r"attention|attn|(^|_)mha(_|$)|(^|_|lite)mla(_|$)|retention|delta_?net|delta_?rule", re.IGNORECASE)
_REASON = "it looks like attention and ran, but no map was recognized in it: "
_ELSEWHERE = "it looks like attention and did not run in this thread; if it ran in another, it was not seen"
_USUAL = "it may be linear attention, a recurrence, a scripted or traced function, or weights that no softmax made"


class SilentModules:
    """The modules of a model that look like attention, and whether they ran. Their parameters tell it, without hooks.

    A module looks like attention by its name or by its class, and if it holds two matrices or more.

    Attributes:
        waiting: the parameters of modules that did not run yet.
    """

    def __init__(self, model: nn.Module) -> None:
        self._owner: dict[int, str] = {}
        self.waiting: dict[int, str] = {}
        self._root = type(model).__name__
        self._ran: dict[str, None] = {}
        self._operators: dict[str, str] = {}
        with (
            torch._C.DisableTorchFunction()
        ):  # an interceptor around this one would take it for a use of the parameters
            self._find(model)
        self.waiting.update(self._owner)

    def _find(self, model: nn.Module) -> None:
        for path, module in model.named_modules():
            if _NAME.search(path.rpartition(".")[2]) or _NAME.search(type(module).__name__):
                matrices = [x for x in module.parameters() if x.ndim >= 2]
                if len(matrices) >= 2:
                    # Modules come outermost first: the innermost one keeps its parameters.
                    self._owner.update(dict.fromkeys(map(id, matrices), clean(path) or self._root))

    def __bool__(self) -> bool:
        return bool(self._owner)

    def used(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A function was called: its arguments may be parameters of such a module."""
        waiting = self.waiting
        for x in (*args, *kwargs.values()):
            if id(x) in waiting:
                name = waiting[id(x)]
                self._ran[name] = None
                for key in [key for key, owner in waiting.items() if owner == name]:
                    del waiting[key]  # once is enough

    def operator(self, name: str | None, operator: str) -> None:
        """An operator that is not torch's own ran in the module of this name."""
        if name is not None:
            self._operators[name] = operator

    def unaccounted(self, accounted: set[str], threads: bool) -> list[tuple[str, str]]:
        """The modules that ran and of which nothing is known, with a reason each.

        Args:
            accounted: names of modules that gave a map, or of which it is known why not.
            threads: whether other threads were started, in which modules may have run.
        """
        whole = self._root in accounted
        found = []
        for name in dict.fromkeys((*self._ran, *self._owner.values())) if threads else self._ran:
            related = any(
                name == known or known.startswith(name + ".") or name.startswith(known + ".") for known in accounted
            )
            if related or whole or (name == self._root and accounted):
                continue
            if name not in self._ran:
                found.append((name, _ELSEWHERE))
                continue
            inside = (text for where, text in self._operators.items() if where == name or where.startswith(name + "."))
            operator = next(inside, None)
            found.append((name, _REASON + (_USUAL if operator is None else f"the operator {operator} ran in it")))
        return found
