"""Parts that a model writes into one tensor, one after the other, instead of concatenating them (sliced attention)."""

import weakref
from typing import Any

import torch
from torch import Tensor


class WrittenParts:
    """Notes what is written into a tensor, until it is filled.

    >>> whole, parts = torch.zeros(2, 5), WrittenParts()
    >>> parts.wrote(whole, (slice(None), slice(0, 3))) is None
    True
    >>> found, dim, stacked = parts.wrote(whole, (slice(None), slice(3, 5)))
    >>> [tuple(part.shape) for part in found], dim, stacked
    ([(2, 3), (2, 2)], 1, False)
    """

    def __init__(self) -> None:
        self._whole: weakref.ref[Tensor] | None = None
        self._along: tuple[int, bool] | None = None  # the axis, and whether parts lack it
        self._parts: list[Tensor] = []
        self._filled = 0  # so much of the axis is filled

    def clear(self) -> None:
        """Forget everything."""
        self._whole, self._along, self._parts, self._filled = None, None, [], 0

    def wrote(self, whole: Any, index: Any) -> tuple[list[Tensor], int, bool] | None:
        """Note that ``whole[index]`` was set. If this filled the tensor: its parts in their order, the axis along which they
        follow each other, and whether each fills one position of it, as with ``stack``; else None."""
        if not isinstance(whole, Tensor) or not _is_basic(index):
            return None
        with torch.no_grad(), torch._C.DisableTorchFunction():
            whole_now = whole.detach()
            part = whole_now[index]
            place = _place(whole_now, part)
        if place is None:
            return None
        axis, start, stacked = place
        follows = self._whole is not None and self._whole() is whole and (axis, stacked) == self._along
        if start == 0:
            self.clear()
            self._whole, self._along = weakref.ref(whole), (axis, stacked)
        elif not follows or start != self._filled:
            return None
        self._parts.append(part)
        self._filled = start + (1 if stacked else part.shape[axis])
        if self._filled < whole.shape[axis]:
            return None
        parts = self._parts
        self.clear()
        return parts, axis, stacked


def _is_basic(index: Any) -> bool:
    """Whether an index consists of numbers and slices alone, so that it selects a view."""
    each = index if isinstance(index, tuple) else (index,)
    return all(x is Ellipsis or isinstance(x, slice) or type(x) is int for x in each)


def _place(whole: Tensor, part: Tensor) -> tuple[int, int, bool] | None:
    """The axis of which ``part`` is a range or one position, where it starts, and whether it lacks the axis; None if it is
    no such part."""
    stacked = part.ndim == whole.ndim - 1
    if not stacked and part.ndim != whole.ndim:
        return None
    for axis in range(whole.ndim):
        others = [i for i in range(whole.ndim) if i != axis]
        kept = range(part.ndim) if stacked else others
        same = all(
            (part.shape[i], part.stride(i)) == (whole.shape[j], whole.stride(j))
            for i, j in zip(kept, others, strict=True)
        )
        step = whole.stride(axis)
        if same and step and (stacked or (part.shape[axis] < whole.shape[axis] and part.stride(axis) == step)):
            return axis, (part.storage_offset() - whole.storage_offset()) // step, stacked
    return None
