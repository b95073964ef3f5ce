"""Attention that is normalized after its product: ``(a @ v) / a.sum(-1, keepdim=True)``. The map is a divided likewise."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.maps._seen import unreadable
from regard.maps.sources._softmax import DIVISIONS, Tracker, sums_to_one
from regard.maps.sources._traces import Product


def normalized_after(tracker: Tracker, name: str, args: tuple[Any, ...], out: Any) -> Product | None:
    """The attention that this division (or multiplication) of each row of a product completes, if it does."""
    factors = args[:1] if name in DIVISIONS else args[:2]
    found = ((index, trace) for index, x in enumerate(factors) if (trace := tracker.get(x)) is not None)
    index, trace = next(found, (0, None))
    product = None if trace is None else trace.numerator
    if trace is None or product is None or len(args) < 2:
        return None
    scale = args[1 - index]
    if not isinstance(scale, Tensor) or not isinstance(out, Tensor) or out.shape != args[index].shape:
        return None
    if unreadable(out) is not None:
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = product.arrange(scale.detach().expand(out.shape))
        if rows.shape[-1] > 1 and rows.stride(-1) != 0:  # not one number for the whole row
            return None
        rows = rows[..., :1] if name not in DIVISIONS else rows[..., :1].reciprocal()
        weights = product.weights.detach() * rows
        normalized = bool((weights >= 0).all()) and sums_to_one(weights, -1)
        if not normalized and product.trace.kind != "exponentials":
            return None
        dropped = None if product.dropped is None else product.dropped.detach() * rows
    form = "softmax" if product.trace.kind == "exponentials" else "normalized"
    of_map = replace(product.trace, kind="weights", form=form, use=trace.use)
    return replace(product, weights=weights, dropped=dropped, trace=of_map)
