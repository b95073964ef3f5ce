"""Run answers and refuse those that call a ready-made function, under whatever name.

A check calls an answer through :func:`by_hand`. In a student's notebook this calls the function directly. In grading,
the answer is in a separate process (:mod:`regard.course.grading`), and the same call is sent there as data.
"""

import sys
import warnings
from collections.abc import Iterable, Mapping
from fractions import Fraction
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from regard.course._expect import NotThere, is_array
from regard.course.grading import ATTENTION, READY_MADE, ReadyMadeError, RemoteAnswer, called_torch


class Answer:
    """Wraps an answer and is called like it. The answer must not change the tensors that are passed to it."""

    def __init__(self, answer: Any, refused: Mapping[str, str], draws: bool = False) -> None:
        self._answer, self._refused, self._draws = answer, dict(refused), draws

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What the answer returns for these arguments."""
        return self._call("", args, options)

    def method(self, name: str, *args: Any) -> Any:
        """The same for a method of an object that :meth:`build` made."""
        return self._call(name, args, {})

    def _call(self, method: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        args = tuple(part._answer if isinstance(part, Answer) else part for part in args)
        if isinstance(self._answer, RemoteAnswer):
            found, changed = self._answer.call(args, options, method)
        else:
            function = getattr(self._answer, method) if method else self._answer
            before = [part.detach().clone() if isinstance(part, Tensor) else None for part in args]
            with warnings.catch_warnings(), _Watch(self._refused, self._draws):
                if self._draws:
                    warnings.simplefilter("ignore", DeprecationWarning)  # a warning of NumPy about the watched tensors
                found = function(*args, **options)
            changed = [
                number
                for number, (old, new) in enumerate(zip(before, args, strict=True))
                if old is not None and not (old.shape == new.shape and old.nan_to_num().equal(new.nan_to_num()))
            ]
        if changed:
            raise AssertionError(
                f"your answer changes its argument {changed[0] + 1} in place (+=, a method that ends in _, or x[…] = …): "
                "whoever calls it still needs it; make a new tensor"
            )
        return _in_one_form(found)

    def slopes(self, *args: Tensor, weight: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of Σ weight · answer(…) into the arguments."""
        if isinstance(self._answer, RemoteAnswer):
            found = self._answer.slopes(args, weight)
        else:
            leaves = [part.detach().clone().requires_grad_() for part in args]
            with _Watch(self._refused, self._draws):
                made = self._answer(*leaves)
            flows = isinstance(made, Tensor) and made.requires_grad
            found = torch.autograd.grad((made * weight).sum(), leaves, allow_unused=True) if flows else None
        if found is None or all(part is None for part in found):
            raise AssertionError("no gradient reaches the inputs: build the result from tensor operations alone")
        return tuple(found)

    def build(self, *args: Any, state: Mapping[str, Tensor] | None = None, **options: Any) -> "Answer":
        """An object of the student's class, with these weights."""
        if isinstance(self._answer, RemoteAnswer):
            made: Any = self._answer.build(args, options)
            if state is not None:
                made.load_state(dict(state))
        else:
            made = self._answer(*args, **options)
            if state is not None:
                made.load_state_dict(dict(state))
                made.eval()
        return Answer(made, self._refused, self._draws)


def by_hand(answer: Any, *, without: str | Iterable[str] = (), draws: bool = False) -> Answer:
    """Wrap an answer so that a call of a ready-made function raises an error. The wrapper is called like the answer.

    Always rejected are this library's own functions and layers, torch's fused attention, and a detour through NumPy.
    Functions are recognized while they run, so an alias or an import under another name is rejected as well.

    Args:
        answer: a function or a class.
        without: further kinds to reject: ``"softmax"``, ``"layer_norm"``, ``"gelu"``, ``"convolution"``,
            ``"recurrence"``, ``"kron"``, ``"variance"``.
        draws: whether the answer draws a figure, for which tensors may become arrays.

    >>> import regard.course
    >>> regard.course.by_hand(lambda x: x.exp())(torch.zeros(1))
    tensor([1.])
    >>> regard.course.by_hand(lambda x: regard.softargmax(x))(torch.zeros(1))
    Traceback (most recent call last):
    regard.course.grading._refusal.ReadyMadeError: your answer calls regard's softargmax; write it out yourself
    """
    kinds = (without,) if isinstance(without, str) else tuple(without)
    unknown = [kind for kind in kinds if kind not in READY_MADE]
    if unknown:
        raise ValueError(f"without must name kinds of {', '.join(READY_MADE)}, got {', '.join(unknown)}")
    if not isinstance(answer, RemoteAnswer) and not callable(answer):
        what = "is not there yet" if answer is None or answer is Ellipsis else f"is {answer!r}, which cannot be called"
        raise NotThere(f"your answer {what}: run its cell first, and keep the name it was given")
    return Answer(answer, {name: kind for kind in kinds for name in READY_MADE[kind]}, draws)


def _in_one_form(found: Any) -> Any:
    """Several values as a tuple, and numbers as they come from the grader's process: dense tensors of float32, and floats
    in place of fractions. Checks compare values and not types, but they also multiply answers by tensors of their own, and
    torch multiplies only tensors of one type."""
    if isinstance(found, tuple | list):
        return tuple(_in_one_form(part) for part in found)
    if isinstance(found, Fraction):
        return float(found)
    if is_array(found):
        found = torch.as_tensor(found)
    if isinstance(found, Tensor) and found.layout is not torch.strided:
        found = found.to_dense()
    if isinstance(found, Tensor) and found.ndim and not (found.dtype == torch.bool or found.is_complex()):
        return found.float()
    return found


class _Watch(TorchFunctionMode):
    """Records every torch function called inside, and its caller."""

    def __init__(self, refused: dict[str, str], draws: bool) -> None:
        super().__init__()
        self.refused, self.draws = refused, draws

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if any(part in name for part in ATTENTION):
            raise ReadyMadeError(called_torch(name, None))
        if name in self.refused:
            raise ReadyMadeError(called_torch(name, self.refused[name]))
        if name in ("numpy", "__array__") and not self.draws:
            raise ReadyMadeError("your answer leaves torch for NumPy, where gradients end; stay with tensors")
        own = _own_code(sys._getframe(1))
        if own is not None:
            raise ReadyMadeError(f"your answer calls regard's {own}; write it out yourself")
        return function(*args, **(kwargs or {}))


def _own_code(frame: FrameType | None) -> str | None:
    """The outermost function of this library on the call stack below the answer, if any."""
    found = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == __name__ and frame.f_code.co_name in ("_call", "slopes"):
            return found
        if module.startswith("regard.") and not module.startswith("regard.course"):
            found = frame.f_code.co_qualname.removesuffix(".forward")
        frame = frame.f_back
    return found
