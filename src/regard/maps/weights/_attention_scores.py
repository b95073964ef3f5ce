"""From queries and keys to weights: softmax(scale · q·kᵀ + bias) for any selection of rows and heads."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.maps.weights._band import Band
from regard.maps.weights._cpu_products import products
from regard.maps.weights._frozen_functions import OfTheModel
from regard.maps.weights._masking import hide
from regard.support.long_rows import softmax, softmax_in_place

# A selection along one axis: a slice, or a tensor of indices.
Selection = slice | Tensor
ALL = slice(None)

# Up to this many elements, calling an operator takes longer than its computation.
_SMALL = 2**14


def is_all(chosen: Selection) -> bool:
    """Whether a selection is the slice of everything."""
    return isinstance(chosen, slice) and chosen == ALL


def selected(x: Tensor, axis: int, chosen: Selection) -> Tensor:
    """``x`` at the selected indices of axis 1 or 2. Selecting everything returns ``x`` itself and calls no operator."""
    if is_all(chosen):
        return x
    return x[:, chosen] if axis == 1 else x[:, :, chosen]


def exact(x: Tensor) -> Tensor:
    """``x`` in the dtype in which maps are computed: float64 stays float64, everything else becomes float32."""
    return x if x.dtype in (torch.float64, torch.float32) else x.float()


def shared_heads(value: Tensor, heads: Selection, count: int) -> Tensor:
    """The value (or key) head of each selected query head, of which there are ``count``.

    In grouped-query attention neighboring query heads share one value head. It is repeated here.
    """
    shared = value.shape[1]
    if shared == count:
        return selected(value, 1, heads)
    if shared == 1:
        return value
    if is_all(heads):
        return value.repeat_interleave(count // shared, 1)
    if isinstance(heads, slice) and len(chosen := range(count)[heads]) == 1:
        first = chosen[0] // (count // shared)
        return value[:, first : first + 1]
    index = torch.arange(count, device=value.device)[heads] // (count // shared)
    return value[:, index]


def shared_groups(value: Tensor, heads: Selection, count: int) -> Tensor:
    """As :func:`shared_heads`, but a value head is not repeated if all query heads that share it are selected.

    >>> shared_groups(torch.zeros(1, 4, 5, 2), slice(4, 8), 8).shape, shared_groups(torch.zeros(1, 4, 5, 2), slice(1, 2), 8).shape
    (torch.Size([1, 2, 5, 2]), torch.Size([1, 1, 5, 2]))
    """
    group = count // value.shape[1]
    if group > 1 and isinstance(heads, slice) and heads.step is None and heads != ALL:
        start, stop, _ = heads.indices(count)
        if start % group == 0 and stop % group == 0 and start < stop:
            return value[:, start // group : stop // group]
    return shared_heads(value, heads, count)


def product_error(weights: Tensor, value: Tensor, output: Tensor, rows: Selection, heads: Selection) -> Tensor:
    """max |weights @ value − output|, over the selected rows and heads."""
    everyone = is_all(heads) and weights.shape[0] == value.shape[0] and weights.shape[1] == output.shape[1]
    value = exact(value if everyone else shared_groups(value, heads, output.shape[1])).to(weights.dtype)
    if weights.shape[0] == value.shape[0] and weights.shape[1] % value.shape[1] == 0:
        # Query heads that share a value head become rows of one product. Repeating the values would take memory.
        (batch, count, queries, keys), of_values = weights.shape, value.shape[1]
        together = weights.reshape(batch * of_values, count // of_values * queries, keys)
        value = value.reshape(batch * of_values, *value.shape[2:])
        found = products(together, value.mT).view(batch, count, queries, value.shape[2])
    else:
        found = weights @ value
    expected = selected(selected(output, 1, heads), 2, rows).to(weights.dtype)
    return largest_magnitude(found.sub_(expected))


def largest_magnitude(x: Tensor) -> Tensor:
    """max |x|, read from memory once."""
    if x.numel() == 0:
        return x.new_zeros(())
    if x.numel() <= _SMALL:
        return x.abs().amax()
    smallest, largest = x.aminmax()
    return torch.maximum(smallest.neg_(), largest).abs_()  # abs: the maximum of two zeros may be −0


def _items(x: Tensor, batch: slice) -> Tensor:
    """Some items of a batch. Selecting all of them calls no operator."""
    return x if batch == ALL else x[batch]


@dataclass(frozen=True)
class AttentionScores:
    """softmax(scale · q·kᵀ + bias) over the kept keys, for any selection of rows and heads.

    Attributes:
        query, key: ``(batch, heads, tokens, width)``; key may have fewer heads.
        keep, bias: broadcast against ``(batch, heads, queries, keys)``; keep: True = attend.
        band: a causal mask or sliding window, which keeps keys by their distance from the query.
        present: ``(batch, queries)`` and ``(batch, keys)``, False for padding in sequences of unequal lengths.
        softcap: scores become softcap · tanh(scores / softcap), before position biases are added; 0 for no cap.
        slopes: of ALiBi, ``(heads,)`` or ``(batch, heads)``: −slope · |distance| is added to the scores.
        change: FlexAttention's ``score_mod``: new scores from the scores and the indices of batch, head, query and key,
            which broadcast.
        mask: FlexAttention's ``mask_mod``: whether a key is kept, from the same indices.
    """

    query: Tensor
    key: Tensor
    scale: float
    keep: Tensor | None = None
    bias: Tensor | None = None
    band: Band | None = None
    present: tuple[Tensor, Tensor] | None = None
    softcap: float = 0.0
    slopes: Tensor | None = None
    change: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None = None
    mask: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, queries, keys)``."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def may_be_empty(self) -> bool:
        """Whether a query may have no key to attend to."""
        if self.keep is not None or self.bias is not None or self.present is not None:
            return True
        by_distance = self.band is not None and self.band.may_hide_all
        return by_distance or self.mask is not None or self.change is not None

    def __call__(self, rows: Selection, heads: Selection) -> tuple[Tensor, Tensor]:
        """The weights of these rows and heads, and the logsumexp of their scores."""
        return weights_of(self.scores(rows, heads), self.may_be_empty)

    def scores(
        self,
        rows: Selection,
        heads: Selection,
        columns: Selection = ALL,
        batch: slice = ALL,
        work: Tensor | None = None,
    ) -> Tensor:
        """The scores of these rows, heads and keys; −∞ for a key that is not kept.

        Args:
            work: memory in which to write the scores, to avoid allocating it for each tile.
        """
        _, count, queries, keys = self.shape
        query = exact(selected(selected(_items(self.query, batch), 1, heads), 2, rows))
        key = _items(self.key, batch)
        key = exact(selected(key if is_all(heads) else shared_groups(key, heads, count), 2, columns))
        shape = (*query.shape[:3], key.shape[2])
        # Query heads that share a key head become rows of one product. Repeating the keys would take memory.
        query = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)
        if query.numel() <= _SMALL and work is None:
            scores = torch.matmul(query, key.mT).mul_(self.scale)
        else:
            flat = query.flatten(0, 1), key.flatten(0, 1)
            room = None if work is None else work[: math.prod(shape)].view(len(flat[0]), -1, shape[3])
            scores = products(*flat, self.scale, room)
        scores = scores.view(shape)
        if self.softcap:
            scores = scores.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.bias is not None:
            scores = scores.add_(_part(self.bias, rows, heads, columns, batch).to(scores.dtype))
        if self.keep is not None:
            scores = hide(scores, _part(self.keep, rows, heads, columns, batch))
        others = any(x is not None for x in (self.present, self.slopes, self.change, self.mask))
        if not others and self.band is not None and isinstance(self.band.shift, int) and scores.device.type == "cpu":
            spans = _range(rows, queries), _range(columns, keys)
            if None not in spans:
                return self.band.hide(scores, *spans)  # type: ignore[arg-type]
        if others or self.band is not None:
            row, head, column = (
                torch.arange(size, device=scores.device)[chosen]
                for size, chosen in ((queries, rows), (count, heads), (keys, columns))
            )
            scores = self._by_position(scores, row, head, column, batch)
        return scores

    def _by_position(self, scores: Tensor, row: Tensor, head: Tensor, column: Tensor, batch: slice) -> Tensor:
        """Apply what depends on indices: ALiBi, functions of FlexAttention, the band and padding.

        Args:
            row, head, column: indices of the queries, heads and keys.
        """
        band = self.band
        if band is not None and isinstance(band.shift, Tensor) and len(band.shift) > 1:
            band = replace(band, shift=band.shift[batch])
        if self.slopes is not None:
            shift = 0 if band is None else band.shift
            shift = shift if isinstance(shift, int) else shift.to(row.device)[:, None, None, None]
            slopes = self.slopes[batch] if self.slopes.ndim == 2 else self.slopes
            slope = slopes.to(scores)[..., head].reshape(-1, len(head), 1, 1)
            scores = scores - slope * (column - (row[:, None] + shift)).abs()
        if self.change is not None or self.mask is not None:
            item = torch.arange(self.shape[0], device=row.device)[batch]
            numbers = item[:, None, None, None], head[:, None, None], row[:, None], column
            scores = scores if self.change is None else self.change(scores, *numbers)
            scores = scores if self.mask is None else scores.masked_fill(~self.mask(*numbers), -math.inf)
        if band is not None:
            for part in band.edges(_span(row), _span(column)):
                hidden = ~band.keeps(row, column[part])
                scores[..., part].masked_fill_(hidden, -math.inf)
        if self.present is not None:
            here = self.present[0][batch][:, row, None] & self.present[1][batch][:, None, column]
            scores = scores.masked_fill_(~here[:, None], -math.inf)
        return scores

    @property
    def is_plain(self) -> bool:
        """Whether the scores are scale · q·kᵀ, with no other change than a band that is the same for the whole batch."""
        if self.keep is not None or self.bias is not None or self.present is not None or self.slopes is not None:
            return False
        shifted = self.band is not None and not isinstance(self.band.shift, int)
        return not (shifted or self.softcap or self.change is not None or self.mask is not None)

    def reach(self, start: int, stop: int) -> tuple[int, int]:
        """The range of keys that the band leaves visible to the queries from ``start`` to ``stop``."""
        keys = self.shape[3]
        return (0, keys) if self.band is None else self.band.reach(start, stop, keys)

    def seen(self, rows: slice, heads: slice, batch: slice) -> slice:
        """A range with all keys that these queries may see: by the band and, on a CPU, also by ``keep``.

        It has at least one key, so that a softmax has something to normalize.
        """
        first, last = self.reach(rows.start, rows.stop)
        keep = self.keep
        # After a score_mod, a key that ``keep`` masks may have a finite score again, so ``keep`` says nothing.
        if keep is not None and keep.device.type == "cpu" and keep.shape[-1] > 1 and self.change is None:
            kept = _part(keep, rows, heads, ALL, batch)
            # amax over bytes: any() over booleans takes 30 times as long.
            found = kept.view(torch.uint8).amax((0, 1, 2))[first:last].nonzero()
            first, last = (first + int(found[0]), first + int(found[-1]) + 1) if len(found) else (first, first)
        first = min(first, self.shape[3] - 1)
        return slice(first, max(last, first + 1))

    @property
    def nbytes(self) -> int:
        """The number of bytes that :meth:`on_host` copies."""
        present = self.present or (None, None)
        tensors = (self.query, self.key, self.keep, self.bias, self.slopes, *present)
        functions = sum(x.nbytes for x in self._functions if isinstance(x, OfTheModel))
        return functions + sum(x.numel() * x.element_size() for x in tensors if x is not None)

    def with_frozen_functions(self) -> "AttentionScores":
        """The same scores, whose functions have copies of the tensors that they read."""
        change, mask = (x.frozen() if isinstance(x, OfTheModel) else x for x in self._functions)
        return replace(self, change=change, mask=mask)

    @property
    def _functions(self) -> tuple[Any, Any]:
        return self.change, self.mask

    def on_host(self, place: Callable[[Tensor], Tensor]) -> "AttentionScores":
        """A copy on the CPU, from which rows can be computed after the model has overwritten its tensors.

        Args:
            place: stores the copied queries and keys (in memory or in a file) and returns the stored tensors.
        """

        def copied(x: Tensor) -> Tensor:
            return x.detach().to("cpu", copy=True)

        band = self.band
        if band is not None and isinstance(band.shift, Tensor):
            band = replace(band, shift=copied(band.shift))
        present = None if self.present is None else (copied(self.present[0]), copied(self.present[1]))
        query, key = (place(copied(x)) for x in (self.query, self.key))
        keep, bias, slopes = (None if x is None else copied(x) for x in (self.keep, self.bias, self.slopes))
        return replace(self, query=query, key=key, keep=keep, bias=bias, band=band, present=present, slopes=slopes)


def _range(chosen: Selection, count: int) -> tuple[int, int] | None:
    """Start and stop of a slice with step 1; None for any other selection."""
    if not isinstance(chosen, slice) or chosen.step not in (None, 1):
        return None
    start, stop, _ = chosen.indices(count)
    return start, stop


def _span(numbers: Tensor) -> tuple[int, int] | None:
    """Start and stop of consecutive indices; None if they are not consecutive, or if reading them would synchronize a GPU."""
    if numbers.is_cuda or not len(numbers) or int(numbers[-1]) - int(numbers[0]) + 1 != len(numbers):
        return None
    return int(numbers[0]), int(numbers[-1]) + 1


def weights_of(scores: Tensor, may_be_empty: bool) -> tuple[Tensor, Tensor]:
    """The weights and the logsumexp of scores. A row whose keys are all masked has weights of zero."""
    if scores.shape[-1] == 0:
        return scores, scores.new_full(scores.shape[:-1], -math.inf)
    if scores.requires_grad:  # the map is edited, and gradients flow through it
        logsumexp = scores.logsumexp(-1)
        empty = (logsumexp == -math.inf).unsqueeze(-1)
        return softmax(scores.masked_fill(empty, 0.0)).masked_fill(empty, 0.0), logsumexp
    largest = scores.amax(-1)
    weights = softmax_in_place(scores)
    hidden: Tensor | None = largest == -math.inf if may_be_empty else None
    if hidden is not None and hidden.device.type == "cpu" and not bool(hidden.any()):
        hidden = None  # only on a CPU: on a GPU, reading the answer would synchronize
    if hidden is not None:
        weights.masked_fill_(hidden.unsqueeze(-1), 0.0)
    # The largest weight is exp(largest score − logsumexp), which gives the logsumexp without computing exponentials again.
    total = largest - weights.amax(-1).log_()
    return weights, total if hidden is None else total.masked_fill_(hidden, -math.inf)


def _part(mask: Tensor, rows: Selection, heads: Selection, columns: Selection, batch: slice) -> Tensor:
    """The selected part of a mask or bias, which broadcasts: it may lack leading axes, and axes may have size 1."""
    mask = mask[(None,) * (4 - mask.ndim)]
    if mask.stride(1) == 0:
        mask = mask[:, :1]  # the same for all heads
    if mask.shape[0] > 1:
        mask = mask[batch]
    if mask.shape[1] > 1:
        mask = mask[:, heads]
    if mask.shape[2] > 1:
        mask = mask[:, :, rows]
    return mask[..., columns] if mask.shape[3] > 1 else mask
