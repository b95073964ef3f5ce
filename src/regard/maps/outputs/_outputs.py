"""Follows the outputs of attention: does the model rescale, subtract, add, concatenate or split them?

Each of these changes maps that were already recorded, so the listener is told. For example, differential attention
subtracts one output from another, and its map is the difference of their maps.

:meth:`OutputTracker.recorded` begins to follow an output. ``handlers`` run the functions that may change it: sums here,
products and divisions in ``_scaled_outputs.py``, joins with ``_joining.py``. Tensors are followed as linear combinations of
outputs (``_combinations.py``) until the next call of a module attends.
"""

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.maps._function_table import FunctionEntry
from regard.maps._listener import RecordListener
from regard.maps._module_names import ModuleNames
from regard.maps._record import Computation
from regard.maps.outputs._combinations import Followed, Memory, Terms, scaled, selections, some_heads, total
from regard.maps.outputs._folded_heads import FoldedHeads
from regard.maps.outputs._joining import Joint, axis_of, folded_heads
from regard.maps.outputs._packed_patches import about_tokens
from regard.maps.outputs._scaled_outputs import STEPS, ScaledOutputs, same_rows
from regard.maps.outputs._written_parts import WrittenParts
from regard.maps.sources import DIVISIONS, DROPOUTS, JOINS, MULTIPLICATIONS

ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
SUBTRACTIONS = frozenset({"sub", "sub_", "subtract", "__sub__", "__isub__"})
# Functions of three tensors: a + w·(b − a) and a + b·c.
_THREE = frozenset({"lerp", "lerp_", "addcmul", "addcmul_"})
_COPIES = frozenset({"clone", "contiguous", "to", "float", "double", "type_as", "transpose", "permute", "swapaxes"})
_SPLITS = frozenset({"chunk", "split", "tensor_split", "__getitem__"})
_LOOSE = (
    "several kernels of one call gave their logsumexp to the model, which combined them in a way that regard does not follow: "
    "its map is that of this kernel alone, and not its share of the whole"
)
_UNUSED = (
    "a factor that the model computed from the logsumexp of its scores was used in a way that regard does not follow: if it "
    "scales the output, it is not in the map"
)
_NOT_FOLLOWED = (
    "what the model did with its output could not be followed: if it scaled or combined outputs, that is not in the map"
)
# Functions that count as steps after an attention. Only the first STEPS of them are followed.
_COUNTED = DIVISIONS | MULTIPLICATIONS | DROPOUTS | ADDITIONS | {"sum"}


