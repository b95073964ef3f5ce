"""One attention that was seen: what is needed to build its map, to check it, and to put another output in its place."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from regard.maps._windows import Windows

# A selection along an axis: everything, a slice, or whole numbers.
Selection = slice | Tensor


@dataclass
class Seen:
    """One attention, once.

    Attributes:
        name: module path; a second attention of the same call of a module ends in ``#2``.
        module: the module that attends.
        kind: how it was recognized: "sdpa", "flex", "softmax", "sigmoid", "fast path", "gaussian", "flash_attn", …
        output: ``(batch, heads, queries, width)``: the heads' outputs, in the graph of whoever computed them; None
            where only a later output of the layer exists.
        value: ``(batch, heads or a divisor, keys, width)``.
        compared: what the check compares with, where that is not ``output``.
        shape: ``(batch, heads, queries, keys)`` of the whole map.
        build: weights and the logsumexp of the scores (None where there are no scores) for a selection of rows and
            heads; float32, or float64 where the model computes in it.
        against: what the map is checked against: "kernel", "product", "layer", or how else it is known.
        check: the largest error of these weights for that selection of rows and heads.
        logsumexp: ``(batch, heads, queries)`` as the kernel returned it.
        restore: from ``(batch, heads, queries, width)`` back to the layout the model expects.
        kernel: the operator that ran, where it is known.
        windows: where each window's tokens lie on the image, for windowed attention.
        grid, prefix, query_grid: how tokens lie, where the layer itself says it.
        total: the largest sum of a row's weights, where it may exceed one.
        tentative: it may turn out to be a part of something else, and be retracted.
    """

    name: str
    module: nn.Module | None
    kind: str
    shape: tuple[int, int, int, int]
    build: Callable[[Selection, Selection], tuple[Tensor, Tensor | None]]
    check: Callable[[Tensor, Selection, Selection], Tensor | None]
    against: str
    output: Tensor | None = None
    value: Tensor | None = None
    compared: Tensor | None = None
    logsumexp: Tensor | None = None
    restore: Callable[[Tensor], Tensor] | None = None
    kernel: str | None = None
    windows: Windows | None = None
    grid: tuple[int, ...] | None = None
    prefix: int | None = None
    query_grid: tuple[int, ...] | None = None
    total: Tensor | None = None
    tentative: bool = False


@runtime_checkable
class Sink(Protocol):
    """Who is told of every attention."""

    def attended(self, seen: Seen) -> Tensor | None:
        """Take note; a returned tensor, laid out like ``seen.output``, takes the output's place."""
        ...

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None: ...

    def retract(self, name: str) -> None:
        """Forget the latest attention of this name: it was a part of one that is told of next."""
        ...

    def wants(self, name: str) -> bool:
        """False where a map would be thrown away, so that nothing is recomputed for it."""
        ...


def exact(x: Tensor) -> Tensor:
    """In the type that maps are computed in: float64 stays, everything else becomes float32."""
    return x if x.dtype in (torch.float64, torch.float32) else x.float()


def group(value: Tensor, heads: Selection, count: int) -> Tensor:
    """The value (or key) heads that the selected ones of ``count`` query heads use: neighbors share one."""
    shared = value.shape[1]
    if shared == count:
        return value[:, heads]
    if shared == 1:
        return value
    index = torch.arange(count, device=value.device)[heads] // (count // shared)
    return value[:, index]


def product_error(weights: Tensor, value: Tensor, output: Tensor, rows: Selection, heads: Selection) -> Tensor:
    """max |weights @ value − output|, over the selected rows and heads. Comparing with what was really returned is a
    check, not a proof: another map can give the same output where values are linearly dependent."""
    found = weights @ group(exact(value), heads, output.shape[1]).to(weights.dtype)
    expected = output[:, heads][:, :, rows].to(weights.dtype)
    return largest_magnitude(found.sub_(expected))


def largest_magnitude(x: Tensor) -> Tensor:
    """max |x|, in one pass."""
    if x.numel() == 0:
        return x.new_zeros(())
    smallest, largest = x.aminmax()
    return torch.maximum(smallest.neg_(), largest).abs_()  # of two zeros the one without a sign


