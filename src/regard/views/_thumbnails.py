"""Small pictures of large maps, made once and not by every browser."""

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor

from regard.views._payload import Scaled
from regard.views._sheets import Sheet

SIDE = 48  # pixels at most, as the token view draws them


def thumbnails(shown: list[Sheet], weights: Mapping[str, Tensor | Scaled]) -> dict[str, Tensor]:
    """``small0``, ``small1``, …: for each map, places on the scale of colors, ``(heads, ≤ 48, ≤ 48)``.

    A pixel is the largest weight (in size) of the cells that it stands for, against uniform attention: with v the keys that
    a query sees and n the most that any sees, log(1 + v·w) / log(1 + n), in steps of 1/255. With negative weights anywhere
    it has their sign, and steps of 1/127.
    """
    top = max(2, *(int(sheet.visible.max()) for sheet in shown))
    signed = any(sheet.about["signed"] for sheet in shown)
    made = {}
    for number, sheet in enumerate(shown):
        kept = weights[f"map{number}"]
        assert isinstance(kept, Scaled)
        lift = _largest(_largest(kept.stored, -1).float() * (kept.scale * sheet.visible)[..., None], -2)
        place = lift.sign() * (lift.abs().log1p() / math.log1p(top)).clamp_max(1)
        made[f"small{number}"] = (place * (127 if signed else 255)).round().to(torch.int8 if signed else torch.uint8)
    return made


def _largest(values: Tensor, axis: int) -> Tensor:
    """In at most ``SIDE`` nearly equal parts of an axis: the entry of the largest size.

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
