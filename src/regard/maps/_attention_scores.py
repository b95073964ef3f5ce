"""From queries and keys to weights: softmax(scale · q·kᵀ + bias) for any selection of rows and heads."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

# A selection along one axis: a slice, or whole numbers.
Selection = slice | Tensor
_ALL = slice(None)


# Up to so many numbers an operator's overhead takes longer than its work.
_SMALL = 2**14


def selected(x: Tensor, axis: int, chosen: Selection) -> Tensor:
    """The chosen ones along an axis, without a call of torch if these are all."""
    if isinstance(chosen, slice) and chosen == _ALL:
        return x
    return x[:, chosen] if axis == 1 else x[:, :, chosen]


def exact(x: Tensor) -> Tensor:
    """x in the dtype in which maps are computed: float64 stays, everything else becomes float32."""
    return x if x.dtype in (torch.float64, torch.float32) else x.float()


def shared_heads(value: Tensor, heads: Selection, count: int) -> Tensor:
    """The value (or key) heads that the selected ones of ``count`` query heads use; neighbors share one."""
    shared = value.shape[1]
    if shared == count:
        return selected(value, 1, heads)
    if shared == 1:
        return value
    index = torch.arange(count, device=value.device)[heads] // (count // shared)
    return value[:, index]


def product_error(weights: Tensor, value: Tensor, output: Tensor, rows: Selection, heads: Selection) -> Tensor:
    """max |weights @ value − output|, over the selected rows and heads."""
    found = weights @ shared_heads(exact(value), heads, output.shape[1]).to(weights.dtype)
    expected = selected(selected(output, 1, heads), 2, rows).to(weights.dtype)
    return largest_magnitude(found.sub_(expected))


def largest_magnitude(x: Tensor) -> Tensor:
    """max |x|, in one pass."""
    if x.numel() == 0:
        return x.new_zeros(())
    if x.numel() <= _SMALL:
        return x.abs().amax()
    smallest, largest = x.aminmax()
    return torch.maximum(smallest.neg_(), largest).abs_()  # abs: the maximum of two zeros may be −0


@dataclass
class AttentionScores:
    """softmax(scale · q·kᵀ + bias) over the kept keys, for any selection of rows and heads.

    Attributes:
        query, key: ``(batch, heads, tokens, width)``; key may have fewer heads.
        keep, bias: broadcast against ``(batch, heads, queries, keys)``; keep: True = attend.
        causal: whether key j is kept for query i only where j ≤ i.
        change: changes the scores at the end, given them and the row and head numbers.
        mask: chooses the kept keys at the end, given the row and head numbers.
    """

    query: Tensor
    key: Tensor
    scale: float
    keep: Tensor | None = None
    bias: Tensor | None = None
    causal: bool = False
    change: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    mask: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    def __call__(self, rows: Selection, heads: Selection) -> tuple[Tensor, Tensor]:
        """Weights and the logsumexp of the scores."""
        _, count, queries, keys = self.shape
        query = selected(selected(exact(self.query), 1, heads), 2, rows)
        key = shared_heads(exact(self.key), heads, count)
        if key.shape[1] != query.shape[1]:
            key = key.expand(-1, query.shape[1], -1, -1)
        if query.numel() <= _SMALL:
            scores = torch.matmul(query * self.scale, key.mT)
        else:
            flat = query.flatten(0, 1), key.flatten(0, 1).mT
            # With beta=0 the first argument is not read.
            scores = torch.baddbmm(query.new_empty(()), *flat, beta=0, alpha=self.scale).unflatten(0, query.shape[:2])
        if self.bias is not None:
            scores = scores + _part(self.bias, rows, heads).to(scores.dtype)
        if self.change is not None or self.mask is not None:
            head = torch.arange(count, device=scores.device)[heads]
        if self.causal or self.change is not None or self.mask is not None:
            row = torch.arange(queries, device=scores.device)[rows]
        if self.change is not None:
            scores = self.change(scores, row, head)
        if self.keep is not None:
            scores = scores.masked_fill(~_part(self.keep, rows, heads), -math.inf)
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask(row, head), -math.inf)
        if self.causal:
            scores = scores.masked_fill(torch.arange(keys, device=scores.device) > row[:, None], -math.inf)
        may_be_empty = any(x is not None for x in (self.keep, self.bias, self.mask, self.change))
        return _softmax(scores, may_be_empty)


def _softmax(scores: Tensor, may_be_empty: bool) -> tuple[Tensor, Tensor]:
    """Weights and logsumexp; a row with no key to attend to is zero."""
    if scores.shape[-1] == 0:
        return scores, scores.new_full(scores.shape[:-1], -math.inf)
    if scores.requires_grad:  # an edit of the map is differentiated
        logsumexp = scores.logsumexp(-1)
        empty = (logsumexp == -math.inf).unsqueeze(-1)
        return torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0), logsumexp
    if scores.numel() <= _SMALL:
        logsumexp = scores.logsumexp(-1)
        weights = torch.softmax(scores, -1, out=scores)
        if may_be_empty:
            weights.masked_fill_((logsumexp == -math.inf).unsqueeze(-1), 0.0)
        return weights, logsumexp
    largest = scores.amax(-1)
    weights = torch.softmax(scores, -1, out=scores)  # to allocate memory would take as long as to compute
    if may_be_empty:
        weights.masked_fill_((largest == -math.inf).unsqueeze(-1), 0.0)
    # At the largest score s the weight is exp(s − logsumexp): cheaper than exponentials once more.
    total = largest - weights.amax(-1).log()
    return weights, total.masked_fill(largest == -math.inf, -math.inf)


def _part(mask: Tensor, rows: Selection, heads: Selection) -> Tensor:
    """The selected rows and heads of a mask whose axes may be missing or of size 1."""
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.shape[1] > 1:
        mask = mask[:, heads]
    if mask.shape[2] > 1:
        mask = mask[:, :, rows]
    return mask
