r"""Computes the overview of a map from queries and keys, tile by tile, without forming the map.

With the logsumexp :math:`L_i` of each row, which fused kernels return, a weight is :math:`\exp(s_{ij} - L_i)`. So a
tile gives its weights without the rest of its rows. Memory is linear in the number of tokens.
"""

import functools
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.maps._check import Rounding
from regard.maps._overview import FIRST, Overview
from regard.maps._record import AttentionRecord
from regard.maps._selection import on_device
from regard.maps.weights._attention_scores import AttentionScores, Selection, exact
from regard.maps.weights._overview_check import at_rows, check
from regard.maps.weights._threads import each_in_a_thread
from regard.maps.weights._triton_maps import agrees_at_first, overview_by_kernel, packed_overview, prove_packed

MASKED = -1e30  # instead of −∞: its weight is 0, and weight · log weight is 0 instead of NaN
TILE = 2**20  # scores of a tile on a CPU: more do not fit into the cache, fewer have too much overhead
TILE_CUDA = 2**26
COARSE = 2.0**8  # from this size on, rounding of the logsumexp (float32) changes weights by more than 1e-5
ROWS = 256  # rows of a tile at most
GROUP = 8  # rows of a group, of which the maximum is taken first
CHECKED = 4  # rows that are computed in full, to check the overview


@dataclass(frozen=True)
class Tile:
    """Scores of some rows of one head, minus the rows' logsumexp.

    Attributes:
        item, head: the indices of the sample and of the head in the overview.
        rows, columns: the first query and the first key.
        logits: ``(rows, columns)``, the logarithm of the weights; columns are padded to whole cells with ``MASKED``.
    """

    item: int
    head: int
    rows: int
    columns: int
    logits: Tensor


