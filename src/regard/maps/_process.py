"""What has to change in the process while someone watches, and is put back when the last one stops.

Watching itself is a torch function mode, which belongs to one thread. Three things are outside its reach:

- ``nn.TransformerEncoder`` and ``nn.MultiheadAttention`` leave their fast path as soon as any mode is active: they ask
  ``torch.overrides.has_torch_function``. Under watch it answers for the tensors alone, so that the path is kept.
- Compiled code would be traced anew, with the mode in it. Under watch it runs as the Python it was compiled from.
- ``flex_attention``, ``flash_attn``, ``xformers`` and our own ``gaussian_attention`` are Python functions that a mode
  does not see, and models keep their own reference to them. Under watch the function itself (its ``__code__``) hands
  its call over.

All three ask which thread they are in and do nothing in a thread that does not watch.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class Watch(Protocol):
    """One who watches a thread; :func:`watching` makes it the innermost one."""

    keeps_path: bool

    def called(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class _Thread(threading.local):
    def __init__(self) -> None:
        self.watches: list[Watch] = []
        self.paused = 0


_thread = _Thread()
_lock = threading.RLock()
_watched = 0
_undo = ExitStack()

# Attention that no mode sees, as module:function. Modules that nobody has imported are left alone.
FOREIGN = (
    "torch.nn.attention.flex_attention:flex_attention",
    "flash_attn.flash_attn_interface:flash_attn_func",
    "flash_attn.flash_attn_interface:flash_attn_qkvpacked_func",
    "flash_attn.flash_attn_interface:flash_attn_kvpacked_func",
    "flash_attn.flash_attn_interface:flash_attn_varlen_func",
    "flash_attn.flash_attn_interface:flash_attn_varlen_qkvpacked_func",
    "flash_attn.flash_attn_interface:flash_attn_varlen_kvpacked_func",
    "flash_attn.flash_attn_interface:flash_attn_with_kvcache",
    "flash_attn_interface:flash_attn_func",
    "flash_attn_interface:flash_attn_qkvpacked_func",
    "flash_attn_interface:flash_attn_varlen_func",
    "flash_attn_interface:flash_attn_with_kvcache",
    "xformers.ops.fmha:memory_efficient_attention",
    "xformers.ops.fmha:memory_efficient_attention_forward",
    "xformers.ops.fmha:memory_efficient_attention_forward_requires_grad",
    "regard.functional._gaussian:gaussian_attention",
)


_COMPILER = "torch._dynamo.eval_frame"
_LATER = {_COMPILER, *(name.partition(":")[0] for name in FOREIGN)}
_installed: set[str] = set()


@contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Let ``watch`` be told of foreign calls in this thread; the process is prepared by the first, restored by the
    last, in whatever order threads come and go."""
    global _watched
    with _lock:
        if _watched == 0:
            _install()
        _watched += 1
    _thread.watches.append(watch)
    try:
        yield
    finally:
        _thread.watches.remove(watch)
        with _lock:
            _watched -= 1
            if _watched == 0:
                _undo.close()


@contextmanager
def paused() -> Iterator[None]:
    """A stretch of this thread that runs as if nobody watched: what is compiled runs compiled."""
    _thread.paused += 1
    try:
        yield
    finally:
        _thread.paused -= 1


def _active() -> bool:
    return bool(_thread.watches) and not _thread.paused


def _install() -> None:
    try:
        _undo.enter_context(_fast_path_kept())
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        _undo.callback(sys.meta_path.remove, finder)
        for module in _LATER:
            if module in sys.modules:
                _install_in(module)
    except BaseException:
        _undo.close()
        raise


def _install_in(module: str) -> None:
    """What has to change in a module that is there."""
    if module == _COMPILER and _once(module):
        _undo.enter_context(_compiled_code_as_python())
    for name in FOREIGN:
        home, function = name.split(":")
        found = getattr(sys.modules[module], function, None) if home == module else None
        if isinstance(found, FunctionType) and _once(name):
            _undo.enter_context(_handed_over(name, found))


