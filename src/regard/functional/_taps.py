"""Taps: sharp heads with integer centers, computed as shifts. A bound on the difference, and the shift itself."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.support.checks import TEXT, describe
from regard.support.tensor_cache import TensorCache

CPU = torch.device("cpu")
SOFT = 0.5  # below this sharpness the sum is computed by Poisson's formula


def tail(alpha: float) -> float:
    r"""The weight off the target, relative to the target's weight: :math:`T = 2\sum_{r\ge1} e^{-\alpha r^2}`.

    For soft heads this sum has many terms, and Poisson's formula gives the same result with one or two:
    :math:`1 + T = \sqrt{\pi/\alpha}\,(1 + 2\sum_{r\ge1} e^{-\pi^2 r^2/\alpha})`.

    >>> round(tail(1.0), 6)
    0.772637
    >>> tail(0.0)
    inf
    """
    if alpha < SOFT:
        return math.sqrt(math.pi / alpha) * (1 + tail(math.pi**2 / alpha)) - 1 if alpha > 0 else math.inf
    total, r = 0.0, 1
    while True:
        term = 2 * math.exp(-alpha * r * r)
        total += term
        if term <= 1e-20 * total or term == 0.0:
            return total
        r += 1


def shift_leak(alphas: Sequence[float]) -> float:
    r"""A bound on the L1 distance of a row of weights from the one-hot row of a shift, for a head with integer center.

    One axis: the target has at least 1/(1+T) of its row, for every border. So at most :math:`T/(1+T)` lies elsewhere,
    and the row is at most :math:`2T/(1+T)` from the one-hot row. Several axes: the target's weight is
    the product, so :math:`2\,(1 - \prod_a 1/(1+T_a))`.

    >>> shift_leak([5.0]) <= 2 * tail(5.0) / (1 + tail(5.0))
    True
    """
    wanted = "alphas must be numbers of 0 or more, one for each axis"
    if isinstance(alphas, (Tensor, *TEXT)) or not isinstance(alphas, Sequence):
        raise TypeError(f"{wanted}, got {describe(alphas)}")
    if not all(isinstance(alpha, int | float) and alpha >= 0 for alpha in alphas):  # NaN would never end the sum
        raise ValueError(f"{wanted}, got {describe(alphas)}")
    lost = -math.expm1(-sum(math.log1p(tail(alpha)) for alpha in alphas))
    return 2 * lost


def shifted(
    value: Float[Tensor, "batch value_heads tokens width"], shifts: Sequence[tuple[int, ...]], grid: tuple[int, ...]
) -> Float[Tensor, "batch heads tokens width"]:
    """Each head reads the token at its offset, or the nearest existing one. One value may be shared by all heads.

    >>> shifted(torch.arange(4.0).reshape(1, 1, 4, 1), [(1,), (-2,)], (4,)).squeeze(3)
    tensor([[[1., 2., 3., 3.],
             [0., 0., 0., 1.]]])
    """
    heads = range(len(shifts))
    read = [value[:, head if value.shape[1] > 1 else 0] for head in heads]
    return torch.stack([x.index_select(1, sources(shift, grid)) for x, shift in zip(read, shifts, strict=True)], 1)


_SOURCES = TensorCache(256)


def sources(shift: tuple[int, ...], grid: tuple[int, ...]) -> Tensor:
    """For each token, the index of the token that it reads."""
    return _SOURCES.get((shift, grid), CPU, lambda: _number_sources(shift, grid))


def _number_sources(shift: tuple[int, ...], grid: tuple[int, ...]) -> Tensor:
    sides = [(torch.arange(n, device=CPU) + step).clamp(0, n - 1) for n, step in zip(grid, shift, strict=True)]
    number = torch.zeros(1, dtype=torch.long, device=CPU)
    for n, side in zip(grid, sides, strict=True):
        number = (number[:, None] * n + side).flatten()
    return number
