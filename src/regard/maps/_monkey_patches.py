"""Temporary changes of torch and Python for what a torch function mode cannot see. The last interception to end undoes them.

A mode belongs to one thread, and sees only torch functions. Five things are outside its reach:

- ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` leave their fast path if
  ``torch.overrides.has_torch_function`` says that a mode is active. Our version ignores our own modes: the path is
  kept.
- Compiled code would be compiled again because of the mode. It runs as the Python code from which it was compiled.
- ``flex_attention``, ``flash_attn`` and ``xformers`` are Python functions that a mode does not see, and models hold
  their own references to them. So the function object itself is changed: its ``__code__`` calls the interceptor.
- ``torch.func.functional_call`` replaces parameters by other tensors. The interceptor is told which.
- Threads that an intercepted thread starts, or passes work to, are not intercepted. The interceptor is told, to report
  it.

No patch has an effect in a thread that is not intercepted.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FunctionType
from typing import Any, Protocol, runtime_checkable

import torch
from torch.nn.utils import stateless

from regard.maps._call_stack import PATCHED_CODE
from regard.maps.sources import PYTHON_FUNCTIONS


@runtime_checkable
class FunctionInterceptor(Protocol):
    """Takes the calls of patched functions in its thread, see :class:`Patched`."""

    keeps_path: bool

    def called(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def watch_everything(self) -> None: ...

    def parameters_replaced(self, module: torch.nn.Module, parameters: Any) -> None: ...

    def thread_started(self) -> None: ...


class _Thread(threading.local):
    """The interceptors of each thread, innermost last, and how many times :func:`paused` was entered."""

    def __init__(self) -> None:
        self.interceptors: list[FunctionInterceptor] = []
        self.paused = 0


_thread = _Thread()
_lock = threading.RLock()
_active_count = 0  # interceptions in all threads
# Functions that undo the patches, with their arguments, in the order of patching.
_undo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

_COMPILER = "torch._dynamo.eval_frame"
# Modules that are patched as soon as they are imported, with their functions: (module:function, function).
_LATER: dict[str, list[tuple[str, str]]] = {_COMPILER: []}
for _name in PYTHON_FUNCTIONS:
    _LATER.setdefault(_name.partition(":")[0], []).append((_name, _name.partition(":")[2]))
_installed: set[str] = set()


class Patched:
    """Passes the calls of patched functions in this thread to ``interceptor``, inside the block.

    The first interception of all threads patches the process, and the last one to end undoes the patches. A class takes less time
    than a generator with ``contextmanager``.
    """

    def __init__(self, interceptor: FunctionInterceptor) -> None:
        self._interceptor, self._around = interceptor, _thread.interceptors

    def __enter__(self) -> None:
        global _active_count
        with _lock:
            if _active_count == 0:
                _install()
            _active_count += 1
        for outer in self._around:
            outer.watch_everything()
        self._around.append(self._interceptor)

    def __exit__(self, *error: object) -> None:
        global _active_count
        self._around.remove(self._interceptor)
        with _lock:
            _active_count -= 1
            if _active_count == 0:
                _restore()


class _Pause:
    """A class is faster than a generator with ``contextmanager``, and this is entered at each attention."""

    def __enter__(self) -> None:
        _thread.paused += 1

    def __exit__(self, *error: object) -> None:
        _thread.paused -= 1


_pause = _Pause()


def paused() -> AbstractContextManager[None]:
    """Run this block of the thread as if it were not intercepted: compiled code runs compiled."""
    return _pause


def _active() -> bool:
    """Whether this thread is intercepted now."""
    return bool(_thread.interceptors) and not _thread.paused


def _install() -> None:
    """Patch the process. If that fails, undo what was patched."""
    try:
        for owner, name, by in _PLACES:
            _replace(owner, name, by)
        sys.meta_path.insert(0, _finder)
        _undo.append((sys.meta_path.remove, (_finder,)))
        for module in _LATER:
            if module in sys.modules:
                _install_in(module)
    except BaseException:
        _restore()
        raise


def _restore() -> None:
    """Undo all patches, even if undoing one of them fails."""
    _installed.clear()
    try:
        while _undo:
            undo, args = _undo.pop()
            undo(*args)
    finally:
        if _undo:  # undoing one patch failed: undo the others
            _restore()


def _install_in(module: str) -> None:
    """Patch the functions of a module that was imported."""
    if module == _COMPILER and _once(module):
        _run_compiled_code_as_python()
    for name, function in _LATER[module]:
        found = getattr(sys.modules[module], function, None)
        if isinstance(found, FunctionType) and _once(name):
            _patch_function(name, found)


def _once(name: str) -> bool:
    """Whether this was not patched yet. Then note that it is."""
    if name in _installed:
        return False
    _installed.add(name)
    return True


class _Finder:
    """An import hook that patches modules when they are imported later: importing them just to patch them takes seconds."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in _LATER:
            return None
        others = (finder for finder in list(sys.meta_path) if finder is not self)
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        loader: Any = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module") and not isinstance(loader, type):
            run = loader.exec_module

            def run_and_install(module: Any) -> None:
                del loader.exec_module
                run(module)
                with _lock:
                    if _active_count:
                        _install_in(name)

            loader.exec_module = run_and_install
        return spec