def _once(name: str) -> bool:
    if name in _installed:
        return False
    _installed.add(name)
    _undo.callback(_installed.discard, name)
    return True


class _Finder:
    """Notices modules that are imported while someone watches: to import them beforehand would take seconds."""

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
                    if _watched:
                        _install_in(name)

            loader.exec_module = run_and_install
        return spec


@contextmanager
def _fast_path_kept() -> Iterator[None]:
    original = torch.overrides.has_torch_function

    @functools.wraps(original)
    def has_torch_function(relevant: Any) -> bool:
        if _active() and all(watch.keeps_path for watch in _thread.watches):
            # Still true for a mode of someone else, or a tensor that overrides functions itself.
            modes = torch.overrides._get_current_function_mode_stack()
            if all(mode in _thread.watches for mode in modes):
                return any(overrides(x) for x in relevant)
        return bool(original(relevant))

    torch.overrides.has_torch_function = has_torch_function  # type: ignore[assignment]
    try:
        yield
    finally:
        if torch.overrides.has_torch_function is has_torch_function:
            torch.overrides.has_torch_function = original


def overrides(x: Any) -> bool:
    """Whether ``x`` is a tensor that handles torch functions itself."""
    kind = type(x)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return False
    override = getattr(kind, "__torch_function__", None)
    return override is not None and override is not torch._C._disabled_torch_function_impl


@contextmanager
def _compiled_code_as_python() -> Iterator[None]:
    from torch._dynamo import eval_frame

    if not hasattr(eval_frame, "_stance"):
        # A torch that keeps it elsewhere: its public switch does the same, for every thread.
        with torch.compiler.set_stance("force_eager"):
            yield
        return

    prior = eval_frame._stance

    class Stance(type(prior)):  # type: ignore[misc]
        """Eager where a thread watches, as before everywhere else."""

        def __init__(self) -> None:
            pass

        def __getattribute__(self, name: str) -> Any:
            if name == "stance" and _active():
                return "force_eager"
            return getattr(prior, name)

    ours = Stance()
    # Assigned, not set by set_stance: that refuses inside compiled code, where a nested watch may well begin.
    eval_frame._stance = ours
    try:
        yield
    finally:
        if eval_frame._stance is ours:
            eval_frame._stance = prior


@contextmanager
def _handed_over(name: str, function: FunctionType) -> Iterator[None]:
    code = function.__code__
    original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    vars(original).update(vars(function))  # what a decorator notes there, such as the signature of what it wraps
    _originals[name] = original
    had_signature = "__signature__" in vars(function)
    signature = inspect.signature(function)
    function.__code__ = _hand_over_code(name, len(code.co_freevars))
    if not had_signature:
        function.__signature__ = signature  # type: ignore[attr-defined]
    try:
        yield
    finally:
        function.__code__ = code
        if not had_signature:
            del function.__signature__  # type: ignore[attr-defined]


# Kept for good: another thread may be about to ask for one when the last watch ends.
_originals: dict[str, FunctionType] = {}


def _hand_over_code(name: str, cells: int) -> CodeType:
    """The code of a function that hands its call over, with as many free variables as the function it stands for."""
    free = [f"cell_{i}" for i in range(cells)]
    lines = [
        "def outer():",
        *(f"    {cell} = None" for cell in free),
        "    def hand_over(*args, **kwargs):",
        *(f"        {cell}" for cell in free),
        "        from regard.maps._process import handed_over",
        f"        return handed_over({name!r}, args, kwargs)",
        "    return hand_over",
    ]
    scope: dict[str, Any] = {}
    exec("\n".join(lines), scope)
    return scope["outer"]().__code__  # type: ignore[no-any-return]


def handed_over(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A foreign function was called: the innermost watch of this thread decides, others see it as any call."""
    original = _originals[name]
    if not _active():
        return original(*args, **kwargs)
    return _thread.watches[-1].called(name, original, args, kwargs)


def outer_watches(watch: Watch) -> list[Watch]:
    """The watches of this thread around ``watch``, innermost first."""
    watches = _thread.watches
    return watches[: watches.index(watch)][::-1]
