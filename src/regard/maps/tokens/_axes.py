"""Which axes of a model's tensors are the batch, the heads and the queries, and how certain that is.

Models fold and permute axes as they like: ``(batch · windows, heads, …)``, ``(batch · heads, …)``, ``(batch, heads,
groups, …)``. An assignment of meanings to axes is called a *reading* here. The product of weights and values is the
same in every reading, so the residual cannot tell readings apart. Other evidence can:

- the number of heads that the module states;
- the width of the layer's own output projection, which takes the outputs of all heads of one token;
- the number of tokens of the module's input, which is batch × queries;
- strides: heads are next to the width in memory, because both are parts of one projected vector.

Every possible reading gets a score by how much of this evidence supports it.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal

from torch import Tensor

from regard.maps.tokens._layout import Layout
from regard.maps.tokens._positions import Positions

Certainty = Literal["known", "inferred", "ambiguous"]
Over = Literal["tokens", "channels", "samples"]


@dataclass(frozen=True)
class MapAxes:
    """What the axes of a map are.

    Attributes:
        certainty: "known" if evidence shows which axes are batch, heads, queries and keys; "inferred" if only conventions
            say so; "ambiguous" if several readings fit. Then no axis is taken for heads.
        over: what the keys are: "tokens", "channels" (XCiT), or "samples", a set of keys for each query (deformable and
            other gathered attention, or a mixture of the layers of each token).
        query_layout: how the queries lie on an image, if it differs from the layout of the keys.
        positions: where queries and keys lie in the whole sequence, if known.
    """

    certainty: Certainty = "known"
    over: Over = "tokens"
    query_layout: Layout | None = None
    positions: Positions | None = None


@dataclass(frozen=True)
class AxisEvidence:
    """What is known about an attention besides the shapes of its tensors.

    Attributes:
        stated: the number of heads that the module states.
        projected: the number of heads whose outputs fit into the layer's output projection.
        tokens: pairs (number of tokens, number of channels) that the module's input may have.
        sequences: the number of sequences in the module's input and their length; either may come first.
        beside: the leading axis that is next to the width in memory.
        keys_beside: whether neighboring keys are next to each other in memory: then they are channels.
    """

    stated: int | None = None
    projected: int | None = None
    tokens: tuple[tuple[int, int], ...] = ()
    sequences: tuple[int, int] | None = None
    beside: int | None = None
    keys_beside: bool = False

    @property
    def counts(self) -> set[int]:
        """The possible numbers of heads."""
        return {count for count in (self.stated, self.projected) if count is not None and count > 1}


@dataclass(frozen=True)
class AxisReading:
    """Which leading axes are the batch, the heads and the queries.

    Attributes:
        lead: the sizes of the leading axes; the first is split into two if ``split``.
        heads, queries: indices of leading axes. All other leading axes are the batch. ``queries`` has an axis if each query
            has its own keys and values (gathered attention); then the query axis of the map itself has size 1.
        split: the number of heads that are folded into the first axis of the tensors; None if none are.
        in_rows: the number of heads that are folded into the query axis, in an order that is not known.
        certainty, over: as in :class:`MapAxes`.
    """

    lead: tuple[int, ...]
    heads: tuple[int, ...] = ()
    queries: tuple[int, ...] = ()
    split: int | None = None
    in_rows: int = 1
    certainty: Certainty = "known"
    over: Over = "tokens"

    @property
    def axes(self) -> MapAxes:
        return MapAxes(self.certainty, self.over)

    @property
    def is_folded(self) -> bool:
        """Whether samples and heads are one axis of the tensors."""
        return self.split is not None and self.heads == (1,) and len(self.lead) == 2 + len(self.queries)

    @property
    def order(self) -> tuple[int, ...]:
        """The leading axes as batch, heads, queries."""
        chosen = (*self.heads, *self.queries)
        return (*(axis for axis in range(len(self.lead)) if axis not in chosen), *chosen)

    @property
    def head_count(self) -> int:
        return math.prod(self.lead[axis] for axis in self.heads)

    @property
    def query_count(self) -> int:
        return math.prod(self.lead[axis] for axis in self.queries)

    @property
    def item_count(self) -> int:
        """The number of samples, times the queries that have an axis of their own."""
        return math.prod(self.lead) // max(1, self.head_count)

    @cached_property
    def is_plain(self) -> bool:
        """Whether tensors are ``(batch, heads, tokens, width)`` already."""
        return len(self.lead) == 2 and self.order == (0, 1) and self.heads == (1,) and not self.split

    @property
    def without_queries(self) -> "AxisReading":
        """This reading with the query axes counted as the last batch axes."""
        if not self.queries:
            return self
        return replace(self, queries=())

    def ordered(self, x: Tensor) -> Tensor:
        """``x`` as ``(batch …, heads …, queries …, tokens, width)``."""
        if self.split is not None:
            x = x.unflatten(0, (-1, self.split))
        return x.permute(*self.order, -2, -1)

    def arrange(self, x: Tensor) -> Tensor:
        """``x`` as ``(batch, heads, tokens, width)``; values may have fewer heads."""
        if self.is_plain:
            return x
        x = self.ordered(x)
        first = len(self.lead) - len(self.heads) - len(self.queries)
        sizes = x.shape[:-2]
        batch, heads = math.prod(sizes[:first]), math.prod(sizes[first : first + len(self.heads)])
        return x.reshape(batch, heads, math.prod(sizes[first + len(self.heads) :]) * x.shape[-2], x.shape[-1])

    def undo(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The inverse of :meth:`arrange`: from ``(batch, heads, queries, width)`` back to ``shape``.

        >>> reading = read_axes((2, 3, 5, 4, 8), 8, AxisEvidence(stated=3))
        >>> x = torch.randn(2, 3, 5, 4, 8)
        >>> reading.arrange(x).shape, torch.equal(reading.undo(reading.arrange(x), (2, 3, 5, 4, 8)), x)
        (torch.Size([10, 3, 4, 8]), True)
        """
        if self.is_plain:
            return x
        order = self.order
        x = x.reshape(*(self.lead[axis] for axis in order), *shape[-2:])
        return x.permute(*(order.index(axis) for axis in range(len(order))), -2, -1).reshape(shape)


