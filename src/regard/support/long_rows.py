"""Softmax over many entries. That of torch on a CPU loses small weights beside a large one."""

import torch
from torch import Tensor

from regard.support.checks import is_exporting, static_sizes

# From here on, the sum of a row is computed by torch.sum, which adds up numbers in pairs. torch.softmax on a CPU adds up
# float32 numbers one after the other: with a key that gets nearly all weight, those of 131,072 keys add up to 1.0003. Along
# the last axis it keeps 8 or 16 such sums, along any other axis one, whose error is as large in shorter rows.
LONG_ROW = 4096
LONG_COLUMN = 256


def softmax(scores: Tensor, dim: int = -1) -> Tensor:
    """``scores.softmax(dim)``, whose weights sum to one however many there are. It rounds as often as torch.softmax, because
    certified bounds count roundings.

    >>> scores = torch.tensor([10.0] + [-1.3] * 999_999)
    >>> bool(abs(scores.softmax(0).sum() - 1) > 1e-4), bool(abs(softmax(scores).sum() - 1) < 1e-6)
    (True, True)
    """
    if not is_long(scores, dim):
        return scores.softmax(dim)
    grown = (scores - scores.detach().amax(dim, keepdim=True)).exp_()
    return grown / grown.sum(dim, keepdim=True)


def softmax_in_place(scores: Tensor) -> Tensor:
    """The same along the last axis, in the memory of ``scores``, which need no gradient: allocating memory for a large map
    takes as long as computing it."""
    weights = torch.softmax(scores, -1, out=scores)
    return weights.div_(weights.sum(-1, keepdim=True)) if is_long(weights, -1) else weights


def is_long(scores: Tensor, dim: int) -> bool:
    """Whether the sums of torch.softmax may be off by more than rounding. While compiling nothing is gained, because the
    compiler sums one after the other, too; and exported programs keep torch's operator."""
    if scores.dtype is not torch.float32 or scores.device.type != "cpu":
        return False
    if torch.compiler.is_compiling() or is_exporting():
        return False
    return static_sizes(scores)[dim] > (LONG_ROW if dim in (-1, scores.ndim - 1) else LONG_COLUMN)
