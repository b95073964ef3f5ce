"""How positions become exact columns of queries and keys in half precision, which cannot hold large coordinates.

Coordinates are split into digits, coefficients into pieces, and each digit is multiplied by each piece in a column of its own.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# How many numbers of the dtype represent a coefficient to 24 bits; more bits would be lost in the kernel's float32 sum.
PIECES = {torch.bfloat16: 3, torch.float16: 3}

# Integers up to 2 to this power are exact.
_BITS = {torch.bfloat16: 8, torch.float16: 11}

# Float16 ranges from 2⁻²⁴ to 65504. So coordinates and constants are scaled up by a few hundred or thousand and coefficients
# scaled down by the same factor, and each further piece is scaled up by 2¹¹ and its partner scaled down. Gradients that pass
# through these columns grow by the same factors, so the factors must not be larger.
_HALF_ONE, _HALF_TOP, _HALF_STEP = 2.0**8, 2.0**12, 2.0**11


class Carriers(NamedTuple):
    """The scales and digits of the factors by which a position's coefficients are multiplied."""

    axes: tuple[float, ...]  # scale of each axis's coordinates
    digits: tuple[int, ...]  # number of digits of each axis's coordinates
    one: float  # the scale of a constant
    step: float  # scale between successive pieces of a coefficient
    base: int  # base of the digits
    columns: int  # total number of columns, including the one for hidden keys

    @classmethod
    def of(cls, grid: tuple[int, ...], prefix: int, masked: bool, dtype: torch.dtype) -> "Carriers":
        bits = _BITS.get(dtype)
        digits = tuple(1 if bits is None else _digits(size // 2, 1 << bits) for size in grid)
        columns = PIECES.get(dtype, 1) * (sum(digits) + 1 + (prefix > 0)) + masked
        half = dtype is torch.float16
        axes = tuple(_scale(size // 2) if half else 1.0 for size in grid)
        return cls(axes, digits, _HALF_ONE if half else 1.0, _HALF_STEP if half else 1.0, 1 << (bits or 0), columns)

    def digits_of(self, place: Tensor, axis: int) -> list[Tensor]:
        """Integers that are exact in the dtype and add up to the coordinates."""
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
