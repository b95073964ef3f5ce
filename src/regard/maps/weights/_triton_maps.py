"""Maps and overviews computed by Triton kernels on a GPU. Where these cannot be used, torch computes the same.

When a kernel is first used for a kind of calls (device, dtypes, options), its result is compared with that of torch. If
it fails or disagrees, it is not used again in this process, and the record says why. So no map comes from a kernel that
was not compared. Only after a lack of memory, which may pass, it is tried again.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import kernels
from regard.maps._check import Rounding
from regard.maps._operator_watch import unwatched
from regard.maps._overview import FIRST, KeyStatistics, Overview, QueryStatistics, cell_sizes
from regard.maps._record import AttentionRecord
from regard.maps._selection import on_device
from regard.maps._torch_modes import ModesOff
from regard.maps.weights._attention_scores import ALL, AttentionScores, Selection, is_all, selected, shared_heads
from regard.support.tensor_cache import TensorCache


class Proof:
    """The result of comparing a kernel with torch at its first use for a kind of calls; ``agrees`` is None before that."""

    __slots__ = ("agrees",)

    def __init__(self) -> None:
        self.agrees: bool | None = None


_proven: dict[tuple[Any, ...], Proof] = {}  # by the kind of calls, see _proof
_shifts = TensorCache(256)
COMPARED = 4  # rows that the first call of a kind computes by the kernel and by torch


def usable(record: AttentionRecord, heads: Selection, rows: slice = ALL) -> kernels.ScoreTensors | None:
    """The arguments of the kernels for these rows of an attention; None if the kernels cannot compute it."""
    running = record.running
    scores, logsumexp = running.weights, running.logsumexp
    if not isinstance(scores, AttentionScores) or logsumexp is None or 0 in record.shape:
        return None
    if scores.query.dtype != scores.key.dtype or not kernels.usable_for_maps(scores.query):
        return None
    present = _present(scores)
    others = (scores.bias, scores.change, scores.mask)
    # Without a mask, ALiBi's distances are between queries and keys that start together; the kernels let them end together.
    if scores.slopes is not None and scores.band is None:
        return None
    if any(x is not None for x in others) or (scores.keep is not None and present is None):
        return None
    batch, count, _, _ = record.shape
    if batch * count > kernels.MOST_HEADS:
        return None
    band, device = scores.band, scores.query.device
    heads = on_device(heads, device)
    shift = record.shift
    slopes = scores.slopes if scores.slopes is None else scores.slopes.expand(batch, count)[:, heads]
    first = rows.start or 0
    if present is not None and rows != ALL:
        present = present[0][:, rows], present[1]
    return kernels.ScoreTensors(
        selected(selected(scores.query, 1, heads), 2, rows),
        scores.key if is_all(heads) else shared_heads(scores.key, heads, count),
        selected(selected(logsumexp, 1, heads), 2, rows),
        scores.scale,
        _shift(batch, shift + first, device) if isinstance(shift, int) else (shift + first).to(device).expand(batch),
        None if band is None else band.left,
        None if band is None else band.right,
        present,
        scores.softcap,
        slopes,
    )


def _shift(batch: int, shift: int, device: torch.device) -> Tensor:
    """The shift of each sample, ``(batch,)``, on the device. Cached per stream: all layers of a model have the same one."""
    stream = torch._C._cuda_getCurrentRawStream(device.index or 0) if device.type == "cuda" else 0

    def make() -> Tensor:
        return torch.full((batch,), shift, dtype=torch.int32, device=device)

    return _shifts.get((batch, shift, device, stream), device, make)


def _present(scores: AttentionScores) -> tuple[Tensor, Tensor] | None:
    """Which queries and keys exist (are not padding), from ``present`` or from a mask that hides keys only."""
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
    """These rows of all heads, compared with the model's output in the same pass; None if the kernel cannot be used."""
    if not (isinstance(rows, slice) and rows.step in (None, 1) and is_all(heads)):
        return None
    if rows != ALL:
        rows = slice(*rows.indices(record.shape[2]))
        if rows.stop <= rows.start:
            return None
    running = record.running
    expected = running.expected_output
    if running.compare is not None or running.value is None or expected is None:
        return None
    if running.value.dtype != expected.dtype or not kernels.usable_for_maps(running.value):
        return None
    given = usable(record, heads, rows)
    proof = proof_of_weights(given, dtype)
    if given is None or proof.agrees is False:
        return None
    try:
        weights, error, log_error = kernels.write_weights(given, running.value, selected(expected, 2, rows), dtype)
        if proof.agrees is None:
            some = _some_rows(weights)
            dense = running.weights(some + (rows.start or 0), heads)[0]
            off = float((weights[:, :, some].float() - dense.float()).abs().amax())
            agrees = off <= 2e-3 + torch.finfo(dtype).eps
            _settle(record, "weights", proof, agrees, f"its weights are off by {off:.1e}")
    except Exception as failure:
        _failed(record, "weights", proof, failure)
        return None
    if not proof.agrees:
        return None
    record.check.add(error, log_error)
    return weights


