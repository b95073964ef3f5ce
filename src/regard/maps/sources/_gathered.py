"""Gathered attention: each query has its own keys and values (deformable, neighborhood and other attention).

Such a layer computes a separate attention with a single query for each query. Here these become the rows of one map.
"""

from dataclasses import replace

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps.tokens._axes import AxisReading
from regard.maps.weights._attention_scores import Selection


def as_read(record: AttentionRecord, reading: AxisReading) -> AttentionRecord:
    """The record of tensors that were arranged as ``reading.without_queries``, with what the reading says beyond that."""
    record = _gathered(record, reading.query_count) if reading.queries else record
    record.running.folded = reading.is_folded
    return record


def _gathered(record: AttentionRecord, queries: int) -> AttentionRecord:
    """A record of shape ``(batch, heads, queries, keys)`` from one of shape ``(batch · queries, heads, 1, keys)``."""
    inner = record.running
    _, count, _, keys = record.shape

    def together(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, queries)).transpose(1, 2).squeeze(3)

    def apart(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1).unsqueeze(2)

    def weights(rows: Selection, heads: Selection) -> tuple[Tensor, None]:
        return together(inner.weights(slice(None), heads)[0])[:, :, rows], None

    def compare(built: Tensor, rows: Selection, heads: Selection) -> Tensor:
        whole = together(inner.weights(slice(None), heads)[0])
        whole[:, :, rows] = built
        error = inner.error(apart(whole), slice(None), heads)
        return torch.zeros(()) if error is None else error

    restore = inner.restore
    return replace(
        record,
        shape=(record.shape[0] // queries, count, queries, keys),
        computation=replace(
            inner,
            weights=weights,
            output=None if inner.output is None else together(inner.output),
            value=None,
            expected=None,
            compare=compare,
            compared=inner.value,
            logsumexp=None,
            restore=None if restore is None else (lambda new: restore(apart(new))),
        ),
    )
