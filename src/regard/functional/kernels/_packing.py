"""The results of the overview kernels. Separate from their launches, which import Triton."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class CellSums:
    """Sums of cells and statistics of tokens, ``(batch, heads, …)`` each, in float32 and int32; see ``regard.maps.Overview``."""

    mass: Tensor
    largest: Tensor
    sums: Tensor
    per_query: tuple[Tensor, ...]
    per_key: tuple[Tensor, ...]


class PackedParts:
    """The layout of several tensors packed into one tensor of bytes, each starting at a multiple of 16 bytes."""

    def __init__(self, parts: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        self._parts, self._starts, end = parts, dict[str, int](), 0
        self._steps: dict[str, tuple[int, ...]] = {}
        for name, (dtype, shape) in parts.items():
            self._starts[name] = end
            self._steps[name] = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
            end += -(-math.prod(shape) * dtype.itemsize // 16) * 16
        self.size = end

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def places(self, where: int, names: Sequence[str]) -> list[int]:
        """The addresses of the named parts, if the whole tensor starts at ``where``."""
        return [where + self._starts[name] for name in names]

    def of(self, whole: Tensor, name: str) -> Tensor:
        """The named part of ``whole``, as a view."""
        return self.all_of(whole, (name,))[name]

    def all_of(self, whole: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        """The named parts of ``whole``, as views, by name."""
        found, typed = {}, dict[torch.dtype, Tensor]()
        for name in names:
            (dtype, shape), start = self._parts[name], self._starts[name]
            base = typed.get(dtype)
            if base is None:
                base = typed[dtype] = whole.view(dtype)
            found[name] = base.as_strided(shape, self._steps[name], start // dtype.itemsize)
        return found