class KernelOverview(NamedTuple):
    """An overview by a kernel, the sums of the map's rows, and whether the kernel was compared with torch before."""

    overview: Overview
    sums: Tensor
    proof: Proof


def overview_by_kernel(record: AttentionRecord, heads: Selection, cells: int) -> KernelOverview | None:
    """The overview of these heads; None if the kernel cannot be used."""
    given = usable(record, heads)
    proof = _proof("overview", given)
    if given is None or proof.agrees is False:
        return None
    cell = cell_sizes(record.shape, cells)
    try:
        found = kernels.overview(given, cell, FIRST)
    except Exception as failure:
        _failed(record, "overview", proof, failure)
        return None
    queries, keys = QueryStatistics(*found.per_query), KeyStatistics(*found.per_key)
    return KernelOverview(Overview(found.mass, found.largest, cell, queries, keys), found.sums, proof)


class PackedOverview(NamedTuple):
    """An overview whose parts and check lie in one tensor, so that a single copy brings it to the host.

    Attributes:
        overview: on the host, in the dtypes in which it is kept. Synchronize with the device before reading it.
        numbers: on the device: the error, the error of the logsumexp, and the largest value.
    """

    overview: Overview
    numbers: Tensor


def packed_overview(
    record: AttentionRecord, heads: Selection, cells: int, rows: tuple[int, ...], proven: bool = True
) -> PackedOverview | None:
    """The overview of all heads, computed, checked and packed into one tensor by kernels alone.

    Args:
        rows: queries whose weights are computed in full, to check the overview.
        proven: whether the kernels must have agreed with torch before.

    Returns None if the kernels cannot be used.
    """
    running = record.running
    value, expected = running.value, running.expected_output
    if running.compare is not None or running.compared is not None or running.largest_sum is not None:
        return None
    if value is None or expected is None or not is_all(heads):
        return None
    if value.dtype != expected.dtype or not kernels.usable_for_maps(value):
        return None
    given = usable(record, heads)
    proof = _proof("packed", given)
    if given is None or (proven and not proof.agrees):
        return None
    cell = cell_sizes(record.shape, cells)
    try:
        found = kernels.packed_overview(given, cell, FIRST, value, expected, rows)
    except Exception as failure:
        _failed(record, "packed overviews", proof, failure)
        return None
    if found is None:
        return None
    parts, kept = found
    host = kept
    if kept.is_cuda:
        host = torch.empty(kept.shape, dtype=kept.dtype, pin_memory=True).copy_(kept, non_blocking=True)
    overview = Overview.of(parts.all_of(host, [name for name in parts if name != "numbers"]), cell)
    return PackedOverview(overview, parts.of(kept, "numbers"))


