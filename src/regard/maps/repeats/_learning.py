"""Makes repeated captures cheap: learns from one pass that a model needs no torch function mode.

A function mode sees every torch function of a model, which is slow. Most models are *usual*: each module attends at
most once per call, by ``scaled_dot_product_attention`` or by the fast path of torch's own layers, and nothing else
concerns the maps. For these it is enough to watch a few operators (see :mod:`regard.maps._operator_watch`).

A capture learns in the first pass whether the model is usual. From the second pass on, and in later captures of the
same unchanged model, it only watches operators. If one of these may be another attention, the function mode is turned
on again. Of a model that is not usual, later captures use the names of its modules and what was found out about them.
"""

import sys
import weakref
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.maps._call_stack import frames_from, from_compiled_code
from regard.maps._interception import Interceptor
from regard.maps._listener import RecordListener
from regard.maps._module_names import CALL, CallSite
from regard.maps._monkey_patches import paused
from regard.maps._operator_watch import ATTENTION, OperatorWatch, unwatched
from regard.maps._record import AttentionRecord, Computation
from regard.maps._torch_modes import NO_PASS, backward_pass, in_backward
from regard.maps.repeats._model_form import ModelForm, form_of
from regard.maps.repeats._module_watch import ModuleWatch
from regard.maps.repeats._repeated_calls import Call, RepeatedCalls, read_call
from regard.maps.sources import BlockLayers, is_outer
from regard.observation import unobserved

_FAST_PATH = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
# Operators that a usual model may call. Any other watched operator may be a part of another attention.
_EXPECTED = (ATTENTION, "conv2d", *_FAST_PATH)
_SOFTMAXES = ("softmax", "log_softmax")


class Learned(NamedTuple):
    """What was learned about a model.

    Attributes:
        usual: whether it is usual. If not, every capture sees all functions, and only ``form`` and ``facts`` are used.
        names: the names of the modules that attended, in the order of the model.
        modules: these modules, as far as they are part of the model, and those that look like attention and contain them.
        form: the model's structure and settings then. If they change, what was learned is void.
        facts: cached answers about its modules, such as their axes.
    """

    usual: bool
    names: dict[str, None]
    modules: list[tuple[str, weakref.ref[nn.Module]]]
    form: ModelForm
    facts: dict[Any, Any]


_learned: weakref.WeakKeyDictionary[nn.Module, Learned] = weakref.WeakKeyDictionary()