_finder = _Finder()


@functools.lru_cache(8)
def _ignore_our_modes(original: Callable[..., bool]) -> Callable[..., bool]:
    """A version of ``torch.overrides.has_torch_function`` that ignores the modes of interceptors."""

    @functools.wraps(original)
    def has_torch_function(relevant: Any) -> bool:
        modes = torch.overrides._get_current_function_mode_stack()
        ours = _thread.interceptors
        # Other modes, and tensors that override functions, still count.
        if modes and _active() and all(mode in ours for mode in modes) and all(one.keeps_path for one in ours):
            return any(overrides(x) for x in relevant)
        return bool(original(relevant))

    return has_torch_function


@functools.lru_cache(8)
def _report_threads(original: Callable[..., Any]) -> Callable[..., Any]:
    """A version of a method that starts a thread, or passes work to one, that tells the interceptors."""

    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        if _active():
            for interceptor in _thread.interceptors:
                interceptor.thread_started()
        return original(*args, **kwargs)

    return start


@functools.lru_cache(8)
def _report_parameters(original: Callable[..., Any]) -> Callable[..., Any]:
    """A version of ``stateless._functional_call`` that tells the interceptors which parameters are replaced."""

    @functools.wraps(original)
    def functional_call(module: Any, parameters_and_buffers: Any, *args: Any, **kwargs: Any) -> Any:
        if _active():
            for interceptor in _thread.interceptors:
                interceptor.parameters_replaced(module, parameters_and_buffers)
        return original(module, parameters_and_buffers, *args, **kwargs)

    return functional_call


def _replace(owner: Any, name: str, by: Callable[[Any], Any]) -> None:
    """Replace an attribute by ``by(attribute)`` until the last interception ends."""
    original = getattr(owner, name)
    ours = by(original)
    setattr(owner, name, ours)
    _undo.append((_put_back, (owner, name, original, ours)))


def _put_back(owner: Any, name: str, original: Any, ours: Any) -> None:
    if getattr(owner, name) is ours:
        setattr(owner, name, original)


# Attributes to replace: their owner, their name, and what makes the replacement.
_PLACES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (torch.overrides, "has_torch_function", _ignore_our_modes),
    (stateless, "_functional_call", _report_parameters),
    (threading.Thread, "start", _report_threads),
    (ThreadPoolExecutor, "submit", _report_threads),
)


def overrides(x: Any) -> bool:
    """Whether ``x`` is a tensor that handles torch functions itself."""
    kind = type(x)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    override = getattr(kind, "__torch_function__", None)
    return override is not None and override is not torch._C._disabled_torch_function_impl


