"""−∞ for the scores of keys that are not kept."""

import math

import torch
from torch import Tensor

# Numbers of the same size, and the bits of −∞.
_BITS = {torch.float32: (torch.int32, -(2**23)), torch.float64: (torch.int64, -(2**52))}


def hide(scores: Tensor, keep: Tensor, value: float = -math.inf) -> Tensor:
    """``scores.masked_fill_(~keep, value)``.

    On a CPU that looks at one score after the other. To set their bits takes a third of the time, and it hides NaN as well, as
    the addition of −∞ would not.

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
