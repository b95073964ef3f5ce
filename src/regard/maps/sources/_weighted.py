"""Attention written as a sum: weights times values, summed over the keys, as decoders of recurrent networks do it."""

from typing import Any

from torch import Tensor

from regard.maps.sources._softmax import Tracker, sums_to_one
from regard.maps.sources._traces import Product


def weighted_sum(tracker: Tracker, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """The attention that this call of ``sum`` completes, if it does.

    Of the terms' axes one is the keys (summed), one the width (where weights were stretched), and at most one the
    queries (where values were stretched); without it there is one query.
    """
    terms: Any = args[0] if args else kwargs.get("input")
    trace = tracker.get(terms)
    if trace is None or trace.factors is None or trace.kind != "terms":
        return None
    weights, value = trace.factors
    before = weights if trace.source is None else trace.source  # what entered dropout, where there is dropout
    axes = range(terms.ndim)
    keys = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    keys = keys[0] if isinstance(keys, list | tuple) and len(keys) == 1 else keys
    if not isinstance(keys, int) or isinstance(keys, bool):
        return None
    keys %= terms.ndim
    width = next(i for i in axes if weights.shape[i] < terms.shape[i])
    if keys == width or value.shape[keys] != terms.shape[keys] or not sums_to_one(before, keys):
        return None
    stretched = [i for i in axes if value.shape[i] < terms.shape[i]]
    query = stretched[-1:]  # other axes along which values are stretched are heads that share them
    lead = [i for i in axes if i not in (keys, width, *query)]

    def as_map(x: Tensor) -> Tensor:
        x = x.permute(*lead, *query, keys, width).squeeze(-1)
        return x if query else x.unsqueeze(-2)

    values = value.permute(*lead, *query, keys, width)
    values = values.squeeze(len(lead)) if query else values
    keepdim = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))

    def arrange(out: Tensor) -> Tensor:
        out = out if keepdim else out.unsqueeze(keys)
        out = out.permute(*lead, *query, keys, width)
        return out.squeeze(-2) if query else out

    def restore(rows: Tensor) -> Tensor:
        rows = rows.unsqueeze(-2) if query else rows
        order = [*lead, *query, keys, width]
        rows = rows.permute([order.index(i) for i in axes])
        return rows if keepdim else rows.squeeze(keys)

    found = as_map(before)
    dropped = None if trace.source is None else as_map(weights)
    return Product(found, dropped, values, tuple(found.shape), trace, arrange, restore)