def _run_compiled_code_as_python() -> None:
    """Set the compiler's stance to eager in intercepted threads."""
    eval_frame: Any = sys.modules[_COMPILER]
    if not hasattr(eval_frame, "_stance"):
        # Another version of torch: its public switch does the same, but in every thread.
        eager = torch.compiler.set_stance("force_eager")
        eager.__enter__()
        _undo.append((eager.__exit__, (None, None, None)))
        return
    # Not by set_stance: it raises an error inside compiled code, where a nested interception may begin.
    kind: Any = type(eval_frame._stance)
    _replace(eval_frame, "_stance", _eager_where_intercepted(kind))


@functools.cache
def _eager_where_intercepted(kind: type) -> type:
    """A class for the compiler's stance: eager in intercepted threads, unchanged in all others."""

    class Stance(kind):  # type: ignore[misc]
        def __init__(self, prior: Any) -> None:
            object.__setattr__(self, "_prior", prior)

        def __getattribute__(self, name: str) -> Any:
            if name == "stance" and _active():
                return "force_eager"
            return getattr(object.__getattribute__(self, "_prior"), name)

    return Stance


def _patch_function(name: str, function: FunctionType) -> None:
    """Replace the code of a function by a call of :func:`intercepted`. A copy of the function keeps the original code."""
    code = function.__code__
    original = _originals.get(name)
    if original is None or original.__code__ is not code or original.__closure__ is not function.__closure__:
        original = FunctionType(
            code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        _originals[name] = original
        _signatures[name] = inspect.signature(function)
    original.__kwdefaults__ = function.__kwdefaults__
    vars(original).update(vars(function))  # attributes that decorators set, such as a signature
    had_signature = "__signature__" in vars(function)
    function.__code__ = _stand_in_code(name, len(code.co_freevars))
    if not had_signature:
        function.__signature__ = _signatures[name]  # type: ignore[attr-defined]
    _undo.append((_restore_function, (function, code, had_signature)))


def _restore_function(function: FunctionType, code: CodeType, had_signature: bool) -> None:
    function.__code__ = code
    if not had_signature:
        del function.__signature__  # type: ignore[attr-defined]


# Never removed: another thread may be about to use one when the last interception ends.
_originals: dict[str, FunctionType] = {}
_signatures: dict[str, inspect.Signature] = {}


@functools.cache
def _stand_in_code(name: str, cells: int) -> CodeType:
    """Code that calls :func:`intercepted`. It must have as many free variables as the code that it replaces."""
    free = [f"cell_{i}" for i in range(cells)]
    lines = [
        "def outer():",
        *(f"    {cell} = None" for cell in free),
        f"    def {PATCHED_CODE}(*args, **kwargs):",
        *(f"        {cell}" for cell in free),
        f"        from {__name__} import intercepted",
        f"        return intercepted({name!r}, args, kwargs)",
        f"    return {PATCHED_CODE}",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["outer"]().__code__  # type: ignore[no-any-return]


def intercepted(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A patched function was called: pass the call to the innermost interceptor of this thread, if there is one."""
    original = _originals[name]
    if not _active():
        return original(*args, **kwargs)
    return _thread.interceptors[-1].called(name, original, args, kwargs)


def outer_interceptors(interceptor: FunctionInterceptor) -> list[FunctionInterceptor]:
    """The interceptors of this thread around ``interceptor``, innermost first."""
    found = _thread.interceptors
    return found[: found.index(interceptor)][::-1]


def compiled_as_called(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, compiled if compiled code calls it.

    Compiled code runs as Python while it is intercepted. Its attention is still compiled, so that the same kernel runs.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            context = frame.f_locals.get("self")
            return context(original) if callable(context) else original  # type: ignore[no-any-return]
        frame = frame.f_back
    return original


@contextmanager
def without_interceptors() -> Iterator[None]:
    """Take our modes off the stack: compiled code compares the stack with the one under which it was compiled."""
    stack = []
    while torch._C._len_torch_function_stack():
        stack.append(torch.overrides._pop_mode())
    others = [mode for mode in reversed(stack) if not isinstance(mode, FunctionInterceptor)]
    for mode in others:
        torch.overrides._push_mode(mode)
    try:
        yield
    finally:
        for _ in others:
            torch.overrides._pop_mode()
        for mode in reversed(stack):
            torch.overrides._push_mode(mode)