class Accumulator:
    """Adds tiles to an overview.

    Attributes:
        overview: the overview so far.
        sums: the sums of the rows so far.
        one_sided: whether no query sees keys after its own position, which makes distances simpler.
        work: memory for the weights of a tile.
    """

    def __init__(self, record: AttentionRecord, heads: int, cells: int) -> None:
        batch, _, queries, self.keys = record.shape
        running, device = record.running, record.running.device
        self.overview = Overview.empty((batch, heads, queries, self.keys), cells, device)
        self.sums = torch.zeros(batch, heads, queries, device=device)
        band = running.weights.band if isinstance(running.weights, AttentionScores) else None
        self.one_sided = band is not None and band.right is not None and band.right <= 0
        self.shift = record.shift
        width = self.overview.cell[1]
        self.steps = torch.arange(width, dtype=torch.float32, device=device)
        self.work: Tensor | None = None

    def add(self, tile: Tile) -> None:
        """Add a tile."""
        logits = tile.logits
        if self.work is None or self.work.numel() < logits.numel():
            self.work = torch.empty_like(logits).flatten()
        weights = torch.exp(logits, out=self.work[: logits.numel()].view_as(logits))
        rows = slice(tile.rows, tile.rows + len(weights))
        per_query = self.overview.per_query
        per_query.entropy[tile.item, tile.head, rows] -= torch.linalg.vecdot(weights, logits)
        if tile.columns < FIRST:
            per_query.first[tile.item, tile.head, rows] += weights[:, : FIRST - tile.columns].sum(-1)
        cells = weights.view(len(weights), -1, self.overview.cell[1])
        self._add_cells(tile, cells, rows)
        self._add_keys(tile, weights)

    def _add_cells(self, tile: Tile, cells: Tensor, rows: slice) -> None:
        """Add what depends on the sum, the first moment and the maximum of each row in each cell."""
        overview, (height, width) = self.overview, self.overview.cell
        where = (tile.item, tile.head)
        mass, largest = cells.sum(-1), cells.amax(-1)
        count, first = cells.shape[1], tile.columns // width
        down = torch.arange(rows.start, rows.stop, device=mass.device) // height
        across = slice(first, first + count)
        overview.mass[where][:, across].index_add_(0, down, mass)
        overview.largest[where][:, across].scatter_reduce_(0, down[:, None].expand_as(largest), largest, "amax")
        self.sums[tile.item, tile.head, rows] += mass.sum(-1)
        self._add_distance(tile, cells, mass, rows)
        best, cell = largest.max(-1)
        inside = cells.gather(1, cell[:, None, None].expand(-1, 1, width)).squeeze(1).argmax(-1)
        place = (tile.columns + cell * width + inside).to(torch.int32)
        so_far = overview.per_query.largest[where][rows]
        better = best > so_far
        overview.per_query.where[where][rows] = torch.where(better, place, overview.per_query.where[where][rows])
        overview.per_query.largest[where][rows] = torch.maximum(so_far, best)

    def _add_distance(self, tile: Tile, cells: Tensor, mass: Tensor, rows: slice) -> None:
        """Add Σ weight · |distance|, which is |mass · (query − start) − moment| in a cell that does not contain the query.

        In the cell that contains the query it is summed key by key.
        """
        width = self.overview.cell[1]
        moment = torch.mv(cells.reshape(-1, width), self.steps).view_as(mass)
        start = tile.columns + width * torch.arange(mass.shape[1], dtype=torch.float32, device=mass.device)
        shift = float(self.shift if isinstance(self.shift, int) else self.shift[tile.item])
        query = torch.arange(rows.start, rows.stop, dtype=torch.float32, device=mass.device)[:, None] + shift
        distance = (mass * (query - start) - moment).abs_()
        if not self.one_sided:
            own = ((query - tile.columns) / width).floor().long()
            inside = (own >= 0) & (own < mass.shape[1])
            own = own.clamp(0, mass.shape[1] - 1)
            weights = cells.gather(1, own[:, :, None].expand(-1, 1, width)).squeeze(1)
            exactly = (weights * (query - start[own] - self.steps).abs()).sum(-1, keepdim=True)
            distance.scatter_(1, own, torch.where(inside, exactly, distance.gather(1, own)))
        self.overview.per_query.distance[tile.item, tile.head, rows] += distance.sum(-1)

    def _add_keys(self, tile: Tile, weights: Tensor) -> None:
        """Add the statistics of keys."""
        per_key = self.overview.per_key
        stop = min(tile.columns + weights.shape[1], self.keys)
        where, columns = (tile.item, tile.head), slice(tile.columns, stop)
        if stop - tile.columns < weights.shape[1]:
            weights = weights[:, : stop - tile.columns].contiguous()
        per_key.received[where][columns] += weights.sum(0)
        largest, source = per_key.largest[where][columns], per_key.source[where][columns]
        if weights.is_cuda or len(weights) % GROUP:
            best, row = weights.max(0)
            source.copy_(torch.where(best > largest, row.to(torch.int32) + tile.rows, source))
        else:
            # In later tiles few keys reach a new maximum. Searching only for these, first among groups of rows and then
            # within one group, saves most of the time.
            groups = weights.view(-1, GROUP, weights.shape[1])
            by_group = groups.amax(1)
            best = by_group.amax(0)
            better = (best > largest).nonzero()[:, 0]
            if better.numel():
                group = by_group[:, better].argmax(0)
                inside = groups[group, :, better].argmax(-1)
                source[better] = (tile.rows + group * GROUP + inside).to(torch.int32)
        torch.maximum(largest, best, out=largest)