def prove_packed(
    record: AttentionRecord, heads: Selection, cells: int, rows: tuple[int, ...], expected: Overview
) -> None:
    """Compare the packed overview with ``expected``, the first time that calls of this kind have an overview."""
    given = usable(record, heads)
    proof = _proof("packed", given)
    if given is None or proof.agrees is not None:
        return
    found = packed_overview(record, heads, cells, rows, proven=False)
    if found is None:
        return
    error, _, largest = found.numbers.tolist()
    ours, theirs = found.overview.tensors, expected.kept().tensors
    if record.running.device.type == "cuda":
        torch.cuda.synchronize(record.running.device)
    off = max(float((x - ours[name]).abs().max()) / (1 + float(x.abs().max())) for name, x in theirs.items())
    agrees = off <= 2e-3 and error <= float(
        Rounding(largest, record.running.rounding_factor(record.shape[3], single=True))
    )
    _settle(record, "packed overviews", proof, agrees, f"they are off by {off:.1e}, and rows in full by {error:.1e}")


def agrees_at_first(record: AttentionRecord, proof: Proof) -> bool:
    """Whether the kernel's overview, which was just checked, agrees. Only the first call of each kind synchronizes for this."""
    if proof.agrees is None:
        _settle(record, "overview", proof, record.agrees, f"its overview is off by {record.residual:.1e}")
    return bool(proof.agrees)


def proof_of_weights(given: kernels.ScoreTensors | None, dtype: torch.dtype) -> Proof:
    """The proof of the kernel that writes weights of this dtype."""
    return _proof("weights", given, dtype)


def proof_of_own_logsumexp(
    given: kernels.ScoreTensors, value: Tensor, output: Tensor, dtype: torch.dtype, rows: slice, shift: int
) -> Proof:
    """The proof of the kernel that computes the logsumexp itself. At the first use for a kind of calls, a few of these rows are
    compared with those of the kernel that is given the logsumexp, which was compared with torch.

    Args:
        shift: the position of query 0 among the keys.
    """
    proof = _proof("alone", given, dtype)
    if proof.agrees is None:
        some = slice(max(rows.start, rows.stop - 4 * COMPARED), rows.stop)
        with unwatched(), ModesOff(given.query.device):
            of_rows = replace(
                given,
                query=given.query[:, :, some],
                logsumexp=given.logsumexp[:, :, some],
                shift=_shift(given.query.shape[0], shift + some.start, given.query.device),
            )
            try:
                found, expected = (
                    kernels.write_weights(of_rows, value, output[:, :, some], dtype, alone)[0].float()
                    for alone in (True, False)
                )
                proof.agrees = bool((found - expected).abs().amax() <= 2e-3 + torch.finfo(dtype).eps)
            except torch.OutOfMemoryError:
                pass  # tried again at the next call
            except Exception:  # it cannot be compiled here: the model's logsumexp is used instead
                proof.agrees = False
    return proof


def _proof(what: str, given: kernels.ScoreTensors | None, *more: Any) -> Proof:
    """The proof of this kernel for calls of the same device, dtypes and compile-time constants."""
    if given is None:
        return Proof()
    kind = (what, given.query.device, given.query.dtype, *given.constants.values(), *more)
    return _proven.setdefault(kind, Proof())


def _some_rows(weights: Tensor) -> Tensor:
    """Indices of a few random rows."""
    order = torch.randperm(weights.shape[2], generator=torch.Generator().manual_seed(0))
    return order[:COMPARED].to(weights.device, non_blocking=True)


def _settle(record: AttentionRecord, what: str, proof: Proof, agrees: bool, reason: str) -> None:
    """Store the result of a comparison. A kernel that does not agree is mentioned in the record's remarks."""
    proof.agrees = agrees
    if not agrees:
        said = reason.strip().partition("\n")[0]
        record.remarks.append(f"the kernel of {what} is not used, torch takes its place: {said:.200}")


def _failed(record: AttentionRecord, what: str, proof: Proof, failure: Exception) -> None:
    """Do not use this kernel again, unless memory was short."""
    if not isinstance(failure, torch.OutOfMemoryError):
        _settle(record, what, proof, False, f"{type(failure).__name__}: {failure}")
