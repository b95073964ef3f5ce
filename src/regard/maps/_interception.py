"""``Interceptor``: recognizes every attention that a model computes, names it, and passes its record to a listener.

The interceptor is a torch function mode: torch calls :meth:`Interceptor.__torch_function__` instead of each torch
function of the model. A handler runs the function and, if it was attention, lets a source (:mod:`regard.maps.sources`)
make the record.
"""

import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._contributions import PROJECTIONS
from regard.maps._interceptor_parts import InterceptorParts
from regard.maps._module_names import CallSite
from regard.maps._monkey_patches import (
    compiled_as_called,
    outer_interceptors,
    overrides,
    paused,
    without_interceptors,
)
from regard.maps._record import AttentionRecord, Computation
from regard.maps._shapes import why_unreadable
from regard.maps._silent_modules import is_foreign, may_attend, says_attention
from regard.maps._torch_modes import in_backward, remove_function_mode
from regard.maps.sources import (
    KERNELS_WITH_LOGSUMEXP,
    PYTHON_FUNCTIONS,
    RANDOM_MASK,
    TORCH_FUNCTIONS,
    FunctionCall,
    LinearAttention,
    WeightedSum,
    attention_module,
    block_layer,
    handwritten,
    mixture,
    own_layer,
    run_kernel,
    shares_memory,
    without_mode_dispatch,
)
from regard.observation import is_hidden, unobserved

_OUTSIDE = "(outside the model)"


CHANGED_INSIDE = (
    "its heads were changed afterwards, by an edit inside of this block: these are its maps before the change; start the "
    "capture inside of the edit to see those that the model used"
)