def overview_of(record: AttentionRecord, heads: Selection, cells: int) -> Overview:
    """The overview of these heads, by kernels if possible, else by tiles. Its check is added to the record."""
    rows = checked_rows(record.shape[2])
    packed = packed_overview(record, heads, cells, rows)
    if packed is not None:
        error, log_error, largest = packed.numbers.unbind()
        record.check.add(error, log_error)
        record.check.allowed = Rounding(largest, record.running.rounding_factor(record.shape[3], single=True))
        record.check.against += f"{at_rows(rows)}; all row sums"
        return packed.overview
    record.check.allowed = _rounding(record)
    found = overview_by_kernel(record, heads, cells)
    if found is not None:
        before = copy(record.check)
        check(record, found.overview, found.sums, heads, rows)
        if agrees_at_first(record, found.proof):
            prove_packed(record, heads, cells, rows, found.overview)
            return found.overview
        record.check = before
    overview, sums = _by_tiles(record, heads, cells)
    normalized = isinstance(record.running.weights, AttentionScores)
    check(record, overview, sums, heads, rows, normalized)
    return overview


def _rounding(record: AttentionRecord) -> Rounding | None:
    """The error that rounding may cause. In float32, a weight exp(score − logsumexp) is as inexact as these two numbers."""
    running = record.running
    allowed, total = running.rounding(record.shape[3], single=True), running.logsumexp
    if allowed is None or total is None or total.is_cuda or total.dtype is torch.float64 or not total.numel():
        return allowed  # on a GPU, reading the logsumexp would synchronize; products in TF32 have more rounding, anyway
    size = torch.where(total.isfinite(), total, 0.0).abs().amax().clamp_max(COARSE)
    return replace(allowed, times=allowed.times + 4 * 2.0**-23 * float(size))


@functools.lru_cache(64)
def checked_rows(queries: int) -> tuple[int, ...]:
    """Random rows that are computed in full, the same ones for each number of queries."""
    chosen = torch.randperm(queries, generator=torch.Generator().manual_seed(queries))[:CHECKED]
    return tuple(chosen.sort().values.tolist())


def _by_tiles(record: AttentionRecord, heads: Selection, cells: int) -> tuple[Overview, Tensor]:
    """The overview by tiles, and the sums of its rows, ``(batch, heads, queries)``."""
    running, (batch, count, queries, keys) = record.running, record.shape
    numbers, scores = torch.arange(count)[heads].tolist(), running.weights
    add = Accumulator(record, len(numbers), cells)
    if not isinstance(scores, AttentionScores):
        from_weights(record, on_device(heads, running.device), add)
        return add.overview, add.sums
    places = [(item, place, head) for item in range(batch) for place, head in enumerate(numbers)]

    def one(where: tuple[int, int, int]) -> None:
        alone = copy(add)  # shares the overview, but has its own working memory
        with torch.no_grad():
            for tile in stream(scores, *where, running.logsumexp, add.overview.cell[1]):
                alone.add(tile)

    large = queries * keys >= 4 * TILE and running.device.type == "cpu"
    each_in_a_thread(one, places, threads=torch.get_num_threads() if large else 1)
    return add.overview, add.sums


