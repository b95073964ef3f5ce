"""What a model does with the outputs of attention: it rescales, subtracts, adds or concatenates them, or merges their heads.

All of it says something about maps that were already recorded, and is passed on to the listener.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from regard.maps._differences import SUBTRACTIONS, OutputPairs
from regard.maps._folded_heads import FoldedHeads
from regard.maps._joining import Joint, axis_of
from regard.maps._known_functions import KnownFunction
from regard.maps._layout import Layout
from regard.maps._listener import RecordListener
from regard.maps._record import Computation
from regard.maps.sources import DIVISIONS, DROPOUTS, MULTIPLICATIONS, WeightedSum

ADDITIONS = frozenset({"add", "add_", "__add__", "__radd__", "__iadd__"})
_STEPS = 24  # products and sums after an attention that may concern its output
_LOOSE = (
    "several kernels of one call gave their logsumexp to the model, which combined them in a way that regard does not follow: "
    "its map is that of this kernel alone, and not its share of the whole"
)
JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
# Of these functions the first 24 after an attention are looked at.
_COUNTED = DIVISIONS | MULTIPLICATIONS | DROPOUTS | ADDITIONS | {"sum"}


@dataclass(eq=False)
class _Followed:
    """An output of the running call of a module.

    Attributes:
        tensor: the output, or what it was multiplied to.
        name: of its map.
        heads: ``(batch, heads, queries, width)``; None for the first output of a call, of which no memory is kept.
        values: where its values lie in memory.
        factor: with which it was multiplied.
        tokens_first: whether tokens come before heads.
        with_logsumexp: whether the kernel gave its logsumexp to the model.
    """

    tensor: weakref.ref[Tensor]
    name: str
    heads: Tensor | None
    values: "_Memory"
    factor: Any = 1.0
    tokens_first: bool = False
    with_logsumexp: bool = False


class _Memory:
    """Where a tensor lies in memory. The memory may be freed, and used again by another tensor."""

    def __init__(self, x: Tensor | None) -> None:
        self._at: tuple[Any, ...] | None = None
        if x is not None:
            try:
                self._at = (x.data_ptr(), x.shape, x.stride())
                self._storage = StorageWeakRef(x.untyped_storage())
            except (RuntimeError, NotImplementedError):  # sparse, or inside of vmap
                self._at = None

    def joins(self, others: list["_Memory"]) -> "_Memory":
        """That of the others which is the same memory, still in use; else this one."""
        return next((x for x in others if x._at is not None and x._at == self._at and not x._storage.expired()), self)


class OutputTracker:
    """Follows the outputs of the module that runs.

    Args:
        apply: calls a method of the listener, out of sight of all interceptors.
        follow: is called after each function that has a handler here.
        about: returns the numbers of heads and samples of the running module, and the order and layout of its tokens.

    Attributes:
        handlers: run functions of torch, by their names.
        quiet: functions that matter only if one of their arguments is followed.
    """

    quiet: ClassVar[frozenset[str]] = _COUNTED | SUBTRACTIONS | JOINS

    def __init__(
        self,
        listener: RecordListener,
        apply: Callable[..., Any],
        follow: Callable[..., None],
        about: Callable[[], tuple[int | None, int | None, Tensor | None, Layout | None]],
    ) -> None:
        self.listener = listener
        self._apply, self._follow, self._about = apply, follow, about
        self.handlers: dict[str, Callable[..., Any]] = {
            **dict.fromkeys(SUBTRACTIONS, self._subtraction),
            **dict.fromkeys(ADDITIONS, self._addition),
            **dict.fromkeys(JOINS, self._join),
        }
        self.pairs = OutputPairs()
        self.folded = FoldedHeads()
        self._outputs: list[_Followed] = []
        self._number = 0  # of the latest output in its call
        self._steps = 0
        self._known: set[int] = set()  # ids of all tensors that are followed here; some may be gone
        # The sum of two outputs whose rows may be divided later.
        self._sum: tuple[weakref.ref[Tensor], _Followed, _Followed] | None = None
        # Outputs that were stacked, and the result: it may be averaged with weights.
        self._stack: tuple[weakref.ref[Tensor], list[_Followed]] | None = None

    def _subtraction(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self.pairs.subtracted(args) if self.pairs else None
        if found is not None:
            self._apply(self.listener.subtracted, *found)
            self.note()
        out = func(*args, **kwargs)
        self._follow(func.__name__, func, args, kwargs, out)
        return out

    def _addition(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if self.followed:
            self._added(args, out)
            self.note()
        self._follow(func.__name__, func, args, kwargs, out)
        return out

    def _join(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if len(self._outputs) > 1 or (self._outputs and self._steps > 0):
            self._joined(func.__name__, args, kwargs, out)
            self.note()
        self._follow(func.__name__, func, args, kwargs, out)
        return out

    def is_quiet(
        self, known: KnownFunction, args: tuple[Any, ...], kwargs: dict[str, Any] | None, waiting: dict[int, str]
    ) -> bool:
        """Whether a call concerns nothing that is followed here, nor one of the parameters that are waited for. Almost
        every call of a model is of this kind."""
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
            if id(x) in self._known:
                return False
        if known.name in _COUNTED:
            self._steps -= 1
        return True

    def paired(self, name: str, value: Any, out: Any) -> None:
        """A kernel was called with these values."""
        self.pairs.add(name, value, out)
        if self.pairs:
            self.note()

    def note(self) -> None:
        """Other tensors are followed than before."""
        self._known = {id(output.tensor()) for output in self._outputs}
        if self.pairs:
            self._known.update(id(output.tensor()) for output in self.pairs.waiting)
        if self._sum is not None:
            self._known.add(id(self._sum[0]()))

    def recorded(self, name: str, running: Computation, own: Any, new: Any, *, tokens_first: bool | None) -> None:
        """An attention was recorded.

        Args:
            own, new: its output, and that with which the model continues.
            tokens_first: if the kernel gave its logsumexp to the model, whether tokens come before heads.
        """
        base, _, number = name.partition("#")
        tensor = new[0] if isinstance(new, tuple) else new
        same_call = bool(self._outputs) and self._outputs[0].name.partition("#")[0] == base
        if not same_call or int(number or 1) != self._number + 1:
            self._end_call()
        self._number, self._steps, self._sum = int(number or 1), _STEPS, None
        if not isinstance(tensor, Tensor):
            return
        heads, later = running.output, bool(self._outputs)
        self._outputs.append(
            _Followed(
                weakref.ref(tensor),
                name,
                heads.detach() if later and heads is not None else None,
                _Memory(running.value).joins([output.values for output in self._outputs]),
                tokens_first=bool(tokens_first),
                with_logsumexp=tokens_first is not None,
            )
        )
        self.folded.expect(name, running, own[0] if isinstance(own, tuple) else own)
        self.note()

    def _end_call(self) -> None:
        """The call of a module is over. Kernels that gave their logsumexp to the model are there to be merged."""
        loose = [output.name for output in self._outputs if output.with_logsumexp]
        for name in loose if len(loose) > 1 else ():
            self._apply(self.listener.missed, name, _LOOSE)
        self._outputs = []

    def before_next(self) -> None:
        """Another attention is about to be recorded, or none will be."""
        if (unknown := self.folded.give_up()) is not None:
            self._apply(self.listener.regrouped, unknown[0], False)

    @property
    def followed(self) -> bool:
        """Whether a product or a sum may concern an output: they come soon after it."""
        self._steps -= 1
        return self._steps > 0 and bool(self._outputs)

    def merged(self, function: str, args: tuple[Any, ...], out: Any) -> None:
        """A function ran, while it is not known whether heads or samples come first."""
        found = self.folded.saw(function, args, out)
        if found is not None and found[1] != "samples first":
            self._apply(self.listener.regrouped, found[0], found[1] == "heads first")

    def scaled(self, function: str, args: tuple[Any, ...], out: Any) -> None:
        """A multiplication or division: of one of the outputs, row by row?"""
        divided = function in DIVISIONS
        if len(args) >= 2 and (divided or function in MULTIPLICATIONS):
            self._scaled(divided, args, out)
            self.note()

    def _scaled(self, divided: bool, args: tuple[Any, ...], out: Any) -> None:
        if not divided:
            self.pairs.multiplied(args, out)
        if divided and self._sum is not None and args[0] is self._sum[0]() and isinstance(args[1], Tensor):
            _, first, second = self._sum
            factors = tuple(part.factor / args[1] for part in (first, second))
            self._sum = None
            self._add(first, second, factors, out)
            return
        for output in self._outputs:
            whole = output.tensor()
            index = next((i for i, x in enumerate(args[:1] if divided else args[:2]) if x is whole), None)
            if whole is None or index is None or not isinstance(out, Tensor):
                continue
            rows = _factor(args[1 - index], whole, divided)
            if rows is None:
                return
            if output.with_logsumexp and isinstance(
                rows, Tensor
            ):  # a learned sink, or a share of the softmax: this belongs to the map by itself
                each = rows.expand(*whole.shape[:-1], 1)[..., 0]
                self._apply(self.listener.rescaled, output.name, each.transpose(1, 2) if output.tokens_first else each)
                output.with_logsumexp = False
            else:
                output.factor = output.factor * rows
            output.tensor = weakref.ref(out)
            return

    def _added(self, args: tuple[Any, ...], out: Any) -> None:
        """An addition: of two of the outputs?"""
        if len(self._outputs) < 2 or not isinstance(out, Tensor):
            return
        found = [next((o for o in self._outputs if o.tensor() is x), None) for x in args[:2]]
        if len(found) != 2 or found[0] is None or found[1] is None or found[0] is found[1]:
            return
        first, second = sorted((found[0], found[1]), key=self._outputs.index)
        factors = (first.factor, second.factor)
        if not self._add(first, second, factors, out):
            self._sum = (weakref.ref(out), first, second)

    def averaged(self, found: WeightedSum, out: Any) -> bool:
        """Whether this is an average of several outputs, whose maps are one now."""
        stack, factors = self._stack, found.origin.factors
        if stack is None or factors is None or factors[1] is not stack[0]():
            return False
        shares, parts = factors[0], stack[1]
        self._stack = None
        if shares.shape[0] != len(parts) or len({id(part.values) for part in parts}) != len(parts):
            return False
        names = tuple(part.name for part in parts)
        done = bool(self._apply(self.listener.added, names, tuple(shares.detach()), False))
        if done:
            self._outputs = [output for output in self._outputs if output not in parts]
        return done

    def _add(self, first: _Followed, second: _Followed, factors: tuple[Any, Any], out: Any) -> bool:
        same = first.values is second.values
        done = self._apply(self.listener.added, (first.name, second.name), factors, same)
        if done:
            first.tensor, first.factor, first.heads = weakref.ref(out), 1.0, None
            first.values, first.with_logsumexp = first.values if same else _Memory(None), False
            self._outputs.remove(second)
        return bool(done)

    def _joined(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Tensors are concatenated or stacked: the latest outputs?"""
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
        heads, samples, order, layout = self._about()
        if len(parts) == 1:
            if order is not None and not stacked and outputs[0].name.partition("#")[1] == "":
                self._apply(self.listener.joined, (outputs[0].name,), Joint("queries", order, layout))
            return
        if not all(isinstance(part, Tensor) and part.ndim == parts[0].ndim for part in parts):
            return
        axes = set()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            for part, output in list(zip(parts, outputs, strict=True))[::-1]:
                if output.heads is not None:
                    if part.numel() != output.heads.numel() or part.dtype != output.heads.dtype:
                        return
                    axes.add(axis_of(part.detach(), output.heads, None if stacked else dim, len(parts), heads, samples))
        axis = axes.pop() if len(axes) == 1 else None
        if axis is None:
            self._stack = (weakref.ref(out), outputs) if stacked and dim == 0 else None
            return
        names = tuple(output.name for output in outputs)
        self._apply(self.listener.joined, names, Joint(axis, order, layout))
        first = outputs[0]
        known = [output.heads for output in outputs if output.heads is not None]
        along = ("batch", "heads", "queries").index(axis)
        first.heads = torch.cat(known, along) if len(known) == len(outputs) else None
        first.tensor, first.values, first.with_logsumexp = weakref.ref(out), _Memory(None), False
        del self._outputs[-len(parts) + 1 :]

    def finish(self) -> None:
        self.before_next()
        self._end_call()


def _factor(factor: Any, whole: Tensor, divided: bool) -> Any:
    """A factor of each row, or a number; None for other factors."""
    if isinstance(factor, int | float):
        return (1 / factor if factor else None) if divided else float(factor)
    if not isinstance(factor, Tensor) or (factor.ndim and (factor.ndim != whole.ndim or factor.shape[-1] != 1)):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return factor.detach().reciprocal() if divided else factor.detach()
