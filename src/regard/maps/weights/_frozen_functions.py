"""``Frozen``: a copy of a function that keeps the tensors which it reads, as they are now.

The functions of FlexAttention read tensors of the model: document numbers, slopes, a table of biases. Rows that are
computed later from kept queries and keys need these tensors as they were, also if the model has overwritten them.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

_UNCHANGING = (
    *(int, float, complex, str, bytes, bool, type(None), range, slice, type, ModuleType, BuiltinFunctionType),
    *(torch.dtype, torch.device, torch.Size, type(functools.cache(len))),
)


@dataclass(frozen=True)
class OfTheModel:
    """The base of objects that call a function of the model."""

    function: Callable[..., Any]

    def frozen(self) -> Any:
        """The same with a copy of the function, see :class:`Frozen`."""
        return replace(self, function=Frozen(self.function))

    @property
    def nbytes(self) -> int:
        """The size of the tensors that were copied with the function."""
        return self.function.nbytes if isinstance(self.function, Frozen) else 0


class Frozen:
    """A copy of a function whose tensors can no longer change: those in its closure, its defaults, the global variables
    and the attributes that it names, and those of the functions that it calls.

    An object that the function calls is copied when it is first called: so call the copy once before anything changes.

    >>> table = torch.ones(3)
    >>> kept = Frozen(lambda i: table[i])
    >>> _ = table.zero_()
    >>> kept(1), kept.nbytes
    (tensor(1.), 12)
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._copies = _Copies()
        self._function = self._copies.of(function, frozenset())

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    @property
    def nbytes(self) -> int:
        """The size of the copied tensors."""
        return self._copies.nbytes


@dataclass
class _Copies:
    """Copies of everything that a function reads; each object is copied once.

    Attributes:
        made: the copies by the id of the original, with the original, which keeps its id from being used again.
    """

    nbytes: int = 0
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def of(self, x: Any, names: frozenset[str]) -> Any:
        """A copy of ``x``. ``names`` are the attributes that the function around it may read."""
        if isinstance(x, _UNCHANGING) or _is_of_torch(x):
            return x
        if id(x) in self.made:
            copied = self.made[id(x)][1]
            return self._named(x, copied, names) if isinstance(copied, _Attributes) else copied
        if isinstance(x, Tensor):
            self.nbytes += x.nbytes
            return self._keep(x, x.detach().clone())
        if isinstance(x, FunctionType):
            return self._function(x)
        if isinstance(x, MethodType):
            names |= _names_in(x.__func__.__code__) if isinstance(x.__func__, FunctionType) else frozenset()
            return MethodType(self.of(x.__func__, names), self.of(x.__self__, names))
        if isinstance(x, functools.partial):
            given = {name: self.of(value, names) for name, value in x.keywords.items()}
            return functools.partial(self.of(x.func, names), *(self.of(value, names) for value in x.args), **given)
        if type(x) in (tuple, list):
            return self._keep(x, type(x)(self.of(item, names) for item in x))
        if type(x) is dict:
            return self._keep(x, {key: self.of(item, names) for key, item in x.items()})
        return self._attributes(x, names)

    def _keep(self, x: Any, copied: Any) -> Any:
        self.made[id(x)] = x, copied
        return copied

    def _function(self, x: FunctionType) -> Any:
        """The same code with copies of what it reads. The copy is known before its parts: functions may name themselves."""
        names = _names_in(x.__code__)
        cells = tuple(CellType() for _ in x.__closure__ or ())
        variables = dict(x.__globals__)
        made = self._keep(x, FunctionType(x.__code__, variables, x.__name__, None, cells or None))
        made.__defaults__ = self.of(x.__defaults__, names)
        made.__kwdefaults__ = self.of(x.__kwdefaults__, names)
        for cell, original in zip(cells, x.__closure__ or (), strict=True):
            cell.cell_contents = self.of(original.cell_contents, names)
        for name in names & x.__globals__.keys():
            variables[name] = self.of(x.__globals__[name], names)
        return made

    def _attributes(self, x: Any, names: frozenset[str]) -> Any:
        """A copy of an object, with those attributes that functions name: all of a model would be too much."""

        def called() -> Any:
            call = type(x).forward if isinstance(x, nn.Module) else type(x).__call__
            return self.of(MethodType(call, x), names)

        return self._named(x, self._keep(x, _Attributes(called)), names)

    def _named(self, x: Any, made: "_Attributes", names: frozenset[str]) -> "_Attributes":
        """Add the attributes of these names to the copy of an object."""
        new = [name for name in names - made.named if not name.startswith("__") and hasattr(x, name)]
        made.named |= names  # before the attributes are copied, which may name this object again
        for name in new:
            setattr(made, name, self.of(getattr(x, name), names))
        return made


class _Attributes(SimpleNamespace):
    """The copy of an object: some of its attributes, and its function, which is copied at the first call."""

    def __init__(self, called: Callable[[], Any]) -> None:
        self._called, self.named = functools.cache(called), frozenset[str]()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called()(*args, **kwargs)


def _is_of_torch(x: Any) -> bool:
    """Whether this is a function of torch, which reads no tensors of a model. (Some of torch's closures do: masks combined
    by ``and_masks``.)"""
    return isinstance(x, FunctionType) and x.__module__.partition(".")[0] == "torch" and x.__closure__ is None


def _names_in(code: CodeType) -> frozenset[str]:
    """The names of global variables and attributes in a function, and in the functions inside of it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset(code.co_names).union(*map(_names_in, inner))
