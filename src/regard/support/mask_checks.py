"""The check of masks, which tells a user of a mask of padding what to pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.support.checks import check_broadcastable


def check_mask(name: str, mask: Any, scores: Sequence[int], *, dtype: torch.dtype | None = None) -> None:
    """Check a mask: ``(queries, keys)``, or as many axes as the scores, each of the same size or 1.

    Args:
        scores: the shape of the scores.
    """
    pair = isinstance(mask, Tensor) and mask.ndim == 2
    try:
        check_broadcastable(name, mask, tuple(scores[-2:] if pair else scores), "scores", dtype=dtype)
    except ValueError as error:
        if not pair or len(scores) < 3 or tuple(mask.shape) != (scores[0], scores[-1]):
            raise
        axes = ", ".join([":", *["None"] * (len(scores) - 2), ":"])
        raise ValueError(
            f"{error}; two axes are (queries, keys): where it says which keys of each sample are padding, pass {name}[{axes}]"
        ) from None
