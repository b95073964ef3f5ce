"""Checks an overview: against the kernel that the model ran, and its own numbers against each other."""

import math

import torch
from torch import Tensor

from regard.maps._overview import FIRST, Overview
from regard.maps._record import AttentionRecord
from regard.maps._selection import on_device
from regard.maps.weights._attention_scores import Selection, exact, largest_magnitude
from regard.support.tensor_cache import constant


def check(
    record: AttentionRecord,
    overview: Overview,
    sums: Tensor,
    heads: Selection,
    rows: tuple[int, ...],
    normalized: bool = True,
) -> None:
    """Compare an overview with the kernel: every row sums to one, and a few random rows are computed in full.

    Row sums do not show if keys are in a wrong order, so statistics of the rows in full are compared, too. Neither shows if a
    weight was added to a wrong cell or key, so the sums of cells and keys are compared with each other. Differences are
    multiplied by the largest value, because they can change the output by that much.

    Args:
        sums: ``(batch, heads, queries)``, the sums of the rows' weights.
        rows: the rows that are computed in full.
        normalized: whether these sums should be one.
    """
    running, device = record.running, overview.mass.device
    numbers = constant(rows, device)
    weights = record.build(numbers, on_device(heads, device)).float()
    differences = _of_rows(overview, weights, numbers, record)
    differences += _of_sums(overview, sums)
    if normalized:
        # A row without keys sums to zero. Any other sum is exp(our logsumexp − the kernel's).
        differences.append(torch.where(sums == 0, 0.0, sums - 1))
        if running.logsumexp is not None:
            record.check.add(None, torch.where(sums == 0, 0.0, sums.log().abs()).amax())
    like = running.value if running.compared is None else running.compared
    size = torch.ones((), device=device) if like is None or not like.numel() else exact(largest_magnitude(like))
    largest = torch.stack([difference.abs().amax().float() for difference in differences if difference.numel()]).amax()
    record.check.add(largest * size, None)
    record.check.against += at_rows(rows) + ("; all row sums" if normalized else "")


def at_rows(rows: tuple[int, ...]) -> str:
    """What a residual was compared at, for readers.

    >>> at_rows((0,)), at_rows((1, 5))
    (', at 1 random row', ', at 2 random rows')
    """
    return f", at {len(rows)} random row{'' if len(rows) == 1 else 's'}"


def _of_rows(overview: Overview, weights: Tensor, rows: Tensor, record: AttentionRecord) -> list[Tensor]:
    """How statistics of the overview differ from those of complete rows ``(batch, heads, rows, keys)``."""
    queries, keys = record.shape[2:]
    query, key = overview.per_query, overview.per_key
    parts = {"entropy": max(1.0, math.log(max(2, keys))), "distance": max(1, queries, keys)}
    found = statistics(weights, rows, record.shift, queries)
    differences = [getattr(query, name)[:, :, rows] / parts.get(name, 1) - value for name, value in found.items()]
    weights = weights.expand(len(query.where), -1, -1, -1)  # all samples may share one map
    there = weights.gather(-1, query.where[:, :, rows].long().clamp_min(0).unsqueeze(-1)).squeeze(-1)
    # No key receives less than from some of the queries.
    less = [(weights.sum(2) - key.received).clamp_min(0.0), (weights.amax(2) - key.largest).clamp_min(0.0)]
    return [*differences, there - found["largest"], *less]


def _of_sums(overview: Overview, sums: Tensor) -> list[Tensor]:
    """How the masses of cells differ from the sums of their rows and of their keys, relative to these; the same for maxima."""
    query, key = overview.per_query, overview.per_key
    (height, width), mass, largest = overview.cell, overview.mass, overview.largest
    pairs = [
        (mass.sum(-1), _pooled(sums, height).sum(-1)),
        (mass.sum(-2), _pooled(key.received, width).sum(-1)),
        (largest.amax(-1), _pooled(query.largest, height).amax(-1)),
        (largest.amax(-2), _pooled(key.largest, width).amax(-1)),
    ]
    return [(found - expected) / (1 + expected) for found, expected in pairs]


def _pooled(x: Tensor, size: int) -> Tensor:
    """Values of every token as ``(…, cells, size)``; the last cell is filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % size)).unflatten(-1, (-1, size))


def statistics(weights: Tensor, rows: Tensor, shift: int | Tensor, queries: int) -> dict[str, Tensor]:
    """The statistics of complete rows ``(batch, heads, rows, keys)``, to compare with those from tiles.

    Entropies and distances are divided by their largest possible values, so that all errors have the same scale.
    """
    keys = weights.shape[-1]
    shift = shift if isinstance(shift, int) else shift.to(rows.device)[:, None, None, None]
    away = (torch.arange(keys, device=rows.device) - (rows[:, None] + shift)).abs()
    return {
        "entropy": torch.special.entr(weights).sum(-1) / max(1.0, math.log(max(2, keys))),
        "first": weights[..., :FIRST].sum(-1),
        "distance": (weights * away).sum(-1) / max(1, queries, keys),
        "largest": weights.amax(-1),
    }