@lru_cache(1024)  # the layers of a model have the same arguments
def read_axes(
    shape: tuple[int, ...], width: int, evidence: AxisEvidence, *, per_query: bool = False, documented: bool = False
) -> AxisReading:
    """The reading of weights ``(…, queries, keys)`` that the evidence supports.

    Args:
        width: of the values.
        per_query: whether the values have the same leading axes, so that one of these may count the queries.
        documented: whether the function's documentation says that the second of four axes is the heads.

    >>> read_axes((8, 49, 3, 64, 64), 32, AxisEvidence(stated=3)).heads, read_axes((8, 3, 49, 64, 64), 32, AxisEvidence(3)).heads
    ((2,), (1,))
    >>> read_axes((8, 3, 3, 64, 64), 32, AxisEvidence(stated=3)).certainty
    'ambiguous'
    """
    lead, rows = tuple(shape[:-2]), shape[-2]
    readings = list(_readings(lead, rows, evidence, gathered=per_query and rows == 1))
    readings += _shared_keys(lead, rows, evidence)
    if len(readings) == 1:
        # A module of several heads computes one of each sample here, or several of one sample.
        some = len(lead) == 1 and lead[0] > 1 and bool(evidence.counts)
        fits = _score(readings[0], shape, width, evidence) > 0 and not some
        certainty: Certainty = "known" if fits or not lead else "inferred"
        return _channels(replace(readings[0], certainty=certainty), shape, width, evidence)
    scores = [_score(reading, shape, width, evidence) for reading in readings]
    best = max(scores)
    fitting = [reading for reading, score in zip(readings, scores, strict=True) if score == best]
    if len(fitting) == 1 and best > 0 and fitting[0].in_rows == 1:
        if per_query and rows == 1 and not fitting[0].queries and _queries_in_batch(fitting[0], evidence):
            return replace(fitting[0], certainty="inferred", over="samples")
        return _channels(fitting[0], shape, width, evidence)
    usual = AxisReading(lead, heads=(1,), certainty="inferred") if len(lead) == 2 else None
    gathered_too = any(reading.queries or reading.in_rows > 1 for reading in fitting)
    fits = usual is not None and any(x.heads == (1,) and not x.queries and x.split is None for x in fitting)
    # By convention four axes are (batch, heads, queries, keys), unless a leading axis may also count the queries.
    if usual is not None and fits and (best > 0 or documented or not gathered_too):
        return _channels(usual, shape, width, evidence)
    return _channels(AxisReading(lead, certainty="ambiguous"), shape, width, evidence)


