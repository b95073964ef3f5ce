"""Operators that a sleeping interceptor is woken by.

A torch function mode sees every function that a model calls, which costs more than all the rest of a capture. A dispatch
key that is on in one thread alone, and has kernels for a few operators only, costs nothing for all others: the dispatcher
skips it. The kernels pass the call to the interceptor of the thread.
"""

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from regard.observation import is_hidden

_KEY = "TESTING_ONLY_GenericMode"  # no operator of torch's own has a kernel for it

# What a model calls, by the operator that it becomes.
_TRAPS: dict[str, tuple[str, Any]] = {
    "scaled_dot_product_attention": ("scaled_dot_product_attention", F.scaled_dot_product_attention),
    "conv2d": ("conv2d", torch.conv2d),
    "conv2d.padding": ("conv2d", torch.conv2d),
    "softmax.int": ("softmax", torch.softmax),
    "log_softmax.int": ("log_softmax", torch.log_softmax),
    "bmm": ("bmm", torch.bmm),
    "baddbmm": ("baddbmm", torch.baddbmm),
    "_native_multi_head_attention": ("_native_multi_head_attention", torch._native_multi_head_attention),
    "_transformer_encoder_layer_fwd": ("_transformer_encoder_layer_fwd", torch._transformer_encoder_layer_fwd),
}


@runtime_checkable
class Sleeper(Protocol):
    """Takes the calls of operators with traps, in one thread."""

    def trapped(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class _Asleep(threading.local):
    def __init__(self) -> None:
        self.sleeper: Sleeper | None = None


_thread = _Asleep()
_lock = threading.Lock()
_libraries: list[Any] = []  # for as long as the process runs: without the key they have no effect


@functools.cache
def _keys() -> tuple[Any, Any]:
    key = torch._C._dispatch_key_parse(_KEY)
    return key, torch._C.DispatchKeySet(key)


@functools.cache
def _are_set() -> bool:
    """Whether this version of torch can have such traps. They are set once."""
    with _lock:
        try:
            _keys()
            others = torch.library.Library("_", "IMPL")
            others.fallback(torch.library.fallthrough_kernel, _KEY)
            traps = torch.library.Library("aten", "IMPL")
            for operator, (name, function) in _TRAPS.items():
                packet, _, overload = operator.partition(".")
                original = getattr(getattr(torch.ops.aten, packet), overload or "default")
                traps.impl(operator, _trap(name, function, original), _KEY)
            _libraries.extend((others, traps))
        except (AttributeError, RuntimeError, ValueError):
            return False
    return True


def _trap(name: str, function: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        sleeper = _thread.sleeper
        with torch._C._ExcludeDispatchKeyGuard(_keys()[1]):
            if sleeper is None or is_hidden():
                return original(*args, **kwargs)
            return sleeper.trapped(name, function, args, kwargs)

    return kernel


class Sleep:
    """From when it is made until :meth:`end`, operators with traps are passed to the sleeper, in this thread."""

    def __init__(self, sleeper: Sleeper) -> None:
        self._guard = torch._C._IncludeDispatchKeyGuard(_keys()[0])
        self._guard.__enter__()
        _thread.sleeper = sleeper

    @staticmethod
    def is_possible() -> bool:
        """Whether nobody sleeps in this thread, and no mode would see less than it does."""
        return _thread.sleeper is None and not torch._C._len_torch_function_stack() and _are_set()

    def end(self) -> None:
        _thread.sleeper = None
        self._guard.__exit__(None, None, None)
