"""What the kernels of an overview find. Apart from their launches, which import Triton."""

import math
from collections.abc import Iterator, Sequence
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
    """Several tensors in one, each of which begins at a multiple of 16 bytes."""

    def __init__(self, parts: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
        self._parts, self._starts, end = parts, dict[str, int](), 0
        for name, (dtype, shape) in parts.items():
            self._starts[name] = end
            end += -(-math.prod(shape) * dtype.itemsize // 16) * 16
        self.size = end

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def places(self, where: int, names: Sequence[str]) -> list[int]:
        """Their addresses, if that of all is ``where``."""
        return [where + self._starts[name] for name in names]

    def of(self, whole: Tensor, name: str) -> Tensor:
        """One of them, of a tensor of bytes."""
        (dtype, shape), start = self._parts[name], self._starts[name]
        return whole[start : start + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
