"""``intercept``: recognizes every attention that a model computes, names it, and passes its record to a listener."""

import re
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.maps._axes import MapAxes
from regard.maps._contributions import PROJECTIONS
from regard.maps._differences import SUBTRACTIONS, OutputPairs
from regard.maps._layout import Layout, inferred_layout, states_layout
from regard.maps._listener import RecordListener
from regard.maps._module_names import CallSite, ModuleNames
from regard.maps._patches import compiled_as_called, outer_interceptors, overrides, patched, paused
from regard.maps._positions import positions_of
from regard.maps._record import AttentionRecord, WeightsOf
from regard.maps._shapes import why_unreadable
from regard.maps._silent_modules import SilentModules
from regard.maps._windows import windows_of
from regard.maps.sources import (
    DIVISIONS,
    DROPOUTS,
    MULTIPLICATIONS,
    PYTHON_FUNCTIONS,
    TORCH_FUNCTIONS,
    FunctionCall,
    HandwrittenAttention,
    KernelWitness,
    LinearAttention,
    WeightedSum,
    attention_module,
    handwritten,
    own_layer,
    shares_memory,
)
from regard.observation import current_grid, is_hidden, listen, unobserved

_ATTENTION_LIKE = re.compile(r"attention|attn|fmha|mha_", re.IGNORECASE)
_OUTSIDE = "(outside the model)"

# Functions that matter only if a tensor is followed that enters them; the handlers of others may begin to follow one.
_FOLLOWING = MULTIPLICATIONS | DIVISIONS | SUBTRACTIONS | DROPOUTS | {"sum"}
# Of a function: its name, its handler, whether it is called as an operator, and whether it only follows tensors.
_Known = tuple[str, Callable[..., Any] | None, bool, bool]