class Interceptor(InterceptorParts):
    """A torch function mode that recognizes attention. Enter it with :func:`intercept`."""

    def handlers(self) -> dict[str, Callable[..., Any]]:
        """The methods that run torch functions, by the names of the functions."""
        return {
            **dict.fromkeys(self.handwritten.handlers, self._handwritten),
            "scaled_dot_product_attention": self._sdpa,
            "multi_head_attention_forward": self._multi_head,
            "_native_multi_head_attention": self._fast_path,
            "_transformer_encoder_layer_fwd": self._fast_path,
            **dict.fromkeys(KERNELS_WITH_LOGSUMEXP, self._aten_kernel),
            "conv2d": self._convolution,
            **self.outputs.handlers,
        }

    def __enter__(self) -> "Interceptor":
        self.prepare()
        self.silent.find()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        remove_function_mode(self)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run a torch function of the model. Most calls concern no attention, and leave at the first return."""
        known = self._functions[func]
        followed = (self._origins or self._random) and self._concerns(args, kwargs)
        if (
            known.quiet
            and not self._derived
            and not followed
            and self.outputs.is_quiet(known, args, kwargs, self.silent.waiting)
        ):
            return func(*args) if kwargs is None else func(*args, **kwargs)
        kwargs = kwargs or {}
        if is_hidden():
            return func(*args, **kwargs)
        name, handler, operator, _, reads = known
        if self.silent.waiting and not reads:
            self.silent.used(args, kwargs)
        if self.listener.projections is not None and name in PROJECTIONS and not in_backward():
            self.listener.projections.saw(name, args, kwargs)
        if handler is not None and not in_backward():
            # All overloads of an aten operator share one handler, which is given their common packet.
            return handler(getattr(func, "overloadpacket", func) if operator else func, args, kwargs)
        given = self.handwritten.before(name, args) if self._origins else args
        out = func(*args, **kwargs)
        self._follow(name, func, given, kwargs, out)
        if operator:
            self._operator(func, args, out)
        return out

    def _follow(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """A function ran: follow the tensors that attention consists of, and the outputs of attention, through it."""
        history = self.handwritten.history
        if history.origins or history.random.known:
            history.follow(name, func, args, kwargs, out)
        if self._derived or self.outputs.folded.waiting is not None:
            self.outputs.ran(name, args, kwargs, out)

    def _operator(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        """An operator (``torch.ops.…``) ran: report it if it may compute attention."""
        if may_attend(str(func), args, out):
            self._missed(None, f"the operator {func} computes attention in a way that regard does not know")
        elif self.silent and is_foreign(str(func)):
            self.silent.operator(self._running(), str(func))

    # -- recording ---------------------------------------------------------------------------------------------

    def _missed(self, name: str | None, reason: str, shape: tuple[int, ...] | None = None) -> None:
        """Report attention that cannot be recorded; without a name, in the module that is running."""
        name = name or self._running() or _OUTSIDE
        self._accounted.add(name.partition("#")[0])
        if name == _OUTSIDE or self.listener.wants(name):
            self.listener.missed(name, reason, shape)

    def _wanted(self, like: Any, module: nn.Module | None = None) -> CallSite | None:
        """Where this attention is computed, if the listener wants it and its tensors can be read."""
        site = self.names.locate(module)
        if site is None:
            self._missed(_OUTSIDE, "attention was computed outside of the model", tuple(like.shape))
            return None
        self._accounted.add(site.name.partition("#")[0])
        if not self.listener.wants(site.name):
            return None
        reason = why_unreadable(like)
        if reason:
            self._missed(site.name, reason)
            return None
        return site

    def _record(
        self, site: CallSite, out: Any, source: Callable[[], AttentionRecord | str], tokens_first: bool | None = None
    ) -> Any:
        """Let the source make a record, pass it to the listener, and return the output with which the model continues.

        An error in a source is reported as missed attention: the model must not fail because it is intercepted.

        Args:
            source: makes the record, or returns a reason why it cannot.
            tokens_first: if the model was given the logsumexp, whether the output has tokens before heads; else None.
        """
        try:
            with torch._C.DisableTorchFunction(), paused():
                record = source()
        except Exception as error:
            record = f"it is not understood ({type(error).__name__}: {error})"
        if isinstance(record, str):
            self._missed(site.name, record)
            return out
        self.layouts.add(record, site, self.names.parents(site.name))
        record.moment = (self.names.run, self._count)
        self._count += 1
        self._last_output = weakref.ref(out[0] if isinstance(out, tuple) else out)
        self._apply_edits(record)
        self.outputs.before_next()
        running, before = record.running, self._replaced
        result, heads = self._pass_to_listener(record, running, out)
        if self._replaced is not None and self._replaced is not before:
            for outer in outer_interceptors(self):
                if isinstance(outer, Interceptor):
                    outer.changed_inside(site.module)
        self.outputs.recorded(site.name, running, out, result, heads, tokens_first=tokens_first)
        return result

    def _pass_to_listener(self, record: AttentionRecord, running: Computation, out: Any) -> tuple[Any, Tensor | None]:
        """Pass the record to the listener. Returns the output with which the model continues, its own or the listener's, and
        its heads."""
        with torch._C.DisableTorchFunction(), paused():
            new = unobserved(self.listener.attended, record)  # the listener may compute attention itself
            if new is None or running.restore is None:
                return out, running.output
            heads, new = new, running.restore(new)
        # The weights refer to the computation: both would live, with the tensors of the model, until the next garbage collection.
        edited, running.edited = running.edited, None
        self._replaced = None if edited is None else (weakref.ref(new), edited)
        return ((new, *out[1:]) if isinstance(out, tuple) else new), heads

    def changed_inside(self, module: nn.Module) -> None:
        """An interceptor inside this one edited the weights of a module, after this one's listener saw them."""
        name = self.names.of(module)
        if name is not None and self.listener.wants(name):
            self.listener.noted(name, CHANGED_INSIDE)

    def _call_listener(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a method of the listener while nothing is intercepted."""
        with torch.no_grad(), torch._C.DisableTorchFunction(), paused():
            return unobserved(function, *args)

    def _apply_edits(self, record: AttentionRecord) -> None:
        """If an interceptor around this one replaced the output by edited weights, these weights are the map."""
        outside = outer_interceptors(self)
        if not outside:
            return
        last = self._last_output() if self._last_output is not None else None
        around = [outer._replaced for outer in outside if isinstance(outer, Interceptor)]
        edited = next((found[1] for found in around if found is not None and found[0]() is last), None)
        if edited is not None and last is not None:
            record.computation = record.running.with_weights(edited)

    # -- functions of torch ------------------------------------------------------------------------------------

    def _sdpa(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``scaled_dot_product_attention``: also find out which kernel runs inside of it, and get its logsumexp."""
        site = self._wanted(args[0] if args else kwargs["query"])
        if site is None:
            return func(*args, **kwargs)
        if self.handwritten.has_random_mask(args, kwargs):
            self.listener.noted(site.name, RANDOM_MASK)
        out, seen = run_kernel(func, args, kwargs)
        call = FunctionCall(site, func, args, kwargs, out, seen)
        return self._record(site, out, lambda: TORCH_FUNCTIONS[func.__name__](call))

    def _aten_kernel(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A kernel that the model calls directly: it gets the logsumexp, with which it may merge outputs."""
        site = self._wanted(args[0] if args else kwargs["query"])
        out = func(*args, **kwargs)
        if site is None:
            return out
        call = FunctionCall(site, func, args, kwargs, out)
        return self._record(site, out, lambda: TORCH_FUNCTIONS[func.__name__](call), tokens_first=False)

    def _multi_head(self, func: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run ``F.multi_head_attention_forward`` so that the attention inside of it is intercepted like any other.

        The function hands itself to a mode if one is active, and then the mode does not see what it calls. So a copy of it
        runs that believes that no mode is active.
        """
        if any(overrides(x) for x in (*args, *kwargs.values())):
            self._missed(None, "a tensor subclass handles multi_head_attention_forward itself")
            return func(*args, **kwargs)
        with self:
            return without_mode_dispatch(func)(*args, **kwargs)

    def _fast_path(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator computed the attention, or the whole layer. The map belongs to the module whose weights it was given."""
        out = func(*args, **kwargs)
        site = self.names.locate(member=lambda layer: attention_module(layer, args))
        if site is None:
            self._missed(_OUTSIDE, "attention was computed outside of the model")
            return out
        self._accounted.add(site.name)
        if not self.listener.wants(site.name):
            return out
        call = FunctionCall(site, func, args, kwargs, out)
        return self._record(site, out, lambda: TORCH_FUNCTIONS[func.__name__](call))

    def _convolution(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A convolution with stride = kernel size cuts an image into patches: note the grid of its output."""
        out = func(*args, **kwargs)
        kernel = self.layouts.convolved(args, kwargs, out)
        if kernel == (1, 1) and self.handwritten.history.origins:
            self.handwritten.history.follow("conv2d", func, args, kwargs, out)  # it may mix heads
        return out

    def _handwritten(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function that attention may be written with: a softmax, a product, a division, dropout, …"""
        if self.blocks and self._in_blocks(func.__name__):
            return func(*args, **kwargs)
        out, found = self.handwritten.run(func, args, kwargs)
        if func.__name__ == "__setitem__":
            self.outputs.wrote(args)
        merged = self.outputs.scaled(func.__name__, args, kwargs, out)
        if self.handwritten.gives_logsumexp(func.__name__, args):
            self.outputs.logsumexp_taken(self._running(), out)
        if isinstance(found, LinearAttention) and found.name in self._linear:
            self._linear.discard(found.name)  # already reported at its first product
        elif isinstance(found, LinearAttention) and self.listener.wants(found.name):
            self._take_back(found.name)
            self._accounted.add(found.name.partition("#")[0])
            self.listener.missed(found.name, found.reason, found.shape)
        if not isinstance(found, WeightedSum):
            return out
        if merged or self.outputs.averaged(found, out) or self._is_mixture(found):
            return out
        if found.origin.average is not None:
            self._take_back(found.origin.average.name)
        site = self._wanted(found.weights)
        if site is None:
            return out

        def source() -> AttentionRecord | str:
            record = handwritten(site, found, out)
            if isinstance(record, str):
                self.names.take_back(site.name)
                self._linear.add(site.name)
            return record

        if found.origin.mask.note is not None:
            self.listener.noted(site.name, found.origin.mask.note)
        new = self._record(site, out, source)
        self.handwritten.recorded(new, found, site.name)
        return new

    def _take_back(self, name: str) -> None:
        """What was recorded under this name is a part of another attention, or of none."""
        self.names.take_back(name)
        self.outputs.retracted(name)
        if self.listener.wants(name):
            self.listener.retract(name)

    def _is_mixture(self, found: WeightedSum) -> bool:
        """Whether this is a mixture, not attention: in a module that is not named attention, or whose map is recorded already."""
        site = None if found.origin.scored else self.names.locate(count=False)
        if site is None or (says_attention(site.name, site.module) and site.name not in self._accounted):
            return False
        note = mixture(site, found)
        if note is not None and self.listener.wants(site.name):
            self.listener.noted(site.name, note)
        return note is not None

    def _in_blocks(self, function: str) -> bool:
        """Whether a layer with block attention is running. Its map is recorded as a whole at its first softmax."""
        state = self.blocks.state(self.names.locate(count=False), function)
        site = self._wanted(torch.empty(0, 0)) if state == "begins" else None
        if site is not None:
            self._record(site, torch.empty(0), lambda: block_layer(site))
        return state != "outside"

    # -- calls that no mode sees -------------------------------------------------------------------------------

    def observed(self, module: nn.Module | None, output: Tensor, weights: Callable[[], Tensor], **about: Any) -> Tensor:
        """A layer declared its attention with :func:`regard.maps.observe`. Record it, unless it was recognized already."""
        last = self._last_output() if self._last_output is not None else None
        if in_backward() or (last is not None and shares_memory(last, output)):
            return output
        site = self._wanted(output, module)
        if site is None:
            return output
        return self._record(site, output, lambda: own_layer(site, output, weights, **about))  # type: ignore[no-any-return]

    def called(self, name: str, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A patched function was called, see :mod:`regard.maps._monkey_patches`."""
        outer = outer_interceptors(self)

        def run() -> Any:
            if outer:
                return outer[0].called(name, original, args, kwargs)
            with without_interceptors(), paused():
                return compiled_as_called(original)(*args, **kwargs)

        if is_hidden() or in_backward():
            return run()
        like = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
        site = None if like is None else self._wanted(like)
        out = run()
        if site is None:
            return out
        call = FunctionCall(site, original, args, kwargs, out)
        with without_interceptors():
            tokens_first = "flex" not in name if isinstance(out, tuple) else None
            return self._record(site, out, lambda: PYTHON_FUNCTIONS[name](call), tokens_first)

    def watch_everything(self) -> None:
        """Another interception begins inside of this one. A subclass that watches operators only must see everything now."""

    def parameters_replaced(self, module: nn.Module, parameters: Any) -> None:
        """``torch.func.functional_call`` runs the module with other tensors in place of its parameters."""
        self.silent.replaced(module, parameters)

    def thread_started(self) -> None:
        """This thread started another one, or passed work to it."""
        self.silent.thread_started(self._running())

    def finish(self) -> None:
        """Report each softmax that was not multiplied with values, and release everything that refers to the model."""
        if self.is_prepared:
            self.outputs.finish()
            for use in self.handwritten.history.uses:
                if not use.done and (use.touched or use.name not in self._accounted):
                    self._missed(use.name, use.reason, use.shape)
        for name, reason in self.silent.unaccounted(self._accounted):
            self._missed(name, reason)
        self.names.forget()
        self._replaced = None
        self.release()