@lru_cache(1024)
def read_rows_as_heads(
    shape: tuple[int, ...], width: int, evidence: AxisEvidence, differ: tuple[int, ...], *, turned: bool
) -> tuple[AxisReading, int] | None:
    """The reading of ``(…, queries, heads, keys)``, with the queries as the last leading axis but one, and which axis that was.

    None if rows are rather queries.

    Args:
        width: of the values.
        differ: leading axes along which the values differ. One of them may be the queries.
        turned: whether another axis than the rows was next to the keys in memory, as queries are in a product with keys.

    >>> reading, axis = read_rows_as_heads((2, 7, 4, 7), 8, AxisEvidence(stated=4), (0, 1), turned=True)
    >>> reading.lead, reading.heads, reading.queries, axis
    ((2, 7, 4), (2,), (1,), 1)
    """
    lead, (rows, keys) = tuple(shape[:-2]), shape[-2:]
    found = []
    samples = None if evidence.sequences is None else evidence.sequences[0]
    for axis in differ:
        if axis == 0 and lead[0] == samples != keys:
            continue
        order = [*(i for i in range(len(lead)) if i != axis), axis]
        sizes = (*(lead[i] for i in order), rows)
        reading = AxisReading(sizes, heads=(len(lead),), queries=(len(lead) - 1,), over="samples")
        beside = None if evidence.beside is None else order.index(evidence.beside)
        score = _score(reading, (*sizes, 1, keys), width, replace(evidence, beside=beside))
        found.append((score, axis, reading))
    if not found:
        return None
    score, axis, reading = max(found, key=lambda entry: entry[:2])
    others = _readings(lead, rows, evidence, gathered=False) + _shared_keys(lead, rows, evidence)
    usual = max(_score(other, shape, width, evidence) for other in others)
    if score < usual or (score == usual and not turned):
        return None
    sure = score > max(usual, 0) and sum(other == score for other, *_ in found) == 1
    if score > usual or (lead[axis] == keys != rows):  # in self-attention there are as many queries as keys
        return replace(reading, certainty="known" if sure else "inferred"), axis
    undecided = rows == lead[axis] if keys in (rows, lead[axis]) else rows in evidence.counts
    return (AxisReading(reading.lead, certainty="ambiguous"), axis) if undecided else None


