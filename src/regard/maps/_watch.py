"""Watching a model run: every attention it computes is recognized, named, and told to a sink."""

import re
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.maps._layout import running_grid
from regard.maps._names import Names, Place
from regard.maps._process import outer_watches, overrides, paused, watching
from regard.maps._seen import Seen, Sink, unreadable
from regard.maps._windows import windows_of
from regard.maps.sources import _foreign, _handwritten, _sdpa, _torch_fast_path
from regard.maps.sources._normalized import normalized_after
from regard.maps.sources._softmax import DIVISIONS, MULTIPLICATIONS, PRODUCTS, SOFTMAXES, Tracker, shares_memory
from regard.maps.sources._told import told
from regard.maps.sources._traces import Product, Trace
from regard.maps.sources._weighted import weighted_sum
from regard.observation import Observation, listen

_ATTENTION_LIKE = re.compile(r"attention|attn|fmha|mha_", re.IGNORECASE)


class Watcher(TorchFunctionMode):
    """A torch function mode that knows attention. Enter it with :func:`watch`."""

    def __init__(self, model: nn.Module, sink: Sink, keeps_path: bool) -> None:
        super().__init__()
        self.sink = sink
        self.keeps_path = keeps_path
        self.names = Names(model)
        self.tracker = Tracker(self._name)
        self.patches: tuple[int, ...] | None = None
        self._last: weakref.ref[Tensor] | None = None
        self._handlers: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._fused,
            "multi_head_attention_forward": self._multi_head,
            "_native_multi_head_attention": self._native,
            "_transformer_encoder_layer_fwd": self._native,
            "dropout": self._dropout,
            "dropout_": self._dropout,
            "conv2d": self._convolution,
            "sum": self._sum,
            **dict.fromkeys(DIVISIONS | MULTIPLICATIONS, self._scaled),
            **dict.fromkeys(SOFTMAXES, self._softmax),
            **dict.fromkeys(PRODUCTS, self._product),
        }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        handler = self._handlers.get(name)
        # Inside a backward pass only activation checkpointing calls the model: it has been seen before.
        if handler is not None and torch._C._current_graph_task_id() == -1:
            return handler(func, args, kwargs)
        out = func(*args, **kwargs)
        if self.tracker:
            self.tracker.follow(name, func, args, kwargs, out)
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket) and _ATTENTION_LIKE.search(str(func)):
            self._miss(None, f"the operator {func} computes attention in a way that is not known here")
        return out

    # -- telling -----------------------------------------------------------------------------------------------

    def _miss(self, place: Place | None, reason: str, shape: tuple[int, ...] | None = None) -> None:
        place = place or self.names.locate(count=False)
        self.sink.missed(place.name if place else "(outside the model)", reason, shape)

    def _understand(self, place: Place, out: Any, describe: Callable[[], Seen | str]) -> Any:
        """Tell what was seen. What cannot be understood is missed: the model must not fail for being watched."""
        try:
            with torch._C.DisableTorchFunction():
                seen = describe()
        except Exception as error:
            seen = f"it is not understood ({type(error).__name__}: {error})"
        if isinstance(seen, str):
            self._miss(place, seen)
            return out
        return self._tell(seen, place, out)

    def _tell(self, seen: Seen, place: Place, out: Any) -> Any:
        """``out`` is what the model goes on with, unless the sink puts another output in its place."""
        around = self.names.parents(place.name)
        seen.windows = windows_of(seen.shape, around, place)
        seen.grid = seen.grid or running_grid(seen.shape[3], around, place)
        self._last = weakref.ref(out[0] if isinstance(out, tuple) else out)
        with torch._C.DisableTorchFunction(), paused():
            new = self.sink.attended(seen)
            if new is None or seen.restore is None:
                return out
            new = seen.restore(new)
        return (new, *out[1:]) if isinstance(out, tuple) else new

    def _wanted(self, like: Any) -> Place | None:
        """Where this attention is, if the sink wants it and it can be read."""
        place = self.names.locate()
        if place is None:
            self._miss(None, "attention was computed outside of the model", tuple(like.shape))
            return None
        if not self.sink.wants(place.name):
            return None
        reason = unreadable(like)
        if reason:
            self._miss(place, reason)
            return None
        return place

    # -- fused kernels -----------------------------------------------------------------------------------------

    def _fused(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        place = self._wanted(args[0] if args else kwargs["query"])
        if place is None:
            return func(*args, **kwargs)
        with _sdpa.Evidence() as evidence:
            out = func(*args, **kwargs)
        return self._understand(place, out, lambda: _sdpa.seen_sdpa(place, func, args, kwargs, out, evidence))

    def _multi_head(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function asks whether a mode is active and, if so, hands itself to it. Here the same code runs with the
        answer no and this mode on, so that the attention inside is seen like any other."""
        if any(overrides(x) for x in (*args, *kwargs.values())):
            self._miss(None, "a tensor subclass handles multi_head_attention_forward itself")
            return func(*args, **kwargs)
        scope = {**vars(F), "has_torch_function": lambda relevant: False}
        inner = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
        inner.__kwdefaults__ = func.__kwdefaults__
        with self:
            return inner(*args, **kwargs)

    def _native(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        owner = self.names.locate(count=False)
        if owner is None:
            self._miss(None, "attention was computed outside of the model")
            return out
        place = self.names.locate(member=_torch_fast_path.attention_in(owner.module, args))
        if place is None or not self.sink.wants(place.name):
            return out
        return self._understand(place, out, lambda: _torch_fast_path.seen(func.__name__, place, args, out))

    # -- written by hand ---------------------------------------------------------------------------------------

    def _softmax(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if not _along_one_axis():
            self.tracker.softmax(func.__name__, args[0] if args else kwargs.get("input"), out)
        return out

    def _name(self) -> str | None:
        place = self.names.locate(count=False)
        return None if place is None else place.name

    def _dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before, rate, training, inplace = _handwritten.dropout_arguments(func, args, kwargs)
        trace = self.tracker.get(before)
        if trace is None or not training or rate == 0:
            out = func(*args, **kwargs)
            self.tracker.follow("dropout", func, args, kwargs, out)
            return out
        kept = before.detach().clone() if inplace else before
        out = func(*args, **kwargs)
        self.tracker.dropout(trace, kept, out, rate)
        return out

    def _product(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        factored = self.tracker.factored(args) if self.tracker else None
        product = self.tracker.product(func.__name__, args, kwargs) if self.tracker and factored is None else None
        out = func(*args, **kwargs)
        if factored is not None:
            self._linear(*factored)
        if product is None or product.trace.kind != "weights":
            self.tracker.scores(args, out, product)
            return out
        return self._completed(product, out)

    def _linear(self, weights: Trace, keys: Trace) -> None:
        """What was seen as attention turns out to be one half of linear attention."""
        if weights.use is not None:
            weights.use.done = True
        if keys.average is None:
            return
        name, features, tokens = keys.average
        if self.sink.wants(name):
            self.names.take_back(name)
            self.sink.retract(name)
            reason = "linear attention forms no map: its softmaxes are over features, and over keys for each feature"
            self.sink.missed(name, reason, (features, tokens))

    def _scaled(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if not self.tracker:
            return out
        product = normalized_after(self.tracker, func.__name__, args, out)
        if product is not None:
            return self._completed(product, out)
        self.tracker.follow(func.__name__, func, args, kwargs, out)
        return out

    def _sum(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        product = weighted_sum(self.tracker, args, kwargs) if self.tracker else None
        out = func(*args, **kwargs)
        return out if product is None else self._completed(product, out)

    def _completed(self, product: Product, out: Any) -> Any:
        if product.trace.use is not None:
            product.trace.use.done = True
        place = self._wanted(product.weights)
        if place is None:
            return out
        out = self._understand(place, out, lambda: _handwritten.seen(place, product, out))
        self.tracker.average(out, product, place.name)
        return out

    def _convolution(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A convolution whose windows do not overlap cuts an image into patches: its output has the patches' grid."""
        out = func(*args, **kwargs)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        stride = args[3] if len(args) > 3 else kwargs.get("stride", 1)
        if isinstance(weight, Tensor) and isinstance(out, Tensor):
            steps = (stride, stride) if isinstance(stride, int) else tuple(stride)
            if tuple(weight.shape[2:]) == steps * (2 // len(steps)) and min(steps) > 1:
                self.patches = tuple(out.shape[-2:])
        return out

    # -- told by others ----------------------------------------------------------------------------------------

    def observed(self, seen: Observation) -> Tensor:
        """One of our own layers says what it attended to (unless it was seen already)."""
        last = self._last() if self._last is not None else None
        if last is not None and shares_memory(last, seen.output):
            return seen.output
        if torch._C._current_graph_task_id() != -1:
            return seen.output
        # What was seen inside this call of the layer is a part of the map that the layer tells of.
        inside = self.names.locate(module=seen.module, count=False)
        for name in reversed([] if inside is None else self.names.restart(inside.name)):
            self.sink.retract(name)
        for use in self.tracker.uses:
            use.done = use.done or (inside is not None and use.name == inside.name)
        place = self.names.locate(module=seen.module)
        if place is None or not self.sink.wants(place.name):
            return seen.output
        with torch._C.DisableTorchFunction():
            found = told(place, seen)
        return self._tell(found, place, seen.output)  # type: ignore[no-any-return]

    def called(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that no mode sees was called (see :mod:`regard.maps._process`)."""
        outer = outer_watches(self)

        def run() -> Any:
            if outer:
                return outer[0].called(name, original, args, kwargs)
            with _without_modes(), paused():
                return _foreign.compiled_as_called(original)(*args, **kwargs)

        if torch._C._current_graph_task_id() != -1:
            return run()
        if name.startswith("regard."):  # a layer of ours tells of the whole map itself
            owner = self.names.locate(count=False)
            if owner is not None and type(owner.module).__module__.startswith("regard."):
                return run()
        like = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        place = None if like is None else self._wanted(like)
        out = run()
        if place is None:
            return out
        with _without_modes(), paused():
            return self._understand(place, out, lambda: _foreign.seen(name, place, args, kwargs, out, original))

    def finish(self) -> None:
        """Say which softmax was never multiplied with values, and let go of everything."""
        for use in self.tracker.uses:
            if not use.done and self.sink.wants(use.name):
                self.sink.missed(use.name, use.reason, use.shape)
        self.names.forget()
        # These refer back here: without them the model is not kept until the next garbage collection.
        self.tracker.close()
        self.tracker = Tracker(lambda: None)
        self._handlers.clear()


@contextmanager
def watch(model: nn.Module, sink: Sink, *, keeps_path: bool = True) -> Iterator[Watcher]:
    """Tell ``sink`` of every attention that ``model`` computes in this thread, inside the block.

    Args:
        keeps_path: keep the fast path of ``nn.TransformerEncoder``; there a sink can put no other output in place.
    """
    watcher = Watcher(model, sink, keeps_path)
    with ExitStack() as stack:
        stack.enter_context(watching(watcher))
        stack.enter_context(listen(watcher))
        stack.enter_context(watcher)
        try:
            yield watcher
        finally:
            watcher.finish()


@contextmanager
def _without_modes() -> Iterator[None]:
    """No function mode of ours on the stack: compiled code compares the stack with the one it was compiled under."""
    stack = []
    while torch._C._len_torch_function_stack():
        stack.append(torch.overrides._pop_mode())
    others = [mode for mode in reversed(stack) if not isinstance(mode, Watcher)]
    for mode in others:
        torch.overrides._push_mode(mode)
    try:
        yield
    finally:
        for _ in others:
            torch.overrides._pop_mode()
        for mode in reversed(stack):
            torch.overrides._push_mode(mode)


# Here a softmax makes a map of one axis of a grid: the layer above says what the whole map is.
_AXES = ("regard.functional._axis", "regard.functional._maps", "regard.functional._gaussian")


def _along_one_axis() -> bool:
    frame: Any = sys._getframe(1)
    callers = 0
    while frame is not None and callers < 2:
        home = str(frame.f_globals.get("__name__"))
        if home in _AXES or (home == "regard.layers._relative" and "axis_matrices" in frame.f_code.co_qualname):
            return True
        # Our own frames, and those of run-time checks of signatures, are not who called softmax.
        callers += not home.startswith(("regard.maps.", "jaxtyping.", "beartype."))
        frame = frame.f_back
    return False