class OutputTracker(ScaledOutputs):
    """Follows the outputs of the module that is running.

    Args:
        apply: calls a method of the listener while nothing is intercepted.
        follow: called after each function that has a handler here.
        before: returns the arguments of a sum before it is computed; a copy of those that the sum changes in place, if they
            are needed later.
        names: finds the running module.

    Attributes:
        handlers: run torch functions, by their names.
        quiet: names of functions that matter only if one of their arguments is followed.
    """

    quiet: ClassVar[frozenset[str]] = _COUNTED | SUBTRACTIONS | JOINS | _THREE | _COPIES | _SPLITS

    def __init__(
        self,
        listener: RecordListener,
        apply: Callable[..., Any],
        follow: Callable[..., None],
        names: ModuleNames,
        before: Callable[[str, tuple[Any, ...]], tuple[Any, ...]],
    ) -> None:
        super().__init__(listener, apply)
        self._follow, self._names, self._before = follow, names, before
        self.handlers: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(SUBTRACTIONS | ADDITIONS | _THREE, self._sum_of_outputs),
            **dict.fromkeys(JOINS, self._join),
            **dict.fromkeys(_COPIES, self._copy),
            **dict.fromkeys(_SPLITS, self._split),
        }
        self.folded = FoldedHeads()
        self._written = WrittenParts()
        self._number = 0  # the latest output is this one of its call
        self._expected: str | None = None  # a module that took the logsumexp before it computes the output

    def _sum_of_outputs(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a sum or a difference. Its terms are looked up before, because it may change them in place."""
        terms = self._safely(self._terms, func.__name__, args, kwargs) if self.take_step() else None
        given = self._before(func.__name__, args)
        out = func(*args, **kwargs)
        if terms is not None and isinstance(out, Tensor):
            self._safely(self._combined, terms, out, func.__name__ in SUBTRACTIONS)
        self._follow(func.__name__, func, given, kwargs, out)
        return out

    def _terms(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Terms | None:
        """The outputs that this sum consists of, with their factors; None if it has any other term."""
        if len(args) < 2 or not isinstance(args[0], Tensor):
            return None
        x, y = args[:2]
        first, second, whole = self._sums.of(x), self._sums.of(y), x
        if function in ("lerp", "lerp_"):
            share: Any = args[2] if len(args) > 2 else kwargs["weight"]
            first = None if first is None else scaled(first, 1 - share, whole)
            second = None if second is None else scaled(second, share, whole)
        elif function in ("addcmul", "addcmul_"):
            z, value = args[2] if len(args) > 2 else kwargs.get("tensor2"), kwargs.get("value", 1)
            if second is None:
                y, z, second = z, y, self._sums.of(z)
            second = None if second is None else scaled(second, z * value, whole)
        elif isinstance(y, int | float) and y == 0:
            return first  # Python's sum() starts with 0
        else:
            sign = -1.0 if function in SUBTRACTIONS else 1.0
            second = None if second is None else scaled(second, sign * kwargs.get("alpha", 1), whole)
        return None if first is None or second is None else total(first, second)

    def _copy(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that copies or permutes a tensor. A copy of a combination is the same combination."""
        out = func(*args, **kwargs)
        terms = self._sums.of(args[0]) if args else None
        if terms is not None and isinstance(out, Tensor) and same_rows(args[0], out):
            self._sums.note(out, terms)
        self._follow(func.__name__, func, args, kwargs, out)
        return out

    def _split(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that selects a part of a tensor: differential attention subtracts half of the heads from the others."""
        out = func(*args, **kwargs)
        whole = args[0] if args else None
        terms = self._sums.of(whole)
        if terms is not None and isinstance(whole, Tensor):
            self._safely(self._selected, terms, whole, out, func.__name__, args, kwargs)
        self._follow(func.__name__, func, args, kwargs, out)
        return out

    def _selected(self, terms: Terms, whole: Tensor, *call: Any) -> None:
        """Parts of an output, or of a combination of outputs, were selected: follow those that are some of its heads."""
        for part, index in selections(whole, *call):
            found = some_heads(whole, terms, part, index)
            if found is not None:
                self._sums.note(part, found)

    def _safely(self, step: Callable[..., Any], *args: Any) -> Any:
        """Follow outputs through a function; None on an error. The model must not fail because its outputs are followed: after an
        error they no longer are, and a note says so."""
        try:
            return step(*args)
        except Exception as error:
            names = dict.fromkeys(output.name for output in self._outputs)
            self._outputs, self._stack = [], None
            self._sums.clear()
            for name in names:
                self._apply(self.listener.noted, name, f"{_NOT_FOLLOWED} ({type(error).__name__}: {error})")
            return None

    def _join(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that concatenates or stacks tensors."""
        out = func(*args, **kwargs)
        if len(self._outputs) > 1 or (self._outputs and self._steps > 0):
            self._safely(self._joined, func.__name__, args, kwargs, out)
        self._follow(func.__name__, func, args, kwargs, out)
        return out

    def wrote(self, args: tuple[Any, ...]) -> None:
        """The model ran ``args[0][args[1]] = args[2]``: join the maps if outputs fill a tensor one after the other."""
        filled = self._written.wrote(args[0], args[1]) if self._outputs and len(args) == 3 else None
        if filled is not None:
            parts, dim, stacked = filled
            self._safely(self._joined, "stack" if stacked else "cat", (parts, dim), {}, args[0])

    def is_quiet(
        self, known: FunctionEntry, args: tuple[Any, ...], kwargs: dict[str, Any] | None, waiting: dict[int, str]
    ) -> bool:
        """Whether a call has no argument that is followed here, and none of the parameters in ``waiting``.

        Almost every call of a model is of this kind, so this must be fast.

        Args:
            waiting: parameters of modules that look like attention and did not run yet, see
                :class:`regard.maps._silent_modules.SilentModules`.
        """
        if self.folded.waiting is not None:
            return False
        if known.reads:
            return True
        if waiting:
            for x in args:
                if id(x) in waiting:
                    return False
            if kwargs:
                for x in kwargs.values():
                    if id(x) in waiting:
                        return False
        if known.handler is None:
            return True
        if known.name in JOINS:
            parts = args[0] if args else None
            return not self._outputs or (isinstance(parts, list | tuple) and len(parts) > len(self._outputs))
        for x in args:
            if id(x) in self._sums:
                return False
        if known.name in _COUNTED:
            self._steps -= 1
        return True

    def logsumexp_taken(self, name: str | None, logsumexp: Any) -> None:
        """The module of this name computed the logsumexp of scores: those of its latest attention, or of the next one."""
        self.derived.add(logsumexp)
        latest = self._outputs[-1] if self._outputs else None
        if latest is not None and latest.name.partition("#")[0] == name and not latest.with_logsumexp:
            latest.with_logsumexp = True
        else:
            self._expected = name

    def recorded(
        self,
        name: str,
        running: Computation,
        own: Any,
        new: Any,
        heads_of_new: Tensor | None,
        *,
        tokens_first: bool | None,
    ) -> None:
        """Follow the output of an attention that was recorded.

        Args:
            own, new: its own output, and the one with which the model continues, which a listener may have replaced.
            heads_of_new: the latter as ``(batch, heads, queries, width)``.
            tokens_first: if the model was given the logsumexp, whether the output has tokens before heads; else None.
        """
        base, _, number = name.partition("#")
        tensor = new[0] if isinstance(new, tuple) else new
        same_call = bool(self._outputs) and self._outputs[0].name.partition("#")[0] == base
        if not same_call or int(number or 1) != self._number + 1:
            self._end_call(keep=self._expected == base)
        self._number, self._steps = int(number or 1), STEPS
        expected, self._expected = self._expected == base, None
        if tokens_first is not None and isinstance(own, tuple):
            self.derived.add(own[1:])
        if not isinstance(tensor, Tensor):
            return
        heads, later = heads_of_new, bool(self._outputs)
        output = Followed(
            name,
            _lead(heads),
            heads.detach() if later and heads is not None else None,
            Memory(running.value).joins([output.values for output in self._outputs]),
            tokens_first=bool(tokens_first),
            with_logsumexp=tokens_first is not None or expected,
        )
        # Differential attention may apply its factor to the values: A (λ V) = λ (A V).
        first = self._outputs[0] if len(self._outputs) == 1 and self._outputs[0].values is not output.values else None
        factor = None if first is None else output.values.multiple(first.values)
        if first is not None and factor is not None:
            output.values = first.values
        self._outputs.append(output)
        self._sums.note(tensor, {output: factor or 1.0})
        if running.folded:
            self.folded.expect(name, heads_of_new, tensor)

    def retracted(self, name: str) -> None:
        """The latest record turned out to be no attention of its own: the next one takes its number."""
        if self._outputs and self._outputs[-1].name == name:
            self._forget([self._outputs.pop()])
            self._number -= 1

    def _end_call(self, keep: bool = False) -> None:
        """The call of a module is over: report outputs whose logsumexp the model took, but did not use to merge them.

        Args:
            keep: keep what was computed from a logsumexp, because it already belongs to the next call.
        """
        loose = [output.name for output in self._outputs if output.with_logsumexp and not output.taken]
        loose = loose if len(loose) > 1 else []
        for name in loose:
            self._apply(self.listener.missed, name, _LOOSE)
        for output in self._outputs:
            if output.lost and output.name not in loose:
                self._apply(self.listener.missed, output.name, _UNUSED)
        if not keep:
            self.derived.clear()
        self._outputs = []
        self._written.clear()
        self._sums.clear()

    def before_next(self) -> None:
        """Another attention is about to be recorded, or the capture ends: the order of folded heads can no longer show."""
        if (unknown := self.folded.give_up()) is not None:
            self._apply(self.listener.regrouped, unknown[0], False)

    def ran(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """A function ran while tensors from a logsumexp are followed, or the order of folded heads is not known."""
        self.derived.follow(function, args, kwargs, out)
        found = None if self.folded.waiting is None else self.folded.saw(function, args, out)
        if found is not None and found[1] != "samples first":
            self._apply(self.listener.regrouped, found[0], found[1] == "heads first")

    def _joined(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Tensors were concatenated or stacked: join the maps if they are the latest outputs."""
        parts: Any = args[0] if args else kwargs.get("tensors")
        if (
            not isinstance(parts, list | tuple)
            or not 1 <= len(parts) <= len(self._outputs)
            or not isinstance(out, Tensor)
        ):
            return
        outputs = self._outputs[-len(parts) :]
        dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
        stacked = function == "stack"
        heads, sequences, order, layout = about_tokens(self._names.locate(count=False))
        if len(parts) == 1:
            if order is not None and not stacked and outputs[0].name.partition("#")[1] == "":
                self._apply(self.listener.joined, (outputs[0].name,), Joint("queries", order, layout))
            return
        if not all(
            output.may_be(part) and part.ndim == parts[0].ndim for part, output in zip(parts, outputs, strict=True)
        ):
            return
        known = [output.heads for output in outputs]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            count = folded_heads(parts, known, dim % out.ndim, stacked, heads, sequences)
            if count is not None:
                whole = out.detach().unflatten(0, (-1, count))
                self._are_one(outputs, Joint("batch and heads", heads=count), out, whole)
                self.folded.expect(outputs[0].name, whole, out)
                return
            about = None if stacked else dim, len(parts), heads, sequences
            axes = {
                axis_of(x.detach(), whole, *about) for x, whole in zip(parts, known, strict=True) if whole is not None
            }
        axis = axes.pop() if len(axes) == 1 else None
        if axis is None:
            self._side_by_side(outputs, out, dim, stacked)
            return
        along = ("batch", "heads", "queries").index(axis)
        every = [x for x in known if x is not None]
        found = torch.cat(every, along) if len(every) == len(known) else None
        self._are_one(outputs, Joint(axis, order, layout, heads if axis == "heads" else None), out, found)

    def _are_one(self, outputs: list[Followed], joint: Joint, out: Tensor, whole: Tensor | None) -> None:
        """These latest outputs are one attention, whose output is ``out``: join their maps.

        Args:
            whole: its output as ``(batch, heads, queries, width)``, if it is known.
        """
        self._apply(self.listener.joined, tuple(output.name for output in outputs), joint)
        first = outputs[0]
        first.heads, first.lead = whole, _lead(whole)
        first.values, first.taken = Memory(None), True
        first.with_logsumexp = any(output.with_logsumexp for output in outputs)
        self._merge(outputs, out)

    def _side_by_side(self, outputs: list[Followed], out: Tensor, dim: int, stacked: bool) -> None:
        """Outputs were stacked, or concatenated along the width.

        Stacked outputs may be averaged later. Outputs side by side are one attention if their maps are equal: its values were
        split into several parts.
        """
        self._stack = (weakref.ref(out), outputs, dim % out.ndim) if stacked else None
        if stacked or dim not in (-1, out.ndim - 1):
            return
        merged = self._apply(self.listener.repeated, tuple(output.name for output in outputs))
        if merged is None:
            first = outputs[0]
            self._sums.note(out, {Followed(first.name, first.lead, None, Memory(None), beside=True): 1.0})
        elif merged:
            self._merge(outputs, out)

    def finish(self) -> None:
        """The capture ends."""
        self.before_next()
        self._end_call()


def _lead(heads: Tensor | None) -> tuple[int, ...]:
    """``(batch, heads, queries)`` of an output."""
    return () if heads is None else tuple(heads.shape[:3])