class Interceptor(TorchFunctionMode):
    """A torch function mode that recognizes attention. Enter it with :func:`intercept`."""

    def __init__(self, model: nn.Module, listener: RecordListener, keeps_path: bool) -> None:
        super().__init__()
        self.listener = listener
        self.keeps_path = keeps_path
        self.started_threads = False
        self.names = ModuleNames(model)
        self.handwritten = HandwrittenAttention(self._running)
        self.silent = SilentModules(model)
        self._count = 0  # of records
        self._accounted: set[str] = set()
        self._linear: set[str] = set()  # linear attention of which the second product follows
        self._patches: tuple[int, ...] | None = None
        self._last_output: weakref.ref[Tensor] | None = None
        # The latest output that the listener replaced, and the weights that give it.
        self._replaced: tuple[weakref.ref[Tensor], WeightsOf] | None = None
        # Outputs of kernels that also gave their logsumexp to the model, with their names, and whether tokens are first.
        self._rescalable: list[tuple[weakref.ref[Tensor], str, bool]] = []
        self._pairs = OutputPairs()
        self._functions: dict[Any, _Known] = {}
        # What is waited for: if all are empty, most functions need no look at their arguments.
        history = self.handwritten.history
        self._followed: tuple[Collection[Any], ...] = (
            history.origins, history.random.known, self.silent.waiting, self._rescalable, self._pairs.waiting
        )  # fmt: skip
        self._handlers: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(self.handwritten.handlers, self._handwritten),
            "scaled_dot_product_attention": self._sdpa,
            "multi_head_attention_forward": self._multi_head,
            "_native_multi_head_attention": self._fast_path,
            "_transformer_encoder_layer_fwd": self._fast_path,
            "conv2d": self._convolution,
            **dict.fromkeys(SUBTRACTIONS, self._subtraction),
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Every operator of the model comes here: what can be said of it is looked up once, and most need nothing else.
        kwargs = kwargs or {}
        known = self._functions.get(func)
        if known is None:
            known = self._functions[func] = self._know(func)
        name, handler, operator, follows = known
        if (follows and not any(self._followed)) or is_hidden():
            return func(*args, **kwargs)
        if self.silent.waiting:
            self.silent.used(args, kwargs)
        if self.listener.projections is not None and name in PROJECTIONS and not _in_backward():
            self.listener.projections.saw(name, args, kwargs)
        if handler is not None and not _in_backward():
            return handler(func, args, kwargs)
        out = func(*args, **kwargs)
        history = self.handwritten.history
        if history.origins or history.random.known:
            history.follow(name, func, args, kwargs, out)
        if operator:
            self._operator(func)
        return out

    def _know(self, func: Any) -> "_Known":
        name = getattr(func, "__name__", "")
        operator = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
        handler = self._handlers.get(name)
        follows = (handler is None and name not in PROJECTIONS) or name in _FOLLOWING
        return name, handler, operator, follows and not operator

    def _operator(self, func: Any) -> None:
        """An operator ran that is called as such, not as a function of torch."""
        if _ATTENTION_LIKE.search(str(func)):
            self._missed(None, f"the operator {func} computes attention in a way that regard does not know")
        elif self.silent and not str(func).startswith(("aten", "prim")):
            self.silent.operator(self._running(), str(func))

    # -- recording ---------------------------------------------------------------------------------------------

    def _running(self) -> str | None:
        """The name of the module that runs; None outside of the model."""
        site = self.names.locate(count=False)
        return None if site is None else site.name

    def _missed(self, name: str | None, reason: str, shape: tuple[int, ...] | None = None) -> None:
        name = name or self._running() or _OUTSIDE
        self._accounted.add(name.partition("#")[0])
        if name == _OUTSIDE or self.listener.wants(name):
            self.listener.missed(name, reason, shape)

    def _wanted(self, like: Any, module: nn.Module | None = None) -> CallSite | None:
        """Where this attention is computed, if the listener wants it and its tensors can be read."""
        site = self.names.locate(module)
        if site is not None:
            self._accounted.add(site.name.partition("#")[0])
        if site is None:
            self._missed(_OUTSIDE, "attention was computed outside of the model", tuple(like.shape))
            return None
        if not self.listener.wants(site.name):
            return None
        reason = why_unreadable(like)
        if reason:
            self._missed(site.name, reason)
            return None
        return site

    def _record(self, site: CallSite, out: Any, source: Callable[[], AttentionRecord | str]) -> Any:
        """Pass on what the source returns, and return the output with which the model continues.

        An error in a source is reported as missed attention: the model must not fail because it is intercepted.
        """
        with torch._C.DisableTorchFunction(), paused():
            try:
                record = source()
            except Exception as error:
                record = f"it is not understood ({type(error).__name__}: {error})"
            if isinstance(record, str):
                self._missed(site.name, record)
                return out
            self._add_layout(record, site)
            record.moment = (self.names.run, self._count)
            self._count += 1
            self._last_output = weakref.ref(out[0] if isinstance(out, tuple) else out)
            self._apply_edits(record)
            restore = record.running.restore
            new = unobserved(self.listener.attended, record)  # which may compute attention itself
            if new is None or restore is None:
                return out
            new = restore(new)
        edited = record.computation.edited if record.computation is not None else None
        self._replaced = None if edited is None else (weakref.ref(new), edited)
        return (new, *out[1:]) if isinstance(out, tuple) else new

    def _apply_edits(self, record: AttentionRecord) -> None:
        """If an interceptor around this one replaced the output, the map is the one that gives the new output."""
        outside = outer_interceptors(self)
        if not outside:
            return
        last = self._last_output() if self._last_output is not None else None
        around = [outer._replaced for outer in outside if isinstance(outer, Interceptor)]
        edited = next((found[1] for found in around if found is not None and found[0]() is last), None)
        if edited is not None and last is not None:
            record.computation = record.running.with_weights(edited)

    def _add_layout(self, record: AttentionRecord, site: CallSite) -> None:
        """How the tokens lie: as the layer declares it, as the model declares it, or as a module around it states it."""
        around, keys, grid = self.names.parents(site.name), record.shape[3], current_grid()
        record.windows = windows_of(record.shape, around, site)
        if record.windows is None and record.axes.over == "tokens":
            known = record.axes
            record.axes = MapAxes(known.certainty, known.over, known.query_layout, positions_of(record.shape, site))
        if record.windows is not None:
            record.layout = Layout(record.windows.grid, 0)
        elif record.layout is None and grid is not None and Layout(grid, 0).tokens == keys:
            record.layout = Layout(grid, 0)
        record.running.layout_declared = record.layout is not None
        if record.layout is None:
            at = (site.name, keys, self._patches)
            if at not in site.remembered:
                stating = site.remembered.get((site.name, "stating"))
                if stating is None:  # in a text none does, and each call of generate has other keys
                    stating = site.remembered[site.name, "stating"] = [x for x in around if states_layout(x)]
                site.remembered[at] = inferred_layout(keys, stating, self._patches)
            record.layout = site.remembered[at]

    # -- functions of torch ------------------------------------------------------------------------------------

    def _sdpa(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site = self._wanted(args[0] if args else kwargs["query"])
        if site is None:
            return func(*args, **kwargs)
        with KernelWitness() as witness:
            out = func(*args, **kwargs)
        call = FunctionCall(site, func, args, kwargs, out, witness)
        new = self._record(site, out, lambda: TORCH_FUNCTIONS[func.__name__](call))
        self._pairs.add(site.name, args[2] if len(args) > 2 else kwargs.get("value"), new)
        return new

    def _subtraction(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self._pairs.subtracted(args) if self._pairs else None
        if found is not None:
            with torch.no_grad(), torch._C.DisableTorchFunction(), paused():
                unobserved(self.listener.subtracted, *found)
        out = func(*args, **kwargs)
        if self.handwritten.history.origins:
            self.handwritten.history.follow(func.__name__, func, args, kwargs, out)
        return out

    def _multi_head(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function asks whether a mode is active and, if so, passes itself to it. Here the same code runs with the
        answer no and this mode on, so that the attention inside is recognized like any other."""
        if any(overrides(x) for x in (*args, *kwargs.values())):
            self._missed(None, "a tensor subclass handles multi_head_attention_forward itself")
            return func(*args, **kwargs)
        scope = {**vars(F), "has_torch_function": lambda relevant: False}
        inner = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
        inner.__kwdefaults__ = func.__kwdefaults__
        with self:
            return inner(*args, **kwargs)

    def _fast_path(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        layer = self.names.locate(count=False)
        member = None if layer is None else attention_module(layer.module, args)
        site = None if layer is None else self.names.locate(member=member)
        if site is None:
            self._missed(_OUTSIDE, "attention was computed outside of the model")
            return out
        self._accounted.add(site.name)
        if not self.listener.wants(site.name):
            return out
        call = FunctionCall(site, func, args, kwargs, out)
        return self._record(site, out, lambda: TORCH_FUNCTIONS[func.__name__](call))

    def _convolution(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A convolution whose windows do not overlap cuts an image into patches: its output has the patches' grid."""
        out = func(*args, **kwargs)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        stride = args[3] if len(args) > 3 else kwargs.get("stride", 1)
        if isinstance(weight, Tensor) and isinstance(out, Tensor):
            steps = (stride, stride) if isinstance(stride, int) else tuple(stride)
            if tuple(weight.shape[2:]) == steps * (2 // len(steps)) and min(steps) > 1:
                self._patches = tuple(out.shape[-2:])
            elif self.handwritten.history.origins and tuple(weight.shape[2:]) == (1, 1):
                self.handwritten.history.follow("conv2d", func, args, kwargs, out)  # heads may be mixed
        return out

    def _handwritten(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out, found = self.handwritten.handlers[func.__name__](func, args, kwargs)
        if self._rescalable:
            self._rescaled(func.__name__, args)
        if self._pairs and func.__name__ in MULTIPLICATIONS:
            self._pairs.multiplied(args, out)
        if isinstance(found, LinearAttention) and found.name in self._linear:
            self._linear.discard(found.name)  # its first product was reported already
        elif isinstance(found, LinearAttention) and self.listener.wants(found.name):
            self.names.take_back(found.name)
            self.listener.retract(found.name)
            self._accounted.add(found.name.partition("#")[0])
            self.listener.missed(found.name, found.reason, found.shape)
        if not isinstance(found, WeightedSum):
            return out
        if found.origin.use is not None:
            found.origin.use.done = True
        site = self._wanted(found.weights)
        if site is None:
            return out

        def source() -> AttentionRecord | str:
            record = handwritten(site, found, out)
            if isinstance(record, str):
                self.names.take_back(site.name)
                self._linear.add(site.name)
            return record

        new = self._record(site, out, source)
        self.handwritten.history.average(new, found, site.name)
        return new

    def _rescaled(self, function: str, args: tuple[Any, ...]) -> None:
        """An output that came with its logsumexp was multiplied row by row: that belongs to the map."""
        if function not in MULTIPLICATIONS | DIVISIONS:
            return
        for entry in self._rescalable:
            output, name, tokens_first = entry
            whole = output()
            index = next((i for i, x in enumerate(args[:2]) if x is whole), None)
            factor = None if index is None or len(args) < 2 else args[1 - index]
            if whole is None or not isinstance(factor, Tensor) or factor.ndim != whole.ndim or factor.shape[-1] != 1:
                continue
            self._rescalable.remove(entry)
            with torch.no_grad(), torch._C.DisableTorchFunction(), paused():
                rows = factor.detach().expand(*whole.shape[:-1], 1)[..., 0]
                rows = rows.transpose(1, 2) if tokens_first else rows
                unobserved(self.listener.rescaled, name, rows.reciprocal() if function in DIVISIONS else rows)
            return

    # -- calls that no mode sees -------------------------------------------------------------------------------

    def observed(self, module: nn.Module | None, output: Tensor, weights: Callable[[], Tensor], **about: Any) -> Tensor:
        """A layer declares its attention (unless it was already recognized), see :func:`regard.maps.observe`."""
        last = self._last_output() if self._last_output is not None else None
        if _in_backward() or (last is not None and shares_memory(last, output)):
            return output
        site = self._wanted(output, module)
        if site is None:
            return output
        return self._record(site, output, lambda: own_layer(site, output, weights, **about))  # type: ignore[no-any-return]

    def called(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A patched function was called, see :mod:`regard.maps._patches`."""
        outer = outer_interceptors(self)

        def run() -> Any:
            if outer:
                return outer[0].called(name, original, args, kwargs)
            with _without_interceptors(), paused():
                return compiled_as_called(original)(*args, **kwargs)

        if is_hidden() or _in_backward():
            return run()
        like = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        site = None if like is None else self._wanted(like)
        out = run()
        if site is None:
            return out
        call = FunctionCall(site, original, args, kwargs, out)
        with _without_interceptors():
            new = self._record(site, out, lambda: PYTHON_FUNCTIONS[name](call))
        if isinstance(new, tuple):
            self._rescalable[:] = [entry for entry in self._rescalable if entry[0]() is not None]
            self._rescalable.append((weakref.ref(new[0]), site.name, "flex" not in name))
        return new

    def finish(self) -> None:
        """Report each softmax that was not multiplied with values, and release everything that refers to the model."""
        for use in self.handwritten.history.uses:
            if not use.done:
                self._missed(use.name, use.reason, use.shape)
        for name, reason in self.silent.unaccounted(self._accounted, self.started_threads):
            self._missed(name, reason)
        self.names.forget()
        self._replaced = None
        # These refer back to us: without them, the model is freed before the next garbage collection.
        self._handlers.clear()
        self._functions.clear()
        self.handwritten.close()
        del self.handwritten


@contextmanager
def intercept(model: nn.Module, listener: RecordListener, *, keeps_path: bool = True) -> Iterator[Interceptor]:
    """Pass the record of every attention that ``model`` computes in this thread to ``listener``, inside the block.

    Args:
        keeps_path: keep the fast path of ``nn.TransformerEncoder``. On it a listener cannot replace an output.
    """
    interceptor = Interceptor(model, listener, keeps_path)
    with ExitStack() as stack:
        stack.enter_context(patched(interceptor))
        stack.enter_context(listen(interceptor))
        stack.enter_context(interceptor)
        try:
            yield interceptor
        finally:
            interceptor.finish()


def _in_backward() -> bool:
    """In a backward pass only activation checkpointing calls the model: its attention was recorded before."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def _without_interceptors() -> Iterator[None]:
    """No mode of ours on the stack: compiled code compares the stack with the one under which it was compiled."""
    stack = []
    while torch._C._len_torch_function_stack():
        stack.append(torch.overrides._pop_mode())
    others = [mode for mode in reversed(stack) if not isinstance(mode, Interceptor)]
    for mode in others:
        torch.overrides._push_mode(mode)
    try:
        yield
    finally:
        for _ in others:
            torch.overrides._pop_mode()
        for mode in reversed(stack):
            torch.overrides._push_mode(mode)
