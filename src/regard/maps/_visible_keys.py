"""How many keys a query may see. Views compare weights with 1 / this number, which uniform attention would give."""

import torch
from torch import Tensor


def visible_keys(weights: Tensor, kind: str = "given") -> tuple[Tensor, Tensor | None]:
    """How many keys each query may see, ``(queries,)``, and a mask of them, ``(queries, keys)``; None if it sees all.

    Masks are not recorded, so they are inferred from zeros: an empty upper triangle is a causal mask, zeros that all heads share
    are a mask, and a key without any weight is padding. A Gaussian head has no mask: its weights underflow far away.

    >>> visible_keys(torch.full((2, 3, 3), 1 / 3).tril())[0].tolist()
    [1, 2, 3]
    """
    _, queries, keys = weights.shape
    whole = torch.full((queries,), keys, dtype=torch.int32)
    if kind == "gaussian":
        return whole, None
    seen = weights != 0
    some, offset = seen.any(0), keys - queries
    if queries > 1 and offset >= 0 and not bool(some.triu(offset + 1).any()):
        mask = torch.ones_like(some).tril(offset) & some.any(0)
    elif len(weights) > 1 and bool((seen.all(0) == some).all()) and float(some.sum(-1).float().mean()) >= 2:
        mask = some
    else:
        mask = some.any(0).expand(queries, keys)
    if bool(mask.all()) or not bool(mask.any()):
        return whole, None
    return mask.sum(-1).clamp_min(1).to(torch.int32), mask
