"""What an earlier capture of the same model has shown: that all of its attention is that of
``scaled_dot_product_attention``, once in each call of a module, and that nothing else concerns the maps.

Then the next capture of the unchanged model needs no torch function mode. It sleeps, and is woken by the operator itself
(see :mod:`regard.maps._traps`). If anything else happens that may be attention, it is awake from there on.
"""

import weakref
from collections.abc import Collection
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.maps._interception import Interceptor
from regard.maps._known_functions import in_backward
from regard.maps._listener import RecordListener
from regard.maps._module_names import CallSite, clean
from regard.maps._record import AttentionRecord
from regard.maps._silent_modules import SilentModules
from regard.maps._traps import Sleep
from regard.maps.sources import is_outer

_NUMBERS = frozenset({bool, int, str, float})
_EXPECTED = ("scaled_dot_product_attention", "conv2d")


class Habit(NamedTuple):
    """The names of the modules that attended, what the model was like then, and what is known of its modules."""

    names: frozenset[str]
    likeness: tuple[Any, ...]
    facts: dict[Any, Any]


_habits: weakref.WeakKeyDictionary[nn.Module, Habit] = weakref.WeakKeyDictionary()


class HabitualInterceptor(Interceptor):
    """An interceptor that sleeps if an earlier one has seen that it can."""

    def __init__(self, model: nn.Module, listener: RecordListener, keeps_path: bool = True) -> None:
        super().__init__(model, listener, keeps_path)
        self._model = model
        self._sleep: Sleep | None = None
        self._began = False
        self._known: Habit | None = None  # by which it sleeps
        self._hooks: list[RemovableHandle] = []
        self._usual = listener.projections is None and not self.blocks and type(model).__hash__ is not None
        self._likeness = _likeness(self.names.modules) if self._usual else None

    def __enter__(self) -> "HabitualInterceptor":
        first, self._began = not self._began, True
        known = _habits.get(self._model) if first and self._likeness is not None else None
        if known is not None and known.likeness == self._likeness and Sleep.is_possible():
            self.names.remember(known.facts)
            self._known = known
            self._watch(known.names)
            self._sleep = Sleep(self)
            return self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._watch(())
        if self._sleep is not None:
            self._sleep.end()
            self._sleep = None
        else:
            super().__exit__(*error)

    def _watch(self, names: Collection[str]) -> None:
        """Let the modules of these names, and no others, say that they ran: one that then gives no map is reported."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for path, module in self.names.modules.items() if names else ():
            name = clean(path) or type(module).__name__
            if name in names:
                self._hooks.append(module.register_forward_pre_hook(partial(_says_it_ran, self.silent, name)))

    def trapped(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator is called that has a trap, while this interceptor sleeps."""
        if in_backward() or (name == "bmm" and is_outer(args)):  # angles of rotary positions, for example
            return function(*args, **kwargs)
        if name not in _EXPECTED:
            self.wake()
        with torch._C.DisableTorchFunction():
            out = self._handlers[name](function, args, kwargs)
            if self._sleep is None and isinstance(out, Tensor) and self.handwritten.history.get(out) is not None:
                self.handwritten.history.also = out  # the model continues with a view of it
        return out

    def wake(self) -> None:
        """From now on every function of torch is seen."""
        if self._sleep is None:
            return
        self._watch(())
        self._sleep.end()
        self._sleep, self._usual = None, False
        others = []
        while torch._C._len_torch_function_stack():  # modes that began inside the block end before this one
            others.append(torch.overrides._pop_mode())
        super().__enter__()
        for mode in reversed(others):
            torch.overrides._push_mode(mode)

    def finish(self) -> None:
        names = frozenset(self._accounted)
        history = self.handwritten.history
        same = self._usual and not history.followed and not history.random.some and bool(names)
        if self._known is not None:
            same = self._usual and (not names or names == self._known.names)
        elif same and self._likeness is not None and self.silent.owners <= names:
            _habits[self._model] = Habit(names, self._likeness, self.names.facts)
        else:
            same = False
        if not same and type(self._model).__hash__ is not None:
            _habits.pop(self._model, None)
        super().finish()
        del self._model

    # -- what is not usual -------------------------------------------------------------------------------------

    def _missed(self, *args: Any) -> None:
        self._usual = False
        super()._missed(*args)

    def _record(self, site: CallSite, out: Any, source: Any, tokens_first: bool | None = None) -> Any:
        if "#" in site.name or tokens_first is not None:
            self._usual = False
        return super()._record(site, out, source, tokens_first)

    def _changed(self, record: AttentionRecord, running: Any, out: Any) -> Any:
        if running.folded or record.kind != "sdpa":
            self._usual = False
        return super()._changed(record, running, out)

    def _apart(self, function: Any, *args: Any) -> Any:  # type: ignore[override]
        self._usual = False
        return super()._apart(function, *args)

    def _multi_head(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._usual = False
        return super()._multi_head(func, args, kwargs)

    def _operator(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        self._usual = False
        super()._operator(func, args, out)

    def observed(self, module: nn.Module | None, output: Tensor, weights: Any, **about: Any) -> Tensor:
        self.wake()
        self._usual = False
        return super().observed(module, output, weights, **about)

    def called(self, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.wake()
        self._usual = False
        return super().called(name, original, args, kwargs)

    def parameters_replaced(self, module: nn.Module, parameters: Any) -> None:
        self.wake()
        self._usual = False
        super().parameters_replaced(module, parameters)

    def thread_started(self) -> None:
        self.wake()
        self._usual = False
        super().thread_started()


def _says_it_ran(silent: SilentModules, name: str, *_: Any) -> None:
    silent.ran(name)


@lru_cache(4096)
def _about(kind: type[nn.Module]) -> tuple[bool, bool]:
    """Whether a class is torch's own, and whether it runs outside of Python."""
    return kind.__module__.startswith("torch.nn."), issubclass(kind, torch.jit.ScriptModule)


def _likeness(modules: dict[str, nn.Module]) -> tuple[Any, ...] | None:
    """What decides which way a model takes, as far as its modules state it; None if that cannot be told."""
    found: list[Any] = []
    configurations: dict[int, Any] = {}
    for module in modules.values():
        kind, variables = type(module), module.__dict__
        from_torch, scripted = _about(kind)  # type: ignore[arg-type]
        if scripted:
            return None
        for hooks in (variables.get("_forward_hooks"), variables.get("_forward_pre_hooks")):
            if hooks:
                found += map(id, hooks.values())
        found += (id(module), kind.forward, variables.get("training"), id(variables.get("forward")))
        if not from_torch:
            for name, x in variables.items():
                if type(x) in _NUMBERS:
                    found.append(x)
                elif name == "config":
                    configurations[id(x)] = x
    found += [getattr(x, "_attn_implementation", None) for x in configurations.values()]
    return tuple(found)
