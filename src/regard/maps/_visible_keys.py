"""How many keys a query may see. Views compare weights with 1 / this number, which uniform attention would give."""

from collections.abc import Sequence

import torch
from torch import Tensor


def visible_keys(
    weights: Tensor, kind: str = "given", rows: Sequence[int] | None = None, asked: int | None = None
) -> tuple[Tensor, Tensor | None]:
    """How many keys each query may see, ``(queries,)``, and a mask of them, ``(queries, keys)``; None if it sees all.

    Masks are not recorded, so they are inferred from zeros: an empty upper triangle is a causal mask, zeros that all heads share
    are a mask, and a key without any weight is padding, unless all weight is on one key: that is a head, not a mask. A
    Gaussian head has no mask: its weights underflow far away.

    Args:
        rows: the numbers of the queries, if they are some of the ``asked`` that the map has.

    >>> visible_keys(torch.full((2, 3, 3), 1 / 3).tril())[0].tolist()
    [1, 2, 3]
    >>> visible_keys(torch.full((2, 3, 3), 1 / 3).tril()[:, [0, 2]], rows=[0, 2], asked=3)[0].tolist()
    [1, 3]
    """
    _, queries, keys = weights.shape
    whole = torch.full((queries,), keys, dtype=torch.int32)
    if kind == "gaussian":
        return whole, None
    seen = weights != 0
    some, before = seen.any(0), _before(queries, keys, rows, asked, weights.device)
    used = some.any(0)
    used = used if int(used.sum()) > 1 else torch.ones_like(used)
    if before is not None and not bool((some & ~before).any()):
        mask = before & used
    elif len(weights) > 1 and bool((seen.all(0) == some).all()) and float(some.sum(-1).float().mean()) >= 2:
        mask = some
    else:
        mask = used.expand(queries, keys)
    if bool(mask.all()) or not bool(mask.any()):
        return whole, None
    return mask.sum(-1).clamp_min(1).to(torch.int32), mask


def _before(
    queries: int, keys: int, rows: Sequence[int] | None, asked: int | None, device: torch.device
) -> Tensor | None:
    """The keys that a causal mask lets each query see, ``(queries, keys)``; None if there is no telling."""
    whole = queries if rows is None else asked
    if whole is None or whole < 2 or keys < whole:
        return None
    numbers = torch.arange(queries, device=device) if rows is None else torch.tensor(list(rows), device=device)
    return torch.arange(keys, device=device) <= numbers[:, None] + (keys - whole)
