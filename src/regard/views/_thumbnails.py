"""Thumbnails of large maps, computed once in Python instead of in every browser."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from regard.views._payload import Scaled
from regard.views._sheets import Sheet

SIDE = 48  # pixels at most, the size in the token view


def thumbnails(shown: list[Sheet], weights: Mapping[str, Tensor | Scaled]) -> dict[str, Tensor]:
    """``small0``, ``small1``, …: for each map, positions on the color scale, ``(heads, ≤ 48, ≤ 48)``.

    A pixel shows the largest absolute weight of its cells, relative to uniform attention: for a query that sees v keys,
    log(1 + v·w) / log(1 + n), where n is the largest v, in steps of 1/255. If any weight is negative, the values have a
    sign and steps of 1/127.
    """
    top = max(1, *(int(sheet.visible.max()) for sheet in shown))
    signed = any(sheet.about["signed"] for sheet in shown)
    made = {}
    for number, sheet in enumerate(shown):
        kept = weights[f"map{number}"]
        assert isinstance(kept, Scaled)
        across = replace(kept, stored=_largest(kept.stored, -1)).values
        lift = _largest(across * sheet.visible[:, None], -2)
        place = lift.sign() * (lift.abs().log1p() / math.log1p(top)).clamp_max(1)
        made[f"small{number}"] = (place * (127 if signed else 255)).round().to(torch.int8 if signed else torch.uint8)
    return made


def _largest(values: Tensor, axis: int) -> Tensor:
    """Pool an axis to at most ``SIDE`` nearly equal parts: the entry of the largest absolute value of each.

    >>> _largest(torch.arange(96.0), 0)[:3].tolist()
    [1.0, 3.0, 5.0]
    """
    count = values.shape[axis]
    parts = min(SIDE, count)
    edges = [-(-part * count // parts) for part in range(parts + 1)]
    pooled = [_extreme(values.narrow(axis, a, b - a), axis) for a, b in pairwise(edges)]
    return torch.stack(pooled, axis)


def _extreme(values: Tensor, axis: int) -> Tensor:
    most = values.amax(axis)
    if values.dtype == torch.uint8:
        return most
    least = values.amin(axis)
    return torch.where(most.float() >= -least.float(), most, least)
