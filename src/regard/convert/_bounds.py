"""How far a Gaussian head is from a shift, and how far rounding may carry a sum: the two parts of every bound here."""

import math
from collections.abc import Sequence

import torch


def tail(alpha: float) -> float:
    r"""All the weight off the target, relative to the target's: :math:`T = 2\sum_{r\ge1} e^{-\alpha r^2}`.

    >>> round(tail(1.0), 6)
    0.772637
    """
    total, r = 0.0, 1
    while True:
        term = 2 * math.exp(-alpha * r * r)
        total += term
        if term <= 1e-20 * total or term == 0.0:
            return total
        r += 1


def shift_leak(alphas: Sequence[float]) -> float:
    r"""How far a head of integer center is from a shift: the L1 distance of a row of weights from the one-hot row.

    One axis: the target has at least 1/(1+T) of its row, for every border. So at most :math:`T/(1+T)` lies elsewhere,
    and the row is at most :math:`2T/(1+T)` from the one-hot row. Several axes: the target's weight is
    the product, so :math:`2\,(1 - \prod_a 1/(1+T_a))`.

    >>> shift_leak([5.0]) <= 2 * tail(5.0) / (1 + tail(5.0))
    True
    """
    lost = -math.expm1(-sum(math.log1p(tail(alpha)) for alpha in alphas))
    return 2 * lost


def sharpness_for(tolerance: float, axes: int) -> float:
    """The smallest α (to about one in a thousand) whose rows are at most ``tolerance`` from a shift (L1), over that many axes.

    >>> shift_leak([sharpness_for(1e-6, 2)] * 2) <= 1e-6
    True
    """
    low, high = 0.0, max(1.0, 2 * math.log(8 * axes / tolerance))
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if middle > 0.05 and shift_leak([middle] * axes) <= tolerance else (middle, high)
    return high


def rounding(terms: int, dtype: torch.dtype) -> float:
    r"""The relative error of a sum of that many products in any order, :math:`\gamma_n = nu/(1-nu)`."""
    unit = torch.finfo(dtype).eps / 2
    return terms * unit / (1 - terms * unit) if terms * unit < 0.5 else math.inf
