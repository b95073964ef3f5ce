"""Watches the calls of a few operators in one thread. All other operators cost nothing.

A torch function mode sees every function that a model calls, which takes more time than the rest of a capture. Here a
dispatch key does the work: it is on in one thread only, and has kernels for a few operators only, so torch's dispatcher
skips it for all others. These kernels pass the call to the thread's listener.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch.overrides import has_torch_function

from regard.maps._torch_modes import ANOTHER_THREAD
from regard.observation import is_hidden

_KEY = "TESTING_ONLY_GenericMode"  # a dispatch key for which torch registers no kernels

ATTENTION = "scaled_dot_product_attention"

# The watched operators: the name and the function under which a model calls each.
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
    """Takes the calls of the watched operators in one thread."""

    def attention_called(self, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> Any:
        """``scaled_dot_product_attention`` is called by the function with this frame.

        Returns the output if this is a repeated call, which needs nothing else; None leaves it to :meth:`operator_called`. It
        must not call a watched operator.
        """
        ...

    def operator_called(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the call of an operator and return its output."""
        ...

    def watch_everything(self) -> None:
        """Stop watching operators: a call may not arrive at them."""
        ...


class _ListenerOfThread(threading.local):
    def __init__(self) -> None:
        self.listener: OperatorListener | None = None
        # Whether the listener was already asked about the call that now arrives at the operator, and declined.
        self.declined = False


_thread = _ListenerOfThread()
_lock = threading.Lock()
_libraries: list[Any] = []  # kept as long as the process runs; they have no effect while the key is off


@functools.cache
def watching_key() -> Any:
    """The dispatch key. Operators are watched where it is included and not excluded."""
    return torch._C._dispatch_key_parse(_KEY)


@functools.cache
def _only_key() -> Any:
    """The set of only this key."""
    return torch._C.DispatchKeySet(watching_key())


@functools.cache
def _is_ready() -> bool:
    """Whether operators can be watched in this version of torch. Registers the kernels at the first call."""
    with _lock:
        try:
            _only_key()
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
    """A kernel that passes the call to the listener, with watching off."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        listener = _thread.listener
        with unwatched():
            if listener is None or is_hidden():
                return original(*args, **kwargs)
            return listener.operator_called(name, function, args, kwargs)

    return kernel


def _attention_kernel(usual: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that first asks the listener for the output of a repeated call. This does not even need watching off."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        listener, declined = _thread.listener, _thread.declined
        _thread.declined = False
        if len(args) > 3 and is_described(args[3]):  # it did not know the original function, see _Shortcut.paused
            with torch._C._EnableTorchFunction():
                return _ask_listener(*args, **kwargs)
        if listener is not None and not declined and not is_hidden():
            out = listener.attention_called(args, kwargs, sys._getframe(1))
            if out is not None:
                return out
        return usual(*args, **kwargs)

    return kernel


def unwatched() -> AbstractContextManager[Any]:
    """A context in which no operator is watched."""
    return torch._C._ExcludeDispatchKeyGuard(_only_key())  # type: ignore[no-any-return]


class OperatorWatch:
    """Watches operators in this thread, from its creation until :meth:`end`.

    Most models look ``scaled_dot_product_attention`` up in ``torch.nn.functional``. So that attribute is replaced by a function
    that asks the listener at once, which is faster than returning to Python from an operator. Models that hold a reference to
    the original function, and calls that repeat no earlier one, arrive at the operator. So do calls that a function mode or
    a tensor subclass handles, except those with a mask of ``torch.nn.attention.bias``, which call kernels directly.
    """

    def __init__(self, listener: OperatorListener) -> None:
        self._guard = torch._C._IncludeDispatchKeyGuard(watching_key())
        self._guard.__enter__()
        self._listener = _thread.listener = listener
        _shortcut.begin()

    @staticmethod
    def is_possible() -> bool:
        """Whether this version of torch allows it, and this thread has no watch yet."""
        return _thread.listener is None and _is_ready()

    def end(self) -> None:
        _shortcut.end()
        if _thread.listener is not self._listener:
            raise RuntimeError(ANOTHER_THREAD)
        _thread.listener = None
        self._guard.__exit__(None, None, None)

    @staticmethod
    def clear() -> None:
        """Turn the key off if it is on without a watch: compiled code in which a watch ended turns it on again at its end."""
        key = watching_key()
        if _thread.listener is None and torch._C._dispatch_tls_is_dispatch_key_included(key):
            torch._C._dispatch_tls_set_dispatch_key_included(key, False)


def is_described(mask: Any) -> bool:
    """Whether this is a mask of ``torch.nn.attention.bias``, which holds no tensor."""
    return hasattr(mask, "seq_len_kv")


class _Shortcut:
    """Replaces ``torch.nn.functional.scaled_dot_product_attention`` by :func:`_ask_listener` while any thread watches."""

    def __init__(self) -> None:
        self._lock, self._watches, self._pauses = threading.Lock(), 0, 0

    def begin(self) -> None:
        with self._lock:
            _register_for_torchscript()
            self._watches += 1
            self._set()

    def end(self) -> None:
        with self._lock:
            self._watches -= 1
            self._set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The original function is back in its place: code that handles it compares functions with the attribute."""
        with self._lock:
            self._pauses += 1
            self._set()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                self._set()

    def _set(self) -> None:
        ours = self._watches > 0 and self._pauses == 0
        if F.scaled_dot_product_attention in (_ORIGINAL, _ask_listener):  # unless someone else replaced it
            F.scaled_dot_product_attention = _ask_listener if ours else _ORIGINAL


@functools.cache
def _register_for_torchscript() -> None:
    """Let code that is scripted during a capture compile our function to the operator, as the original is."""
    from torch.jit import _builtins

    operator = _builtins._find_builtin(_ORIGINAL)
    if operator is not None:
        _builtins._register_builtin(_ask_listener, operator)


_shortcut = _Shortcut()
_ORIGINAL = F.scaled_dot_product_attention


@functools.wraps(_ORIGINAL)
def _ask_listener(*args: Any, **kwargs: Any) -> Any:
    """Run a repeated call by the listener, and every other call by the operator."""
    if torch.compiler.is_compiling():  # another thread compiles while this one watches
        return _ORIGINAL(*args, **kwargs)
    listener = _thread.listener
    if has_torch_function((*args, *kwargs.values())):
        if listener is not None and is_described(args[3] if len(args) > 3 else kwargs.get("attn_mask")):
            listener.watch_everything()
        with _shortcut.paused():
            return _ORIGINAL(*args, **kwargs)
    if listener is not None and len(args) == 3 and not is_hidden():
        # The arguments as the operator would pass them, all by position.
        get = kwargs.get
        given = (*args, get("attn_mask"), get("dropout_p", 0.0), get("is_causal", False))
        out = listener.attention_called(given, kwargs, sys._getframe(1))
        if out is not None:
            return out
        _thread.declined = True
        try:
            return _ORIGINAL(*args, **kwargs)
        finally:
            _thread.declined = False
    return _ORIGINAL(*args, **kwargs)
