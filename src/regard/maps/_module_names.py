"""Finds the name of the module that attends, from the Python frames of the call stack.

A frame of ``module(…)`` holds the module in its variable ``self``, so the innermost such frame of one of the model's modules
is the call that attends. :meth:`ModuleNames.locate` returns it as a :class:`CallSite`. The second attention of one call is
named ``name#2``.

Hooks would be simpler, but they turn off the fast path of ``nn.TransformerEncoderLayer``, and run in other threads,
too.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn

from regard.maps._call_stack import (
    KNOWN_STACKS,
    USUAL,
    CallStack,
    call_stack_of,
    first_argument,
    frames_from,
    from_compiled_code,
    model_frames,
)

# Parts of a path that wrappers add.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")

_GRIDS = "image_grid_thw"  # the argument with the grids of images, in Qwen-VL
CALL = nn.Module._wrapped_call_impl.__code__  # the code of ``module(…)``: a frame with it is a call of a module
_COMPILER = "torch._dynamo.eval_frame"
_SIZES = ("projected", "channels")  # answers that depend on the sizes of torch's own layers
_MOST = 4096  # facts that are kept: sequences of many lengths add many


def clean(path: str) -> str:
    """The module path without what ``torch.compile`` and other wrappers add.

    >>> clean("_orig_mod.blocks.0.attn")
    'blocks.0.attn'
    """
    if "_orig_mod" not in path and "_wrapped_module" not in path:
        return path
    return ".".join(part for part in path.split(".") if part not in WRAPPERS)


def named_modules(model: nn.Module) -> dict[str, nn.Module]:
    """``dict(model.named_modules())``, but faster: without a generator for each level.

    >>> list(named_modules(nn.Sequential(nn.Sequential(nn.ReLU()), nn.ReLU())))
    ['', '0', '0.0', '1']
    """
    found = {"": model}
    _add_modules(found, {id(model)}, "", model)
    return found


def _add_modules(found: dict[str, nn.Module], known: set[int], prefix: str, module: nn.Module) -> None:
    for name, child in module._modules.items():
        if child is not None and id(child) not in known:
            known.add(id(child))
            path = prefix + name
            found[path] = child
            if child._modules:
                _add_modules(found, known, path + ".", child)


def runs_unseen(kind: type[nn.Module]) -> bool:
    """Whether modules of this class run outside of Python or in other threads, where nothing can be intercepted."""
    return issubclass(kind, torch.jit.ScriptModule | nn.DataParallel)


@dataclass(frozen=True)
class CallSite:
    """Where an attention happened: the module, its name, and the frames from the call outwards.

    Attributes:
        remembered: a cache for answers that do not change while the model is intercepted.
    """

    name: str
    module: nn.Module
    frames: tuple[FrameType, ...]
    remembered: dict[Any, Any] = field(default_factory=dict)

    def calls(self) -> Iterator[tuple[nn.Module, FrameType]]:
        """The module that attends and those that called it, each with the frame of its call; none if it was not called itself."""
        found = False
        for frame in self.frames:
            if frame.f_code is CALL:
                module = frame.f_locals["self"]
                found = found or module is self.module
                if found:
                    yield module, frame

    def local(self, function: str, name: str, module: nn.Module | None = None) -> Any:
        """A local variable of the innermost running function of this name; None if there is none.

        Args:
            module: if given, the function must be a method of this module.
        """
        for frame in self.frames:
            named = frame.f_code.co_name == function and name in frame.f_code.co_varnames
            if named and (module is None or first_argument(frame) is module):
                return frame.f_locals.get(name)
        return None


def attribute(module: nn.Module | None, name: str) -> Any:
    """``getattr(module, name, None)``, but faster if there is no such attribute: ``nn.Module`` would raise and catch an error.

    >>> attribute(nn.Linear(2, 3), "in_features"), attribute(nn.Linear(2, 3), "num_heads")
    (2, None)
    """
    kind = type(module)
    if module is None or hasattr(kind, name) or getattr(kind, "__getattr__", None) is not nn.Module.__getattr__:
        return getattr(module, name, None)
    variables = module.__dict__
    if name in variables:
        return variables[name]
    for place in ("_modules", "_buffers", "_parameters"):
        if name in variables.get(place, ()):
            return variables[place][name]
    return None


class ModuleNames:
    """Names of the modules of a model, and of the attention that runs in them.

    Attributes:
        root: the name of the model itself, which is that of its class.
        paths: the paths of all modules, by id.
        is_wrapped: whether wrappers such as ``torch.compile`` add parts to the paths.
        remembered: a cache for answers that do not change while the model is intercepted, see :class:`CallSite`.
        run: the number of the current run of the model, from 0.
        running: calls of modules whose attention was counted, some of which may have ended: frame, name, how often. Holding a
            frame keeps it from being reused.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules: dict[str, nn.Module] | None = named_modules(model)
        self.root = type(_unwrapped(model)).__name__
        self._listed: tuple[list[str], list[nn.Module]] = ([], [])
        self.paths = {id(module): path for path, module in self._modules.items()}
        joined = "\n".join(self._modules)
        self.is_wrapped = "_orig_mod" in joined or "_wrapped_module" in joined
        self._by_clean_name: dict[str, nn.Module] | None = None
        if self.is_wrapped:
            self._by_clean_name = {clean(path): module for path, module in self._modules.items()}
            self.paths = {id(module): path for path, module in self._by_clean_name.items()}
            if len(self.paths) < len(self._modules):  # some modules have the same path without the wrappers
                self.paths = {id(module): clean(path) for path, module in self._modules.items()}
        self._begin()

    @classmethod
    def known(cls, modules: list[nn.Module], listed: list[str], paths: dict[int, str], root: str) -> "ModuleNames":
        """The names of a model that did not change: ``listed`` are the paths of its modules, ``paths`` the same by id."""
        found = cls.__new__(cls)
        found._modules, found._by_clean_name, found._listed = None, None, (listed, modules)
        found.paths, found.root, found.is_wrapped = paths, root, False
        found._begin()
        return found

    def _begin(self) -> None:
        """Set what changes while the model runs."""
        self._parents: dict[str, list[nn.Module]] = {}
        self.remembered: dict[Any, Any] = {}
        self.running: list[tuple[FrameType, str, int]] = []
        self._outermost: FrameType | None = None  # the outermost frame of the model's latest run
        self.run = 0
        self._outside = USUAL  # what the functions around this run say
        # The grids of the images with which the latest run was called, if it has such an argument.
        self.image_grids: Any = None
        # Whether compiled code called some of the attention.
        self.compiled = False

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All modules, by their paths."""
        if self._modules is None:
            self._modules = dict(zip(*self._listed, strict=True))
        return self._modules

    @property
    def _by_name(self) -> dict[str, nn.Module]:
        return self.modules if self._by_clean_name is None else self._by_clean_name

    def of(self, module: nn.Module | None) -> str | None:
        """The module's path, the class name for the model itself, None for a module that is not in the model."""
        path = self.paths.get(id(module))
        return path if path is None or path else self.root

    def find(self, name: str) -> nn.Module | None:
        """The module of this name: the inverse of :meth:`of`."""
        return self._by_name.get("" if name == self.root and name not in self._by_name else name)

    def parents(self, name: str) -> list[nn.Module]:
        """The module of this name and those that contain it, innermost first."""
        path = name.partition("#")[0]
        found = self._parents.get(path)
        if found is None:
            parts = path.split(".")
            paths = [".".join(parts[:n]) for n in range(len(parts), -1, -1)]
            found = self._parents[path] = [self._by_name[path] for path in paths if path in self._by_name]
        return found

    def locate(
        self,
        module: nn.Module | None = None,
        member: Callable[[nn.Module], nn.Module | None] | None = None,
        count: bool = True,
    ) -> CallSite | None:
        """The innermost running call of one of the model's modules; None outside of the model.

        Args:
            module: the module that attends, if it is known.
            member: finds the submodule to which the attention belongs, if the running module computes it by itself.
            count: whether to count this as an attention of the call. The second one in a call is named ``name#2``.
        """
        frames = model_frames()
        if not self.compiled and _COMPILER in sys.modules:
            self.compiled = "compile_wrapper" in [frame.f_code.co_name for frame in frames] and from_compiled_code(
                frames
            )
        if self.running:
            self.running = [entry for entry in self.running if entry[0] in frames]
        for depth, frame in enumerate(frames):
            found = first_argument(frame)
            name = self.of(found) if isinstance(found, nn.Module) else None
            if name is None and _is_another_model(found, frame):
                break
            if name is None or (module is not None and found is not module):
                continue
            call = _call_of(found, frames[depth:])
            if call is None:  # the module is an argument of this function, but is not running
                continue
            if count:
                self._count_run(frames)
            part = None if member is None else member(found)
            if part is not None and (path := self.of(part)) is not None:
                found, name = part, path
            name = self._numbered(call, name) if count else name
            return CallSite(name, found, tuple(frames), self.remembered)
        path = self.of(module)
        return None if path is None or module is None else CallSite(path, module, tuple(frames))

    def _count_run(self, frames: list[FrameType]) -> None:
        """Count a run of the model. ``generate``, or any method of it that calls the model several times, is one run."""
        if self._outermost is not None and self._outermost in frames:
            return
        outermost = next((frame for frame in reversed(frames) if self._is_call(frame)), None)
        if outermost is not None:
            self.run += self._outermost is not None
            self._outermost = outermost
            stated = (frame.f_locals.get(_GRIDS) for frame in frames if _GRIDS in frame.f_code.co_varnames)
            self.image_grids = next((found for found in stated if found is not None), self.image_grids)

    def _is_call(self, frame: FrameType) -> bool:
        """Whether this is a call of a module of the model, or of one of its methods."""
        found = first_argument(frame)
        if not isinstance(found, nn.Module) or self.of(found) is None:
            return False
        code = frame.f_code
        method = getattr(type(found), code.co_name, len)
        if getattr(method, "__code__", None) is code:
            return True
        return getattr(inspect.unwrap(method), "__code__", None) is code

    def begin(self, call: FrameType, inside: list[FrameType], codes: tuple[int, ...]) -> CallStack:
        """The call stack of a call that is about to attend, for repeated calls: it is found by ids, in little time.

        Args:
            inside: the frames of the functions inside the call.
            codes: the ids of their code objects.
        """
        run = self._outermost
        numbers, frame = [*codes], call
        while frame is not run:
            numbers.append(id(frame.f_code))
            back = frame.f_back
            if back is None:
                return self._begin_run(call, inside)
            frame = back
        known = tuple(numbers)
        found = KNOWN_STACKS.get(known) or call_stack_of(known, call, inside, run)
        if self._outside is not USUAL:
            found = found.within(self._outside)
        if found.compiled and not self.compiled:
            self.compiled = from_compiled_code(inside + frames_from(call))
        return found

    def _begin_run(self, call: FrameType, inside: list[FrameType]) -> CallStack:
        """As :meth:`begin`, for the first attention of a run."""
        around = frames_from(call)
        self._count_run(around)
        codes = [frame.f_code for frame in around]
        numbers = (*map(id, [frame.f_code for frame in inside]), *map(id, codes))
        found = KNOWN_STACKS.get(numbers) or call_stack_of(numbers, call, inside, None)
        self._outside, outermost = USUAL, self._outermost
        if any(found[:3]) and outermost in around:
            outside = CallStack.of(codes[around.index(outermost) :])
            self._outside = outside if any(outside[:3]) else USUAL
        if found.compiled and not self.compiled:
            self.compiled = from_compiled_code(inside + around)
        return found

    def counts(self, call: FrameType) -> bool:
        """Whether an attention of this call was counted. Forgets calls that ended."""
        if not self.running:
            return False
        frames = model_frames()
        self.running = [entry for entry in self.running if entry[0] in frames]
        return any(entry[0] is call for entry in self.running)

    def attended(self, call: FrameType, name: str) -> None:
        """Count the first attention of this call."""
        self.running.append((call, name, 1))

    def _numbered(self, frame: FrameType, name: str) -> str:
        """Count an attention of this call. Returns its name: that of the module, with ``#2`` for the second one."""
        for index, (running, known, count) in enumerate(self.running):
            if running is frame and known == name:
                self.running[index] = (frame, name, count + 1)
                return f"{name}#{count + 1}" if count else name
        self.running.append((frame, name, 1))
        return name

    def take_back(self, name: str) -> None:
        """Undo the counting of the latest attention, which was retracted."""
        path = name.partition("#")[0]
        for index, (frame, known, count) in enumerate(self.running):
            if known == path and name == (path if count == 1 else f"{path}#{count}"):
                self.running[index] = (frame, known, count - 1)

    @property
    def facts(self) -> dict[Any, Any]:
        """The remembered answers that hold for later captures of an unchanged model. They do not refer to the model.

        Sizes of linear layers and convolutions are asked for again: their weights may be replaced by others of another shape.
        """
        found = {key: x for key, x in self.remembered.items() if not isinstance(x, list) or not x}
        own = {key: x for key, x in found.items() if not isinstance(key[0], int) or key[0] in self.paths}
        own = {key: x for key, x in own.items() if key[1] not in _SIZES}
        return own if sum(len(x) if isinstance(x, dict) else 1 for x in own.values()) < _MOST else {}

    def remember(self, facts: dict[Any, Any]) -> None:
        self.remembered.update(facts)

    def forget(self) -> None:
        """Release the frames, and with them the tensors that they refer to."""
        self.running.clear()
        self.remembered.clear()
        self._outermost, self.run = None, 0


def _call_of(module: nn.Module, frames: list[FrameType]) -> FrameType | None:
    """The frame of the module's running call; None if the module is not running."""
    for frame in frames:
        if frame.f_code is CALL and first_argument(frame) is module:
            return frame
    for frame in reversed(frames):  # a method was called directly
        method = getattr(type(module), frame.f_code.co_name, None)
        if getattr(method, "__code__", None) is frame.f_code and first_argument(frame) is module:
            return frame
    return None


def _is_another_model(found: Any, frame: FrameType) -> bool:
    """Whether this frame is the call of a module with parameters outside of the model: an assistant model, or a teacher."""
    called = frame.f_code is CALL and isinstance(found, nn.Module)
    return called and next(found.parameters(), None) is not None


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of ``torch.compile``."""
    inner = getattr(model, "_orig_mod", None)
    return _unwrapped(inner) if isinstance(inner, nn.Module) else model
