"""What a network returns to a task: scores whose shape is checked, because a loss would also accept some wrong ones."""

from typing import Any

import torch
from torch import Tensor

from regard.support.checks import UnusableInputError, describe


def checked_scores(scores: Any, targets: tuple[int, ...], axes: str, classes: int) -> Tensor:
    """The scores in float32.

    Args:
        scores: what the network returned.
        targets: the shape of the targets, each of which needs one score per class.
        axes: the names of all axes of the scores.
        classes: the number of scores per target.

    >>> checked_scores(torch.zeros(8, 7), (8,), "batch, classes", 10)
    Traceback (most recent call last):
    regard.support.checks.UnusableInputError: the network must return scores (batch, classes) = (8, 10), got a float32 ...
    """
    wanted = (*targets, classes)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != wanted or not scores.is_floating_point():
        found = describe(scores) if isinstance(scores, Tensor) else f"a {type(scores).__name__}"
        raise UnusableInputError(f"the network must return scores ({axes}) = {wanted}, got {found}")
    return scores.to(torch.float32)
