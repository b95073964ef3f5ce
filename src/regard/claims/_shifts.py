"""The shifts of a convolution kernel, and the sharpness at which a head is a shift."""

from itertools import product

SHARP = 40.0  # e^−40: the next key's weight is below float64's precision


def shifts(kernel: int) -> list[tuple[int, int]]:
    """Δ_K, the shifts of a K×K kernel, row by row.

    >>> shifts(2)
    [(-1, -1), (-1, 0), (0, -1), (0, 0)]
    """
    along = range(-(kernel // 2), (kernel - 1) // 2 + 1)
    return list(product(along, along))
