"""Dropout that a model writes out, as a random mask."""

import weakref
from typing import Any

import torch
from torch import Tensor


class RandomTensors:
    """The tensors that are alive and for which random numbers were drawn."""

    def __init__(self) -> None:
        self.known: dict[int, weakref.ref[Tensor]] = {}
        self.some = False  # whether there ever were any

    def __bool__(self) -> bool:
        return bool(self.known)

    def __contains__(self, x: Any) -> bool:
        entry = self.known.get(id(x))
        return entry is not None and entry() is x

    def add(self, x: Any) -> None:
        if isinstance(x, Tensor) and x.ndim >= 2:
            self.some = True
            key, known = id(x), self.known
            known[key] = weakref.ref(x, lambda _: known.pop(key, None))

    def among(self, args: tuple[Any, ...]) -> bool:
        """Whether one of the arguments is random."""
        return bool(self.known) and any(x in self for x in args)

    def clear(self) -> None:
        self.known.clear()


def undone(entered: Tensor, out: Tensor, normalized: bool) -> tuple[Tensor, float] | None:
    """The weights that entered a random mask, and the factor that takes those which it kept back to them.

    None if ``out`` is not ``entered`` with zeros, up to one factor.

    Args:
        normalized: whether rows sum to one at most. If they sum to more, they were divided by the probability beforehand.

    >>> entered, factor = undone(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 0.625]]), True)
    >>> entered, factor
    (tensor([[0.5000, 0.5000]]), 0.800000011920929)
    """
    with torch.no_grad(), torch._C.DisableTorchFunction():
        left = out != 0
        ratios = (entered[left] / out[left].to(entered.dtype)) if bool(left.any()) else entered.new_ones(1)
        smallest, largest = (float(x) for x in ratios.aminmax())
        if largest - smallest > 1e-3 * abs(largest):
            return None
        total = entered.sum(-1)
        scale = float(total.amax())
        if normalized and scale > 1.001 and bool((total >= scale * 0.999).all()):
            return entered / scale, largest / scale
    return entered, largest