class LearningInterceptor(Interceptor):
    """An interceptor that turns its function mode off as soon as watching operators is known to be enough."""

    def __init__(self, model: nn.Module, listener: RecordListener, keeps_path: bool = True) -> None:
        hashable = type(model).__hash__ is not None
        found: Learned | None = _learned.get(model) if hashable else None
        names = None if found is None else found.form.names_if_same(model)
        super().__init__(model, listener, keeps_path, names)
        # Whether the model has been usual so far. Once this is False, nothing is learned.
        self._usual = listener.projections is None and hashable
        # What was learned about the model, if it still holds and operators may be watched.
        self._known: Learned | None = None
        self._form: ModelForm | None = None
        if found is None or names is None:
            self._form = form_of(model, self.names) if hashable else None
        else:
            self._form = found.form
            self.names.remember(found.facts)
            self._known = found if found.usual and self._usual else None
        if self._known is None:
            self._usual = self._usual and not BlockLayers(self.names.modules.values())
        self._model = model
        self._operators: OperatorWatch | None = None  # None while the function mode is on
        self._modules: ModuleWatch | None = None
        self._began = False
        self._inference = False  # whether inference mode was on where the capture began
        self._seen: set[str] = set()  # modules that attended while the function mode was on
        self._repeated = RepeatedCalls(self.names, self.layouts, listener.wants, listener.repeats)
        self._take = None if listener.repeats is None else listener.repeats.take
        self._call: Call | None = None  # the call that is being recorded
        # Name, output and values of the latest call that was recorded as a repeated one, without following its output.
        self._latest: tuple[str, weakref.ref[Tensor], weakref.ref[Tensor]] | None = None

    @property
    def expected(self) -> int:
        """How many modules attended in an earlier capture; 0 if nothing was learned."""
        return 0 if self._known is None else len(self._known.names)

    def __enter__(self) -> "LearningInterceptor":
        first, self._began = not self._began, True
        if first:
            self._inference = torch.is_inference_mode_enabled()
        if first and self._known is not None and self._may_watch(others=0):
            self._watch_modules(self.silent.ran)
            self._operators = OperatorWatch(self)
            return self
        if first:
            self._known = None
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._end_modules()
        if self._operators is not None:
            self._operators.end()
            self._operators = None
        else:
            super().__exit__(*error)
            OperatorWatch.clear()

    @staticmethod
    def _may_watch(others: int) -> bool:
        """Whether operators can be watched here: not if there are other function modes, which would see fewer calls.

        Args:
            others: how many function modes are expected: 1 if our own is on.
        """
        return torch._C._len_torch_function_stack() == others and OperatorWatch.is_possible()

    def _watch_modules(self, ran: Any) -> None:
        """Call ``ran`` when a module that is known to attend is first called. If it then gives no map, that is reported."""
        listed = () if self._known is None else self._known.modules
        self._modules = ModuleWatch([(name, found) for name, module in listed if (found := module()) is not None], ran)

    def _end_modules(self) -> None:
        if self._modules is not None:
            self._modules.end()
            self._modules = None

    def attention_called(self, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> Tensor | None:
        """Run a call of attention that repeats an earlier one, record it and return its output; None for other calls."""
        call = self._repeated.run(args, kwargs, caller) if backward_pass() == NO_PASS else None
        if call is None:
            return None
        name, out, moment = call.known.name, call.output, (self.names.run, self._count)
        self._count += 1
        self._accounted.add(name)
        self._last_output = last = weakref.ref(out)
        self._latest = name, last, weakref.ref(call.value)
        if self._take is None or not self._take(call, moment):
            record = call.record()
            record.moment = moment
            with unwatched(), torch._C.DisableTorchFunction(), paused():
                unobserved(self.listener.attended, record)
        return out

    def operator_called(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of a watched operator. One that does not belong to a usual model turns the function mode on."""
        if in_backward() or (name == "bmm" and is_outer(args)):  # angles of rotary positions, for example
            return function(*args, **kwargs)
        if name not in _EXPECTED:
            if name in _SOFTMAXES and _chooses_tokens():
                return function(*args, **kwargs)
            self.watch_everything()
        if name == "conv2d" and not self.is_prepared:
            out = function(*args, **kwargs)
            self.layouts.convolved(args, kwargs, out)
            return out
        self.prepare()
        self._repeated.leave()
        with torch._C.DisableTorchFunction():
            watched = name == ATTENTION and self._operators is not None
            self._call = read_call(args, kwargs, sys._getframe()) if watched else None
            out = self._handlers[name](function, args, kwargs)
            self._call = None
            if self._operators is None and isinstance(out, Tensor) and self.handwritten.history.get(out) is not None:
                self.handwritten.history.also = out  # the model is given a view of it
        return out

    def _turns_unusual(self) -> None:
        """The model does something that a usual one does not: it needs the function mode, now and in later captures."""
        self.watch_everything()
        self._usual = False

    def watch_everything(self) -> None:
        """Turn the function mode on: from now on every torch function is seen."""
        if self._operators is None:
            return
        self.prepare()
        self._follow_latest()
        self._repeated.leave()
        self._end_modules()
        self._operators.end()
        self._operators, self._usual = None, False
        others = []
        while torch._C._len_torch_function_stack():  # modes that were entered later stay above this one
            others.append(torch.overrides._pop_mode())
        super().__enter__()
        for mode in reversed(others):
            torch.overrides._push_mode(mode)

    def _follow_latest(self) -> None:
        """Follow the output of the latest repeated call from now on, as the function mode would have done."""
        if self._latest is None:
            return
        name, output, value = self._latest[0], self._latest[1](), self._latest[2]()
        self._latest = None
        if output is not None:
            running = Computation(lambda *_: (output, None), output=output, value=value)
            self.outputs.recorded(name, running, output, output, output, tokens_first=None)

    # -- learning ----------------------------------------------------------------------------------------------

    def _learn(self) -> Learned | None:
        """What this capture has learned so far; None if the model is not usual."""
        history = self.handwritten.history
        same = self._usual and not history.followed and not history.random.some and bool(self._accounted)
        if not same or self._form is None or not self.silent.are_explained(self._accounted):
            return None
        order = (self.names.of(module) for module in self.names.modules.values())
        names: dict[str, None] = {name: None for name in order if name is not None and name in self._accounted}
        names |= dict.fromkeys(self._accounted)
        found = ((name, self.names.find(name)) for name in (*names, *(self.silent.owners - names.keys())))
        modules = [(name, weakref.ref(module)) for name, module in found if module is not None]
        return Learned(True, names, modules, self._form, self.names.facts)

    def _again(self) -> None:
        """A module attended a second time, so the first pass is over. If the model is usual, watch only operators.

        The mode cannot be turned off inside of a torch function. So this waits until a module that attends is called.
        """
        if self._modules is not None or self._operators is not None or not self._usual:
            return
        learned = self._learn()
        if learned is None or not learned.form.fingerprint.matches(list(self.names.modules.values())):
            self._usual = False
            return
        self._known = learned
        self._watch_modules(self._switch)

    def _switch(self, _: str) -> None:
        """Turn the function mode off and watch operators, at the call of a module.

        Not inside of compiled code, even if it runs as Python, nor in an inference mode that began inside of the capture: where
        these end, torch resets the keys that are watched.
        """
        self._end_modules()
        resets = torch.is_inference_mode_enabled() != self._inference or from_compiled_code(
            frames_from(sys._getframe())
        )
        if resets or not self._usual:
            return
        if self._may_watch(others=1) and torch._C._get_function_stack_at(0) is self:
            super().__exit__(None, None, None)
            self._operators = OperatorWatch(self)

    def finish(self) -> None:
        """Keep what was learned for later captures, or forget it if this one contradicts it."""
        if self._known is not None:
            same = self._usual and (not self._accounted or self._accounted == self._known.names.keys())
            learned = self._known if same else None
            if learned is not None and len(self.names.remembered) > len(learned.facts):
                learned = learned._replace(facts=self.names.facts)
        else:
            learned = self._learn()
        if learned is None and self._form is not None:
            learned = Learned(False, {}, [], self._form, self.names.facts)
        if learned is not None:
            _learned[self._model] = learned
        elif type(self._model).__hash__ is not None:
            _learned.pop(self._model, None)
        super().finish()
        del self._model

    def _handwritten(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.__name__ in _SOFTMAXES and _chooses_tokens():
            return func(*args, **kwargs)
        return super()._handwritten(func, args, kwargs)

    # -- events after which the model is not usual --------------------------------------------------------------

    def _missed(self, *args: Any) -> None:
        self._usual = False
        super()._missed(*args)

    def _record(self, site: CallSite, out: Any, source: Any, tokens_first: bool | None = None) -> Any:
        # A second attention in one call, or a logsumexp in the hands of the model: outputs may be combined later.
        if "#" in site.name or tokens_first is not None:
            self._turns_unusual()
        new = super()._record(site, out, source, tokens_first)
        if self._usual and self._operators is None:
            if site.name in self._seen:
                self._again()
            self._seen.add(site.name)
        return new

    def _pass_to_listener(self, record: AttentionRecord, running: Any, out: Any) -> Any:
        # Folded heads can only be told from what follows, and other kinds of attention need the function mode.
        if running.folded or record.kind not in ("sdpa", "fast path"):
            self._turns_unusual()
        if self._call is not None:
            self._repeated.learn(self._call, record, running)
        self._latest = None  # the output of this call is followed by the base class
        return super()._pass_to_listener(record, running, out)

    def _call_listener(self, function: Any, *args: Any) -> Any:
        self._usual = False
        return super()._call_listener(function, *args)

    def _operator(self, func: Any, args: tuple[Any, ...], out: Any) -> None:
        self._usual = False
        super()._operator(func, args, out)

    def observed(self, module: nn.Module | None, output: Tensor, weights: Any, **about: Any) -> Tensor:
        self._turns_unusual()
        return super().observed(module, output, weights, **about)

    def called(self, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._turns_unusual()
        return super().called(name, original, args, kwargs)

    def parameters_replaced(self, module: nn.Module, parameters: Any) -> None:
        self._turns_unusual()
        super().parameters_replaced(module, parameters)

    def thread_started(self) -> None:
        self._turns_unusual()
        super().thread_started()


def _chooses_tokens() -> bool:
    """Whether ``generate`` calls this softmax, outside of the model, to choose the next token: that is not attention."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not CALL:
        name = frame.f_globals.get("__name__", "")
        if not name.startswith(("regard.maps.", "torch.", "jaxtyping.")):
            return bool(name.startswith("transformers.generation."))
        frame = frame.f_back
    return False
