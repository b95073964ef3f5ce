"""Builds whole maps on a CPU in tiles that fit into its cache.

Scores, softmax and check of a tile are computed while the tile is in the cache. So the map goes to memory only once.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord, Check, difference
from regard.maps.weights._attention_scores import AttentionScores, Selection, exact, is_all, product_error, weights_of
from regard.maps.weights._threads import each_in_a_thread

TILE = 2**19  # scores of a tile: they fit into the cache of one core
LARGE = 2**23  # scores of a map from which on each core computes its own heads
LONG, LOW = 1024, 256  # keys from which on a row is long, and rows of a tile for long causal rows


def fits_tiles(record: AttentionRecord, rows: Selection, heads: Selection) -> bool:
    """Whether :func:`in_tiles` can build this map: the whole of it, on a CPU, from scores and values."""
    running = record.running
    plain = isinstance(running.weights, AttentionScores) and running.compare is None and running.value is not None
    return plain and is_all(rows) and is_all(heads) and running.device.type == "cpu" and 0 not in record.shape


def _tile_sizes(scores: AttentionScores, value_heads: int, threads: int, tile: int) -> tuple[int, int, int]:
    """Rows, heads and samples of a tile of about ``tile`` scores.

    With a causal mask and long rows, a tile has fewer rows of more heads: then fewer of its scores are masked.

    >>> from regard.maps.weights._band import Band
    >>> x, y = torch.zeros(1, 8, 2048, 4), torch.zeros(1, 4, 2048, 4)
    >>> plain, causal = AttentionScores(x, y, 1.0), AttentionScores(x, y, 1.0, band=Band(right=0))
    >>> _tile_sizes(plain, 4, 2, TILE), _tile_sizes(causal, 4, 2, TILE)
    ((256, 1, 1), (256, 2, 1))
    """
    batch, count, queries, keys = scores.shape
    height = max(1, min(queries, tile // keys))
    group = max(count // scores.key.shape[1], count // value_heads)
    if scores.band is not None and scores.band.right is not None and keys >= LONG and height >= LOW:
        most = min(count // threads, 2 * tile // (LOW * keys)) // group * group  # twice: rows see half of the keys
        if most > 0:
            parts = math.ceil(count / most)
            return LOW, math.ceil(count / parts / group) * group, 1
    heads = max(1, min(count, tile // (height * keys)))
    items = max(1, min(batch, tile // (height * keys * heads))) if heads == count else 1
    return height, heads, items


def in_tiles(record: AttentionRecord, room: Callable[[int], Tensor]) -> Tensor:
    """The whole map, written to ``room(batch)``. Keys that no row of a tile may see are not computed.

    The comparison with the model's output is added to the record's check.
    """
    running, (batch, count, queries, keys) = record.running, record.shape
    scores, value = running.weights, running.value
    expected = running.expected_output
    if not isinstance(scores, AttentionScores) or value is None or expected is None:
        raise TypeError(f"{record.name!r} is not computed from scores")
    # Convert keys and values once, and make them contiguous, instead of doing it for each tile.
    scores, value = replace(scores, key=exact(scores.key).contiguous()), exact(value).contiguous()
    made = room(batch)
    here = threading.local()
    cores = torch.get_num_threads()
    # For a large map each core computes other heads; for a small one torch splits each operator among the cores.
    threads = cores if made.numel() >= LARGE else 1
    height, heads, items = _tile_sizes(scores, value.shape[1], threads, TILE * cores // threads)

    def one(where: tuple[slice, slice, Check]) -> None:
        part, chosen, check = where
        if not hasattr(here, "work"):  # reused by all tiles of a thread, so that it stays in the cache
            here.work = torch.empty(items * heads * height * keys, dtype=exact(scores.query[:0]).dtype)
        with torch.no_grad():
            for start in range(0, queries, height):
                rows = slice(start, min(start + height, queries))
                columns = scores.seen(rows, chosen, part)
                weights, logsumexp = weights_of(
                    scores.scores(rows, chosen, columns, part, here.work), scores.may_be_empty
                )
                made[part, chosen, rows, columns] = weights
                error = product_error(weights, value[part, :, columns], expected[part], rows, chosen)
                log_error = None
                if running.logsumexp is not None:
                    theirs = running.logsumexp[part, chosen, rows]
                    log_error = difference(logsumexp, theirs, scores.may_be_empty)
                check.add(error, log_error)

    parts = [
        (slice(item, item + items), slice(head, min(head + heads, count)), Check())
        for item in range(0, batch, items)
        for head in range(0, count, heads)
    ]
    each_in_a_thread(one, parts, threads)
    for _, _, check in parts:
        record.check.add(check.error, check.logsumexp_error)
    return made