def _readings(lead: tuple[int, ...], rows: int, evidence: AxisEvidence, gathered: bool) -> list[AxisReading]:
    """All readings to compare. Axes of size 1 are not tried as heads or queries: they make no difference."""
    found = [AxisReading(lead)]
    axes = [axis for axis, size in enumerate(lead) if size > 1]
    if len(lead) == 1:
        # Queries that are all tokens of the input leave no samples: then a model without a batch axis has only heads.
        alone = {lead[0]} if lead[0] > 1 and any(rows == count for count, _ in evidence.tokens) else set()
        found += [
            AxisReading((lead[0] // count, count), heads=(1,), split=count)
            for count in sorted(evidence.counts | alone)
            if lead[0] % count == 0 and lead[0] > 0
        ]
        return found
    if len(lead) == 2 and lead[1] == 1:
        found = [AxisReading(lead, heads=(1,))]
    found += [AxisReading(lead, heads=(axis,)) for axis in axes]
    pairs = pairwise(axes) if len(lead) > 2 else ()  # two axes of heads need a third one for the batch
    found += [AxisReading(lead, heads=(i, j)) for i, j in pairs if lead[i] * lead[j] in evidence.counts]
    if len(lead) == 2:  # (batch · heads, blocks, …): heads may be folded into the first axis
        found += [
            AxisReading((lead[0] // count, count, lead[1]), heads=(1,), split=count)
            for count in sorted(evidence.counts)
            if lead[0] % count == 0
            and lead[0] > 0
            # With one block only the number of tokens can tell these heads from one head at a time.
            and (1 < lead[1] != count or (lead[1] == 1 and lead[0] > count > 1 and evidence.tokens))
        ]
    if gathered and axes:
        last = axes[-1]
        found += [AxisReading(lead, heads=(axis,), queries=(last,), over="samples") for axis in axes[:-1]]
        found += [AxisReading(lead, heads=(last,), queries=(axis,), over="samples") for axis in axes[-2:-1]]
        found.append(AxisReading(lead, queries=(last,), over="samples"))
        found += [
            AxisReading((lead[0] // count, count, *lead[1:]), (1,), (last + 1,), count, over="samples")
            for count in sorted(evidence.counts)
            if last > 0 and lead[0] % count == 0 and lead[0] > count
        ]
    return found


def _shared_keys(lead: tuple[int, ...], rows: int, evidence: AxisEvidence) -> list[AxisReading]:
    """Readings of multi-query attention: heads that share keys may be folded into the query axis, for one product."""
    counts = sorted(evidence.counts) if len(lead) == 1 and evidence.sequences is not None else []
    return [AxisReading(lead, in_rows=count) for count in counts if rows % count == 0 and rows >= count]


def _queries_in_batch(reading: AxisReading, evidence: AxisEvidence) -> bool:
    """Whether samples and queries are folded into one axis, and each query has its own keys (dynamic convolution)."""
    sequences = evidence.sequences
    return sequences is not None and min(sequences) > 1 and reading.item_count == math.prod(sequences)


def _score(reading: AxisReading, shape: tuple[int, ...], width: int, evidence: AxisEvidence) -> int:
    """The evidence for this reading minus the evidence against it."""
    score, rows = 0, shape[-2] // reading.in_rows
    folded = len(reading.lead) == 1 or (reading.split is not None and not reading.queries)
    across = evidence.keys_beside and bool(_across(reading, shape, width, evidence))
    if not folded:  # a module with several heads may compute one head at a time
        projected = None if across else evidence.projected  # over channels, the width is not that of a head
        for count in (evidence.stated, projected):
            if count is not None:
                score += 1 if count == reading.head_count else -1
    score += 2 * across
    if evidence.tokens:
        queries = reading.item_count * rows
        fits = any(queries == count for count, _ in evidence.tokens) or bool(_across(reading, shape, width, evidence))
        score += 1 if fits else -1
    if evidence.sequences is not None:  # either may come first
        batch = math.prod(reading.lead) // max(1, reading.head_count * reading.query_count)
        found = (batch, reading.query_count * rows)
        fits = found == evidence.sequences or (reading.in_rows == 1 and found[::-1] == evidence.sequences)
        # These are two numbers. With the number of tokens they outweigh the heads that a module states: it may compute some of
        # its heads at a time, and have as many samples as heads.
        score += 2 * fits
    if evidence.beside is not None:
        inside = evidence.beside == 0 if reading.split is not None else evidence.beside in reading.heads
        # With tokens first and a single head, samples are next to the width. So a fitting size counts more.
        fits = len(reading.lead) == 1 or reading.split is not None or reading.lead[evidence.beside] in evidence.counts
        score += (2 if fits else 1) * (1 if inside else -1)
    return score


def _channels(reading: AxisReading, shape: tuple[int, ...], width: int, evidence: AxisEvidence) -> AxisReading:
    """The reading, marked as attention over channels if the input's tokens are the width and not the queries."""
    across = _across(reading, shape, width, evidence)
    along = [tokens for tokens, _ in evidence.tokens if reading.item_count * shape[-2] == tokens]
    if across and (not along or evidence.keys_beside):
        return replace(reading, over="channels", certainty="inferred" if along else reading.certainty)
    return reading


def _across(reading: AxisReading, shape: tuple[int, ...], width: int, evidence: AxisEvidence) -> list[int]:
    """The possible numbers of input tokens if this is attention over channels: tokens are the width, channels the queries."""
    rows, keys = shape[-2:]
    if reading.queries or rows != keys or reading.in_rows > 1:
        return []
    heads, batch = reading.head_count, reading.item_count
    return [tokens for tokens, channels in evidence.tokens if batch * width == tokens and heads * rows == channels]


def rows_are_features(reading: AxisReading, shape: tuple[int, ...], evidence: AxisEvidence) -> bool:
    """Whether the rows are channels and the keys are tokens, as in linear attention, q · (softmax(k)ᵀ v).

    >>> rows_are_features(AxisReading((2, 4), (1,)), (2, 4, 8, 9), AxisEvidence(4, tokens=((18, 32),)))
    True
    """
    rows, keys = shape[-2:]
    heads, batch = reading.head_count, reading.item_count
    return any(
        batch * keys == tokens and heads * rows == channels and batch * rows != tokens
        for tokens, channels in evidence.tokens
    )
