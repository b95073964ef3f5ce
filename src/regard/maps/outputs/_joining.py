"""Joins the maps of attention that a model computes in parts.

How the model joins the outputs says how to join the maps. The outputs of heads in a loop, of chunks of queries and of
windows of packed images are concatenated or stacked. The outputs of parts of the keys are added, each scaled by its
share of the softmax (a prefix and a suffix, merged by their logsumexp).
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord, Check
from regard.maps.tokens._layout import Layout

Axis = Literal["batch", "heads", "batch and heads", "queries", "keys", "same keys"]
_AXES: tuple[Axis, ...] = ("batch", "heads", "queries")


@dataclass(frozen=True)
class Joint:
    """How the parts of a map belong together.

    Attributes:
        axis: the axis along which they are joined; "batch and heads" if that is one axis of the model's tensors, "same keys" if
            maps over the same keys are added.
        heads: how many heads the whole map has, if the module states it.
        order: for packed patches, the index of each token if patches are counted row by row, image after image.
        layout: how the tokens lie on the image in this order.
    """

    axis: Axis
    order: Tensor | None = None
    layout: Layout | None = None
    heads: int | None = None


def join(records: Sequence[AttentionRecord], joint: Joint) -> AttentionRecord | None:
    """One record from several that hold whole maps; None if their shapes do not fit."""
    parts = [record.stored for record in records if record.stored is not None]
    whole = _joined(parts, joint)
    if whole is None:
        return None
    first = records[0]
    certainty = max((r.axes.certainty for r in records), key=("known", "inferred", "ambiguous").index)
    shape = (whole.shape[0], whole.shape[1], whole.shape[2], whole.shape[3])
    if joint.order is not None and shape[2] == shape[3] == len(joint.order):
        whole = _placed(whole, joint.order.to(whole.device))
    layout = first.layout if shape[3] == first.shape[3] and joint.axis != "keys" else None
    if joint.layout is not None and joint.layout.tokens == shape[3]:
        layout = joint.layout
    made = replace(
        first,
        shape=shape,
        stored=whole,
        check=Check.joined([record.check for record in records], records[0].check.against),
        layout=layout,
        axes=replace(
            first.axes,
            certainty="known" if joint.heads == shape[1] else certainty,
            positions=first.axes.positions if joint.axis in ("batch", "heads") else None,
        ),
        computation=None,
    )
    made.moment, made.remarks = first.moment, first.remarks
    return made


def _joined(parts: list[Tensor], joint: Joint) -> Tensor | None:
    """The joined map; None if the shapes of the parts do not fit."""
    if joint.axis == "batch and heads":
        whole = _joined([part.flatten(0, 1).unsqueeze(1) for part in parts], Joint("batch"))
        return None if whole is None else whole.squeeze(1).unflatten(0, (-1, joint.heads or 1))
    sizes = [tuple(part.shape) for part in parts]
    if joint.axis == "same keys":
        return sum(parts[1:], parts[0]) if len(set(sizes)) == 1 else None
    along = {"batch": 0, "heads": 1, "queries": 2, "keys": 3}[joint.axis]
    if any(len({size[axis] for size in sizes}) > 1 for axis in range(4) if axis not in (along, 3)):
        return None
    if joint.axis != "queries":
        same = along == 3 or len({size[3] for size in sizes}) == 1
        return torch.cat(parts, along) if same else None
    return _rows_joined(parts)


def _rows_joined(parts: list[Tensor]) -> Tensor | None:
    """Chunks of queries as one map. All chunks may have the same keys, all keys up to their own (causal), or only their own
    (windows)."""
    rows, keys = [part.shape[2] for part in parts], [part.shape[3] for part in parts]
    total = sum(rows)
    if len(parts) == 1 or set(keys) == {total}:
        return torch.cat(parts, 2)
    if keys == list(itertools.accumulate(rows)):
        return torch.cat([torch.nn.functional.pad(part, (0, total - part.shape[3])) for part in parts], 2)
    if keys != rows:
        return None
    whole = parts[0].new_zeros(*parts[0].shape[:2], total, total)
    start = 0
    for part, count in zip(parts, rows, strict=True):
        whole[:, :, start : start + count, start : start + count] = part
        start += count
    return whole


def _placed(weights: Tensor, order: Tensor) -> Tensor:
    """The map with each token moved to its index in ``order``."""
    back = torch.argsort(order)
    return weights[:, :, back][..., back]


def folded_heads(
    parts: Sequence[Tensor],
    outputs: Sequence[Tensor | None],
    dim: int,
    stacked: bool,
    heads: int | None,
    sequences: tuple[int, int] | None,
) -> int | None:
    """The number of heads if parts of the first axis of ``(samples and heads, queries, width)`` are joined; else None.

    Args:
        parts: the tensors that are joined.
        outputs: the same numbers as ``(batch, heads, queries, width)``, as far as they are known.
        dim, stacked: the ``dim`` of ``cat`` or ``stack``, from 0 on, and which of the two it is.
        heads, sequences: as in :func:`axis_of`.
    """
    if dim != 0 or parts[0].ndim != 3 - stacked or sequences is None:
        return None
    total, queries = len(parts) if stacked else sum(len(part) for part in parts), parts[0].shape[-2]
    counts = {
        total // samples
        for samples, tokens in (sequences, sequences[::-1])  # either may come first
        if samples and total % samples == 0 and (total == samples * heads if heads else queries == tokens)
    } - {1}
    known = [(part, output.flatten(0, 1)) for part, output in zip(parts, outputs, strict=True) if output is not None]
    same = all(torch.equal(part.reshape(rows.shape), rows) for part, rows in known)
    return counts.pop() if len(counts) == 1 and same else None


# Layouts in which a model may have an output: for each axis of its tensor, the axes of (batch, heads, queries, width) in it.
_LAYOUTS: tuple[tuple[tuple[int, ...], ...], ...] = (
    *(tuple((axis,) for axis in (*order, 3)) for order in itertools.permutations(range(3))),
    ((0,), (2,), (1, 3)),
    ((2,), (0,), (1, 3)),
    ((0, 2), (1, 3)),
    ((0,), (2,), (3,)),
    ((2,), (0,), (3,)),
    ((1,), (2,), (3,)),
    ((2,), (1,), (3,)),
    ((2,), (1, 3)),
    ((0,), (1,), (3,)),
    ((0,), (1, 3)),
    ((2,), (3,)),
)


def axis_of(
    part: Tensor,
    output: Tensor,
    dim: int | None,
    count: int = 0,
    heads: int | None = None,
    sequences: tuple[int, int] | None = None,
) -> Axis | None:
    """The axis of the map along which a model joins parts; None if that is not certain.

    Every layout in which ``part`` can hold ``output`` is tried: the numbers must be equal.

    Args:
        part: one of the tensors that are joined.
        output: the same numbers as ``(batch, heads, queries, width)``.
        dim: the ``dim`` of ``cat``; None for ``stack``, which adds an axis.
        count: the number of parts.
        heads: how many the module has, if known.
        sequences: how many samples the module has and how many tokens each, if known.

    >>> output = torch.randn(2, 1, 5, 4)
    >>> axis_of(output[:, 0], output, -1), axis_of(output[:, 0], output, 1), axis_of(output[:, 0], output, None)
    ('heads', 'queries', 'heads')
    """
    found: set[Axis] = set()
    for layout in _LAYOUTS:
        used = [axis for group in layout for axis in group]
        dropped = [axis for axis in range(3) if axis not in used]
        sizes = [output.shape[axis] for axis in range(4)]
        shape = [math.prod(sizes[axis] for axis in group) for group in layout]
        if any(sizes[axis] != 1 for axis in dropped) or list(part.shape) != shape:
            continue
        if not torch.equal(output.permute(*dropped, *used).reshape(shape), part):
            continue
        if dim is None:
            found.update(_AXES[axis] for axis in dropped or [i for i in range(3) if sizes[i] == 1])
            continue
        group = layout[dim % part.ndim]
        if 3 in group:
            found.update(("heads",) if len(group) > 1 or sizes[1] == 1 else ("keys",))  # the width alone: no map
        else:
            found.update(_AXES[axis] for axis in group if len(group) == 1 or sizes[axis] > 1)
    samples, tokens = (None, None) if sequences is None else sequences
    if len(found) > 1 and tokens is not None and output.shape[2] * count > tokens:  # some of the queries may be joined
        found.discard("queries")
    for axis, size, whole in (("heads", output.shape[1], heads), ("batch", output.shape[0], samples)):
        if len(found) > 1 and whole is not None and size * count != whole:
            found.discard(axis)  # type: ignore[arg-type]
    return found.pop() if len(found) == 1 and "keys" not in found else None