@dataclass
class Scores:
    """softmax(scale · q·kᵀ + bias) over the kept keys, for any selection of rows and heads.

    Attributes:
        query, key: ``(batch, heads, tokens, width)``; key may have fewer heads.
        keep, bias: broadcast against ``(batch, heads, queries, keys)``; keep: True = attend.
        causal: "start" (key j ≤ query i), "end" (j ≤ i + keys − queries) or None.
        change: a last change of the scores, given them and the row and head numbers.
        mask: a last choice of kept keys, given the row and head numbers.
    """

    query: Tensor
    key: Tensor
    scale: float
    keep: Tensor | None = None
    bias: Tensor | None = None
    causal: str | None = None
    change: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    mask: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    def __call__(self, rows: Selection, heads: Selection) -> tuple[Tensor, Tensor]:
        count, queries, keys = self.query.shape[1], self.query.shape[2], self.key.shape[2]
        query = exact(self.query)[:, heads][:, :, rows]
        key = group(exact(self.key), heads, count).expand(-1, query.shape[1], -1, -1)
        flat = query.flatten(0, 1), key.flatten(0, 1).mT
        scores = torch.baddbmm(query.new_empty(()), *flat, beta=0, alpha=self.scale)  # beta=0: the empty one is unread
        scores = scores.unflatten(0, query.shape[:2])
        device = scores.device
        if self.bias is not None:
            scores = scores + _part(self.bias, rows, heads).to(scores.dtype)
        needs_numbers = self.causal or self.change or self.mask
        row = torch.arange(queries, device=device)[rows] if needs_numbers else None
        head = torch.arange(count, device=device)[heads] if self.change or self.mask else None
        if self.change is not None and row is not None and head is not None:
            scores = self.change(scores, row, head)
        if self.keep is not None:
            scores = scores.masked_fill(~_part(self.keep, rows, heads), -math.inf)
        if self.mask is not None and row is not None and head is not None:
            scores = scores.masked_fill(~self.mask(row, head), -math.inf)
        if self.causal and row is not None:
            last = row if self.causal == "start" else row + (keys - queries)
            scores = scores.masked_fill(torch.arange(keys, device=device) > last[:, None], -math.inf)
        hides = self.keep, self.bias, self.mask, self.change
        return softmax(scores, any(x is not None for x in hides) or self.causal == "end")


def softmax(scores: Tensor, may_be_empty: bool) -> tuple[Tensor, Tensor]:
    """Weights and logsumexp; a row with nothing to attend to is zero."""
    if scores.shape[-1] == 0:
        return scores, scores.new_full(scores.shape[:-1], -math.inf)
    largest = scores.amax(-1)
    weights = torch.softmax(scores, -1, out=scores)  # fresh memory would cost as much as the numbers in it
    if may_be_empty:
        weights.masked_fill_((largest == -math.inf).unsqueeze(-1), 0.0)
    # At the largest score s the weight is exp(s − logsumexp): cheaper than a second pass of exponentials.
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


def canonical(x: Tensor, heads: int | None = None) -> Tensor:
    """``(batch, heads, tokens, width)`` from any number of leading axes; three axes are ``(batch·heads, …)`` where the
    module says how many heads it has. What else leads (windows, blocks) is counted to the batch."""
    if x.ndim == 4:
        return x
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        return (
            x.unflatten(0, (-1, heads)) if heads is not None and heads > 1 and x.shape[0] % heads == 0 else x[:, None]
        )
    return x.movedim(heads_axis(tuple(x.shape), heads), -3).flatten(0, -4)


def uncanonical(x: Tensor, shape: tuple[int, ...], heads: int | None) -> Tensor:
    """Back to ``shape``, from what :func:`canonical` made of it.

    >>> x = torch.randn(2, 3, 5, 4, 8)
    >>> torch.equal(uncanonical(canonical(x, 3), (2, 3, 5, 4, 8), 3), x)
    True
    """
    if len(shape) < 5:
        return x.reshape(shape)
    axis = heads_axis(shape, heads)
    moved = [*shape[:axis], *shape[axis + 1 : -2], shape[axis], *shape[-2:]] if axis >= 0 else list(shape)
    return x.reshape(moved).movedim(-3, axis)


def heads_axis(shape: tuple[int, ...], heads: int | None) -> int:
    """Where the heads are: before the tokens, unless there are not as many as the module says, but right after the batch.

    >>> heads_axis((8, 3, 49, 64, 32), 3), heads_axis((8, 49, 3, 64, 32), 3)
    (1, -3)
    """
    return 1 if len(shape) > 4 and heads is not None and shape[-3] != heads == shape[1] else -3


def unreadable(x: Any) -> str | None:
    """Why the values of x cannot be looked at; None where they can."""
    if not isinstance(x, Tensor):
        return f"its input is no tensor but {type(x).__name__}"
    if x.is_nested:
        return "its tensors are nested: pad them to see their maps"
    if x.is_meta or type(x).__name__ == "FakeTensor":
        return "its tensors have shapes but no values"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "it runs inside torch.func.vmap or grad, where single maps do not exist"
    if x.ndim < 2:
        return f"its tensors have {x.ndim} axes"
    return None


def heads_of(module: nn.Module | None) -> int | None:
    """How many heads a module says it has, by the names in use; None where it does not say."""
    for attribute in ("num_heads", "heads", "n_heads", "num_attention_heads", "nhead", "n_head"):
        count = getattr(module, attribute, None)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None
