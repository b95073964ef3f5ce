"""Sees the calls of a few operators, in one thread, and costs nothing for all others.

A torch function mode sees every function that a model calls, which costs more than all the rest of a capture. A dispatch
key that is on in one thread alone, and has kernels for a few operators only, is skipped by the dispatcher for all others. The
kernels pass the call to the listener of the thread.
"""

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F

from regard.observation import is_hidden

_KEY = "TESTING_ONLY_GenericMode"  # no operator of torch's own has a kernel for it

ATTENTION = "scaled_dot_product_attention"
_frame = sys._getframe

# What a model calls, by the operator that it becomes.
_WATCHED: dict[str, tuple[str, Any]] = {
    ATTENTION: (ATTENTION, F.scaled_dot_product_attention),
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
class OperatorListener(Protocol):
    """Takes the calls of these operators, in one thread."""

    def attention_called(self, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> Any:
        """``scaled_dot_product_attention`` is called by this function: its output, if that is known at once; else None. It
        calls no operator that is watched."""
        ...

    def operator_called(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class _ListenerOfThread(threading.local):
    def __init__(self) -> None:
        self.listener: OperatorListener | None = None
        self.declined = False  # by the listener, of the call that now comes by the operator


_thread = _ListenerOfThread()
_lock = threading.Lock()
_libraries: list[Any] = []  # for as long as the process runs: without the key they have no effect


@functools.cache
def _keys() -> tuple[Any, Any]:
    key = torch._C._dispatch_key_parse(_KEY)
    return key, torch._C.DispatchKeySet(key)


@functools.cache
def _is_ready() -> bool:
    """Whether operators can be watched in this version of torch. Their kernels are registered once."""
    with _lock:
        try:
            _keys()
            others = torch.library.Library("_", "IMPL")
            others.fallback(torch.library.fallthrough_kernel, _KEY)
            watched = torch.library.Library("aten", "IMPL")
            for operator, (name, function) in _WATCHED.items():
                packet, _, overload = operator.partition(".")
                original = getattr(getattr(torch.ops.aten, packet), overload or "default")
                kernel = _kernel(name, function, original)
                watched.impl(operator, _attention_kernel(kernel) if name == ATTENTION else kernel, _KEY)
            _libraries.extend((others, watched))
        except (AttributeError, RuntimeError, ValueError):
            return False
    return True


def _kernel(name: str, function: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        listener = _thread.listener
        with unwatched():
            if listener is None or is_hidden():
                return original(*args, **kwargs)
            return listener.operator_called(name, function, args, kwargs)

    return kernel


def _attention_kernel(usual: Callable[..., Any]) -> Callable[..., Any]:
    """As usual, unless the listener knows the output at once: then not even the key is taken off."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        listener, declined = _thread.listener, _thread.declined
        _thread.declined = False
        if listener is not None and not declined and not is_hidden():
            out = listener.attention_called(args, kwargs, _frame(1))
            if out is not None:
                return out
        return usual(*args, **kwargs)

    return kernel


def unwatched() -> AbstractContextManager[Any]:
    """Inside of this block, no operator is watched."""
    return torch._C._ExcludeDispatchKeyGuard(_keys()[1])  # type: ignore[no-any-return]


class OperatorWatch:
    """From when it is made until :meth:`end`, the listener takes the calls of these operators, in this thread.

    Most models find attention as an attribute of ``torch.nn.functional``. There stands a function that asks the listener at
    once, which takes less time than to come back to Python from an operator. Models that keep the function itself, and
    calls that are unlike earlier ones, come by the operator.
    """

    def __init__(self, listener: OperatorListener) -> None:
        self._guard = torch._C._IncludeDispatchKeyGuard(_keys()[0])
        self._guard.__enter__()
        _thread.listener = listener
        _shortcut.begin()

    @staticmethod
    def is_possible() -> bool:
        """Whether nobody watches in this thread, and torch can."""
        return _thread.listener is None and _is_ready()

    def end(self) -> None:
        _shortcut.end()
        _thread.listener = None
        self._guard.__exit__(None, None, None)


class _Shortcut:
    """A function of ours in the place of ``torch.nn.functional.scaled_dot_product_attention``, while any thread watches."""

    def __init__(self) -> None:
        self._lock, self._watches = threading.Lock(), 0

    def begin(self) -> None:
        with self._lock:
            _register_for_torchscript()
            self._watches += 1
            if F.scaled_dot_product_attention is _ORIGINAL:  # and not a function of somebody else's
                F.scaled_dot_product_attention = _ask_listener

    def end(self) -> None:
        with self._lock:
            self._watches -= 1
            if self._watches == 0 and F.scaled_dot_product_attention is _ask_listener:
                F.scaled_dot_product_attention = _ORIGINAL


@functools.cache
def _register_for_torchscript() -> None:
    """Code that is scripted inside a block calls the operator, as it would outside."""
    from torch.jit import _builtins

    operator = _builtins._find_builtin(_ORIGINAL)
    if operator is not None:
        _builtins._register_builtin(_ask_listener, operator)


_shortcut = _Shortcut()
_ORIGINAL = F.scaled_dot_product_attention


@functools.wraps(_ORIGINAL)
def _ask_listener(*args: Any, **kwargs: Any) -> Any:
    if torch.compiler.is_compiling():  # in another thread
        return _ORIGINAL(*args, **kwargs)
    listener = _thread.listener
    if listener is not None and len(args) == 3 and not is_hidden():
        # As the operator would pass them.
        get = kwargs.get
        given = (*args, get("attn_mask"), get("dropout_p", 0.0), get("is_causal", False))
        out = listener.attention_called(given, kwargs, _frame(1))
        if out is not None:
            return out
        _thread.declined = True
        try:
            return _ORIGINAL(*args, **kwargs)
        finally:
            _thread.declined = False
    return _ORIGINAL(*args, **kwargs)