def stream(
    scores: AttentionScores, item: int, place: int, head: int, logsumexp: Tensor | None, width: int
) -> Iterator[Tile]:
    """The tiles of one head. Their columns are whole cells of ``width`` keys. The next tile reuses the memory of the last.

    Args:
        item, head: the indices of the sample and of the head.
        place: the index of the head in the overview.
        logsumexp: ``(batch, heads, queries)``, as the kernel returned it. If it is None or too coarse it is computed here. Then
            a tile has all keys that its rows may see.
        width: the number of keys of a cell.
    """
    _, _, queries, keys = scores.shape
    tile = TILE_CUDA if scores.query.is_cuda else TILE
    in_parts = logsumexp is not None and not _any_coarse(logsumexp[item, head])
    height = ROWS if in_parts else max(1, min(ROWS, 8 * tile // max(1, keys)))
    source = _PlainHead(scores, item, head) if scores.is_plain else _Head(scores, item, head)
    for start in range(0, queries, height):
        stop = min(start + height, queries)
        first, last = scores.reach(start, stop)
        first -= first % width
        step = max(width, tile // (stop - start) // width * width) if in_parts else max(1, last)
        total = None if logsumexp is None else exact(logsumexp[item, head, start:stop, None])
        for left in range(first, last, step):
            found = source((start, stop), (left, min(left + step, last)))
            if total is None or not in_parts:
                found, total = _from_largest(found, total)
            logits = _logits(found, total, width)
            yield Tile(item, place, start, left, logits if scores.is_plain else logits.clamp_(min=MASKED))


class _Head:
    """Computes the scores of one head, tile by tile; −∞ for masked keys."""

    def __init__(self, scores: AttentionScores, item: int, head: int) -> None:
        self.scores, self.where = scores, (slice(head, head + 1), slice(item, item + 1))

    def __call__(self, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        heads, batch = self.where
        return self.scores.scores(slice(*rows), heads, slice(*columns), batch)[0, 0]


class _PlainHead:
    """As :class:`_Head` for scores that only a band masks, with ``MASKED``: one product, and a mask at the band's edges."""

    def __init__(self, scores: AttentionScores, item: int, head: int) -> None:
        group = scores.shape[1] // scores.key.shape[1]
        self.band = scores.band
        self.query = exact(scores.query[item, head]) * scores.scale
        self.key = exact(scores.key[item, head // group])
        self.work = self.query.new_empty(0)

    def __call__(self, rows: tuple[int, int], columns: tuple[int, int]) -> Tensor:
        shape = rows[1] - rows[0], columns[1] - columns[0]
        if self.work.numel() < shape[0] * shape[1]:
            self.work = self.query.new_empty(shape[0] * shape[1])
        found = self.work[: shape[0] * shape[1]].view(shape)
        torch.mm(self.query[slice(*rows)], self.key[slice(*columns)].T, out=found)
        return found if self.band is None else self.band.hide(found, rows, columns, MASKED)


def _any_coarse(logsumexp: Tensor) -> bool:
    """Whether a row's logsumexp is too large to be precise, see ``COARSE``."""
    return bool(((logsumexp.abs() > COARSE) & logsumexp.isfinite()).any())


def _from_largest(found: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor]:
    """Subtract the largest score of each row from the scores and from the logsumexp, so that rounding matters little.

    The rows must be complete. Then also rows whose scores are all −10⁹, for example, have exact weights.
    """
    largest = found.amax(-1, keepdim=True)
    found = _less(found, largest)
    own = torch.logsumexp(found, -1, keepdim=True)
    return found, own if total is None else torch.where(total.abs() > COARSE, own, total - largest)


def _logits(found: Tensor, total: Tensor, width: int) -> Tensor:
    """Scores minus the logsumexp of their rows, in float32, padded to a whole number of cells."""
    found = _less(found, total).float()
    gap = -found.shape[1] % width
    return torch.nn.functional.pad(found, (0, gap), value=MASKED) if gap else found


def _less(found: Tensor, number: Tensor) -> Tensor:
    """Scores minus one number for each row. Rows without keys are left unchanged."""
    return found.sub_(torch.where(number.isfinite() & (number != MASKED), number, 0.0))


def from_weights(record: AttentionRecord, heads: Selection, add: Accumulator) -> None:
    """Add the tiles of attention that gives weights but no scores: written by hand, or declared by a layer."""
    _, _, queries, keys = record.shape
    width = add.overview.cell[1]
    height = max(1, min(ROWS, TILE // max(1, keys)))
    for start in range(0, queries, height):
        rows = slice(start, min(start + height, queries))
        weights = record.running.weights(rows, heads)[0].float()
        if weights.numel() and float(weights.amin()) < 0:
            raise ValueError("an overview is of weights that are not negative")
        logits = torch.nn.functional.pad(weights, (0, -keys % width)).log_().clamp_(min=MASKED)
        for item in range(record.shape[0]):
            for head in range(logits.shape[1]):
                add.add(Tile(item, head, start, 0, logits[min(item, len(logits) - 1), head]))
