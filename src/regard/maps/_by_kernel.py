"""Maps and overviews by Triton kernels, where a GPU runs them; everything else has the paths in torch.

A kernel that fails, or that disagrees with the path in torch when it is first used, is not used again in this process, and
the record says why: a map is never taken from a kernel that was not compared.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import kernels
from regard.maps._attention_scores import ALL, AttentionScores, Selection, selected, shared_heads
from regard.maps._band import alignment
from regard.maps._overview import FIRST, KeyStatistics, Overview, QueryStatistics, cell_size
from regard.maps._record import AttentionRecord
from regard.maps._selection import on_device

# Of each kind of call: whether its kernel agreed with torch when it was first used.
_proven: dict[tuple[Any, ...], bool] = {}
_made: dict[tuple[Any, ...], Tensor] = {}
COMPARED = 4  # rows that the first call of a kind computes both ways


def usable(record: AttentionRecord, heads: Selection, rows: slice = ALL) -> kernels.ScoreTensors | None:
    """What the kernels need to know of these rows of an attention; None if they cannot compute it."""
    running = record.running
    scores, logsumexp = running.weights, running.logsumexp
    if not isinstance(scores, AttentionScores) or logsumexp is None or 0 in record.shape:
        return None
    if scores.query.dtype != scores.key.dtype or not kernels.usable_for_maps(scores.query):
        return None
    present = _present(scores)
    others = (scores.bias, scores.change, scores.mask)
    if scores.slopes is not None and scores.band is None:  # they count from the start, but distances to the end
        return None
    if any(x is not None for x in others) or (scores.keep is not None and present is None):
        return None
    batch, count, _, _ = record.shape
    if batch * count > kernels.MOST_HEADS:
        return None
    band, device = scores.band, scores.query.device
    heads = on_device(heads, device)
    shift = alignment(band, *record.shape[2:])
    slopes = scores.slopes if scores.slopes is None else scores.slopes.expand(batch, count)[:, heads]
    whole = isinstance(heads, slice) and heads == ALL
    first = rows.start or 0
    if present is not None and rows != ALL:
        present = present[0][:, rows], present[1]
    return kernels.ScoreTensors(
        selected(selected(scores.query, 1, heads), 2, rows),
        scores.key if whole else shared_heads(scores.key, heads, count),
        selected(selected(logsumexp, 1, heads), 2, rows),
        scores.scale,
        _shifts(batch, shift + first, device) if isinstance(shift, int) else (shift + first).to(device).expand(batch),
        None if band is None else band.left,
        None if band is None else band.right,
        present,
        scores.softcap,
        slopes,
    )


def _shifts(batch: int, shift: int, device: torch.device) -> Tensor:
    """One number for each sample. All layers of a model have the same, which are made once in each stream."""
    stream = torch._C._cuda_getCurrentRawStream(device.index or 0) if device.type == "cuda" else 0
    key = (batch, shift, device, stream)
    found = _made.get(key)
    if found is None:
        if len(_made) >= 256:
            _made.clear()
        found = _made[key] = torch.full((batch,), shift, dtype=torch.int32, device=device)
    return found


def _present(scores: AttentionScores) -> tuple[Tensor, Tensor] | None:
    """Which tokens exist, also as a mask of keys says it."""
    if scores.keep is None:
        return scores.present
    batch, _, queries, keys = scores.shape
    keep = scores.keep[(None,) * (4 - scores.keep.ndim)]
    if keep.shape[1] != 1 or keep.shape[2] != 1 or scores.present is not None:
        return None
    everyone = torch.ones(batch, queries, dtype=torch.bool, device=keep.device)
    return everyone, keep[:, 0, 0].expand(batch, keys)


def weights_by_kernel(
    record: AttentionRecord, heads: Selection, dtype: torch.dtype, rows: Selection = ALL
) -> Tensor | None:
    """These rows of all heads, compared with the model's output in the same pass; None if no kernel can."""
    if not (isinstance(rows, slice) and rows.step in (None, 1) and isinstance(heads, slice) and heads == ALL):
        return None
    if rows != ALL:
        rows = slice(*rows.indices(record.shape[2]))
        if rows.stop <= rows.start:
            return None
    running = record.running
    expected = running.output if running.expected is None else running.expected
    if running.compare is not None or running.value is None or expected is None:
        return None
    if running.value.dtype != expected.dtype or not kernels.usable_for_maps(running.value):
        return None
    given = usable(record, heads, rows)
    kind = _kind("weights", given, dtype)
    if given is None or not _proven.get(kind, True):
        return None
    try:
        weights, error, log_error = kernels.write_weights(given, running.value, selected(expected, 2, rows), dtype)
        if kind not in _proven:
            some = _some_rows(weights)
            dense = running.weights(some + (rows.start or 0), heads)[0]
            off = float((weights[:, :, some].float() - dense.float()).abs().amax())
            _settle(record, kind, off <= 2e-3 + torch.finfo(dtype).eps, f"its weights are off by {off:.1e}")
    except Exception as failure:
        _settle(record, kind, False, f"{type(failure).__name__}: {failure}")
    if not _proven[kind]:
        return None
    record.check.add(error, log_error)
    return weights


class KernelOverview(NamedTuple):
    """The overview that a kernel computed, the sums of its rows, and the kind of call."""

    overview: Overview
    sums: Tensor
    kind: tuple[Any, ...]


def overview_by_kernel(record: AttentionRecord, heads: Selection, cells: int) -> KernelOverview | None:
    """The overview of these heads; None if no kernel can compute it."""
    given = usable(record, heads)
    kind = _kind("overview", given)
    if given is None or not _proven.get(kind, True):
        return None
    cell = cell_size(record.shape[2], cells), cell_size(record.shape[3], cells)
    try:
        found = kernels.overview(given, cell, FIRST)
    except Exception as failure:
        _settle(record, kind, False, f"{type(failure).__name__}: {failure}")
        return None
    queries, keys = QueryStatistics(*found.per_query), KeyStatistics(*found.per_key)
    return KernelOverview(Overview(found.mass, found.largest, cell, queries, keys), found.sums, kind)


def agrees_at_first(record: AttentionRecord, kind: tuple[Any, ...]) -> bool:
    """Whether the overview of a kernel, which was just checked, agrees. Only the first of each kind waits for it."""
    if kind not in _proven:
        _settle(record, kind, record.agrees, f"its overview is off by {record.residual:.1e}")
    return _proven[kind]


def kind_of_weights(given: kernels.ScoreTensors, dtype: torch.dtype) -> tuple[Any, ...]:
    """The kind of calls that write such weights."""
    return _kind("weights", given, dtype)


def is_proven(kind: tuple[Any, ...]) -> bool:
    """Whether a kernel was compared with torch, for calls of this kind, and agreed."""
    return _proven.get(kind, False)


def _kind(what: str, given: kernels.ScoreTensors | None, *more: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return (what, given.query.device, given.query.dtype, *given.constants.values(), *more)


def _some_rows(weights: Tensor) -> Tensor:
    order = torch.randperm(weights.shape[2], generator=torch.Generator().manual_seed(0))
    return order[:COMPARED].to(weights.device, non_blocking=True)


def _settle(record: AttentionRecord, kind: tuple[Any, ...], agrees: bool, reason: str) -> None:
    _proven[kind] = agrees
    if not agrees:
        said = reason.strip().partition("\n")[0]
        record.remarks.append(f"the kernel of {kind[0]} is not used, torch takes its place: {said:.200}")
