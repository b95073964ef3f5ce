"""Differential attention: two kernels over the same values, A₁V − λ·A₂V. Its map is A₁ − λA₂."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

SUBTRACTIONS = frozenset({"sub", "sub_", "subtract", "__sub__", "__isub__"})


@dataclass
class _Output:
    """The output of a kernel: its name, its values, and the factor with which it was multiplied since."""

    tensor: weakref.ref[Tensor]
    value: weakref.ref[Tensor]
    name: str
    factor: Any = 1.0


class OutputPairs:
    """Follows the outputs of two kernels of one module that have the same values, until one is subtracted.

    Attributes:
        waiting: both outputs, while they may be subtracted.
    """

    def __init__(self) -> None:
        self._latest: _Output | None = None
        self.waiting: list[_Output] = []

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def add(self, name: str, value: Any, out: Any) -> None:
        """A kernel was called with these values."""
        if not isinstance(value, Tensor) or not isinstance(out, Tensor):
            return
        before, self._latest = self._latest, _Output(weakref.ref(out), weakref.ref(value), name)
        self.waiting.clear()
        if before is not None and before.value() is value and name == f"{before.name}#2":
            self.waiting += [before, self._latest]

    def multiplied(self, args: tuple[Any, ...], out: Any) -> None:
        """A product: of one of the outputs and a factor?"""
        for output in self.waiting:
            index = next((i for i, x in enumerate(args[:2]) if x is output.tensor()), None)
            if index is not None and len(args) > 1 and isinstance(out, Tensor):
                output.tensor, output.factor = weakref.ref(out), args[1 - index]
                return

    def subtracted(self, args: tuple[Any, ...]) -> tuple[str, str, Any] | None:
        """The names of both and the factor λ, if the second output is subtracted from the first; else None."""
        if len(self.waiting) != 2 or len(args) < 2:
            return None
        first, second = self.waiting
        if args[0] is not first.tensor() or args[1] is not second.tensor() or first.factor != 1.0:
            return None
        self.waiting.clear()
        return first.name, second.name, second.factor


def per_row(factor: Any, like: Tensor) -> Tensor | None:
    """A factor of outputs ``(batch, heads, queries, width)`` as one of rows, ``(batch, heads, queries)`` or smaller; None if
    it differs along the width."""
    found = factor.detach() if isinstance(factor, Tensor) else torch.tensor(float(factor))
    found = found.to(like)
    if found.ndim == 0:
        return found
    return found.squeeze(-1) if found.shape[-1] == 1 and found.ndim <= 4 else None
