"""How positions become columns of half precision: whole numbers that the dtype holds, each beside the pieces of its
coefficient."""

from typing import NamedTuple

import torch
from torch import Tensor

# Sums of so many numbers of the dtype hold a coefficient to 24 bits; more would be lost in the kernel's float32 sum.
PIECES = {torch.bfloat16: 3, torch.float16: 3}

# Whole numbers up to 2 to this power are exact.
_BITS = {torch.bfloat16: 8, torch.float16: 11}

# Float16 ends at 65504 and at 2⁻²⁴. So what coefficients are multiplied by is a few hundred or thousand, the coefficient itself
# as much smaller, and each further piece is multiplied by 2¹¹, of which its partner is the inverse. Gradients through columns
# are as much larger, which is why they are not larger still.
_HALF_ONE, _HALF_TOP, _HALF_STEP = 2.0**8, 2.0**12, 2.0**11


class Carriers(NamedTuple):
    """What coefficients of a position's columns are multiplied by."""

    axes: tuple[float, ...]  # scale of each axis's coordinates
    digits: tuple[int, ...]  # into how many whole numbers each is split
    one: float  # the scale of a constant
    step: float  # from one piece of a coefficient to the next
    base: int  # of the digits
    columns: int  # of all, the one for hidden keys included

    @classmethod
    def of(cls, grid: tuple[int, ...], prefix: int, masked: bool, dtype: torch.dtype) -> "Carriers":
        bits = _BITS.get(dtype)
        digits = tuple(1 if bits is None else _digits(size // 2, 1 << bits) for size in grid)
        columns = PIECES.get(dtype, 1) * (sum(digits) + 1 + (prefix > 0)) + masked
        half = dtype is torch.float16
        axes = tuple(_scale(size // 2) if half else 1.0 for size in grid)
        return cls(axes, digits, _HALF_ONE if half else 1.0, _HALF_STEP if half else 1.0, 1 << (bits or 0), columns)

    def digits_of(self, place: Tensor, axis: int) -> list[Tensor]:
        """Numbers that the dtype holds and that add up to whole coordinates."""
        found, unit = [], 1
        for _ in range(self.digits[axis] - 1):
            low = (place + self.base // 2) % self.base - self.base // 2
            found.append(low * unit)
            place, unit = (place - low) / self.base, unit * self.base
        return [*found, place * unit]


def _digits(largest: int, base: int) -> int:
    count, limit = 1, base
    while largest > limit:
        count, limit = count + 1, limit * base
    return count


def _scale(largest: int) -> float:
    scale = _HALF_ONE
    while scale * largest > _HALF_TOP:
        scale /= 2
    return scale
