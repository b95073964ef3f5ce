"""Weights as exp(scores − logsumexp), with the logsumexp that the model's kernel returned.

This saves the search for the largest score of each row. Rows sum to one if the logsumexp is right, so the sums are a
check of it. Rows are divided by their sums, so that the weights are those of the softmax in any case.
"""

import math
from typing import TypeGuard

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps.weights._attention_scores import AttentionScores, Selection, exact
from regard.maps.weights._band import Band


def is_precise(total: Tensor | None, query: Tensor) -> TypeGuard[Tensor]:
    """Whether a kernel returned a logsumexp on a CPU, in the dtype in which maps are computed."""
    return total is not None and total.device.type == "cpu" and total.dtype == exact(query[:0]).dtype


def weights_at_once(record: AttentionRecord, rows: Selection, dtype: torch.dtype) -> Tensor | None:
    """These rows of all heads, with as few operators as possible, for small maps; None if this way cannot be used."""
    running = record.running
    scores, total, value, expected = running.weights, running.logsumexp, running.value, running.expected_output
    if not isinstance(scores, AttentionScores) or not scores.is_plain or scores.may_be_empty:
        return None
    if not is_precise(total, scores.query) or value is None or expected is None or running.compare is not None:
        return None
    if expected.dtype != value.dtype or value.shape[0] != record.shape[0]:
        return None
    if not isinstance(rows, slice) or rows.step not in (None, 1):
        return None
    span = rows.indices(record.shape[2])[:2]
    if span[1] <= span[0]:
        return None
    weights, error, sums = weights_and_error(
        scores.query, scores.key, value, expected, total, scores.scale, scores.band, span
    )
    record.check.add(error, None)
    record.check.add_sums(sums)
    return weights if weights.dtype is dtype else weights.to(dtype)


def weights_and_error(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    total: Tensor,
    scale: float,
    band: Band | None,
    rows: tuple[int, int],
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights of the queries from ``rows[0]`` to ``rows[1]``, their check, and the sums of their rows.

    Query heads that share a key head become rows of one product: repeating the keys would take memory.

    Args:
        total: the logsumexp, ``(batch, heads, queries)``.

    Returns:
        The weights, max |weights @ value − output|, and the sums of the rows before each row was divided by its sum.
    """
    batch, heads, queries, width = query.shape
    start, stop = rows
    if stop - start < queries:
        query, total, output = query[:, :, start:stop], total[:, :, start:stop], output[:, :, start:stop]
    keys, shared, of_values = key.shape[2], batch * key.shape[1], batch * value.shape[1]
    weights = torch.baddbmm(
        total.reshape(shared, -1, 1),
        exact(query).reshape(shared, -1, width),
        exact(key).reshape(shared, keys, -1).mT,
        beta=-1,
        alpha=scale,
    ).view(batch, heads, stop - start, keys)
    if band is not None:
        band.hide(weights, rows, (0, keys))
    sums = weights.exp_().sum(-1, keepdim=True)
    weights.div_(sums)
    found = torch.baddbmm(
        exact(output).reshape(of_values, -1, value.shape[3]),
        weights.view(of_values, -1, keys),
        exact(value).reshape(of_values, keys, -1),
        beta=-1,
    )
    return weights, torch.linalg.vector_norm(found, math.inf), sums
