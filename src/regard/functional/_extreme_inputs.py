"""Attention for extreme inputs: scores beyond the dtype's range, infinite entries, hidden keys that are infinite or NaN."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.functional._softargmax import below_best, hard_logits, masked_softmax
from regard.support.checks import values_are_readable

# The fast paths compute scores up to this fraction of the dtype's range.
ROOM = 1e-3


def has_extreme_inputs(
    query: Tensor, key: Tensor, value: Tensor, beta: float | Tensor, bias: Tensor | None, *, masked: bool
) -> bool:
    """Whether the fast paths may overflow, or spread infinite or NaN values that a mask hides. Values are read only on the
    CPU in eager mode; elsewhere this is False."""
    if not (values_are_readable(query) and values_are_readable(key)):
        return False
    scale = 1.0
    if isinstance(beta, Tensor):
        scale = beta.max().item() if values_are_readable(beta) and beta.numel() else 1.0
    elif beta != math.inf:
        scale = beta
    wide = torch.finfo(torch.promote_types(query.dtype, torch.float32))
    # A bias may be as large as the dtype allows (masks of finfo.min): adding a score to it must not overflow.
    room = (ROOM if bias is None else wide.eps / 8) * wide.max
    # A tensor β multiplies the queries first. They must not overflow even if the keys are zero: 0 · ∞ would be NaN.
    alone = max(scale, 1.0) if isinstance(beta, Tensor) else 1.0
    largest = _largest(query) * max(query.shape[-1] * _largest(key), alone)
    # "not <" is also true for NaN. Larger β take a path of their own, which never computes β · score.
    if not largest * min(max(scale, 1.0), 1e4) < room:
        return True
    if bias is not None and values_are_readable(bias) and bias.numel() and not bias.max().item() < math.inf:
        return True
    return masked and values_are_readable(value) and value.numel() > 0 and not _largest(value) < math.inf


def _largest(x: Tensor) -> float:
    if not x.numel():
        return 0.0
    low, high = torch.aminmax(x.detach())
    return float(max(-low.item(), high.item())) if not math.isnan(high.item()) else math.nan


def careful_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: float | Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    """The formula in float64. Queries and keys are scaled to 1 before their product, and β multiplies the differences to
    the best score, so no intermediate result overflows."""
    dtype = value.dtype
    if query.ndim > 2 and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(groups, -3) for x in (key, value))
    with torch.autocast(query.device.type, enabled=False):
        open_keys = torch.ones((), dtype=torch.bool) if keep is None else keep
        if bias is not None:
            open_keys = open_keys & (bias != -math.inf)
        shape = (*query.shape[:-1], key.shape[-2])
        open_keys = open_keys.expand(shape)
        hidden = ~open_keys.any(-2)  # keys that no query of this head sees
        key = key.masked_fill(hidden.unsqueeze(-1), 0.0)
        query, key = (x.nan_to_num(nan=math.nan).double() for x in (query, key))
        sizes = [1.0 if x.isnan().any() else max(_largest(x), 1e-300) for x in (query, key)]
        scores = (query / sizes[0]) @ (key / sizes[1]).mT
        logits = _logits(scores, beta, sizes[0], sizes[1], bias, open_keys)
        weights = masked_softmax(logits, open_keys)
        out = _averages(F.dropout(weights, dropout) if dropout else weights, value.double())
    return (out.to(dtype), weights.to(dtype)) if return_weights else out.to(dtype)


def _logits(
    scores: Tensor, beta: float | Tensor, query_size: float, key_size: float, bias: Tensor | None, keep: Tensor
) -> Tensor:
    if not isinstance(beta, Tensor) and beta == math.inf:
        return hard_logits(scores, bias, keep, -1)
    largest = math.sqrt(torch.finfo(torch.float64).max)
    below = below_best(scores, bias, keep, -1)
    factor = beta.double() if isinstance(beta, Tensor) else beta
    # Large factors are multiplied one by one, and the result is clamped where the weight is zero anyway.
    logits = below * factor
    for size in (query_size, key_size):
        logits = logits.clamp(min=-largest) * min(size, largest)
    if bias is None:
        return logits
    logits = logits + bias.double().masked_fill(bias == math.inf, 0.0)
    top = (bias == math.inf).expand(logits.shape) & keep
    return torch.where(top.any(-1, keepdim=True), torch.zeros_like(logits).masked_fill(~top, -math.inf), logits)


def _averages(weights: Tensor, value: Tensor) -> Tensor:
    """``weights @ value``, where a weight of 0 hides its value: infinite and NaN values affect only queries that give them
    weight."""
    out = weights @ value.masked_fill(~value.isfinite(), 0.0)
    looks = (weights > 0).double()
    up, down = ((looks @ (value == sign * math.inf).double()) > 0 for sign in (1, -1))
    broken = (looks @ value.isnan().double()) > 0
    out = out.masked_fill(up, math.inf).masked_fill(down, -math.inf)
    return out.masked_fill(broken | (up & down), math.nan)
