"""Statistics of each head: structure, entropy, distance and locality."""

import math
from typing import Any

import torch
from torch import Tensor

MOST_ROWS = 256  # rows of a long map; enough for statistics that choose a head
EVEN = 0.05  # bits; a head below this counts as uniform


def statistics(
    weights: Tensor, visible: Tensor, mask: Tensor | None, positions: Tensor | None = None
) -> dict[str, list[float | None]]:
    """Statistics by name, each a list over heads. ``positions`` is ``(tokens, axes)``, NaN where unknown.

    - structure: mean KL(row ‖ uniform) − KL(mean row ‖ mean uniform), in bits. Without a mask that is the mutual
      information of query and key. It is 0 for uniform attention and if all queries look at one key.
    - surprise: mean KL(row ‖ uniform), in bits.
    - entropy: mean over rows, as a share of the entropy of uniform attention.
    - distance: mean distance from query to key, weighted by attention, in tokens (or patches).
    - locality: the share of the weight on the query itself and its neighbors.

    >>> weights = torch.stack([torch.eye(4), torch.full((4, 4), 0.25)])
    >>> statistics(weights, torch.full((4,), 4), None)["structure"]
    [2.0, 0.0]
    """
    step = math.ceil(weights.shape[1] / MOST_ROWS)
    rows, n = weights[:, ::step].abs(), visible[::step].double()
    share = rows / rows.sum(-1, keepdim=True).clamp_min(1e-30)
    entropy = torch.special.entr(share).sum(-1).double()  # (heads, rows), in nats
    surprise = (n.log() - entropy).clamp_min(0).mean(-1)
    even = (torch.ones_like(share[0]) if mask is None else mask[::step].to(share.dtype)) / n[:, None]
    common, expected = share.mean(1).double(), even.mean(0)
    shared = (common * (common.clamp_min(1e-30) / expected.clamp_min(1e-30)).log()).sum(-1)
    several = n > 1
    spread = (
        (entropy / n.log().clamp_min(1e-30))[:, several].mean(-1) if bool(several.any()) else torch.ones_like(surprise)
    )
    found: dict[str, Tensor | None] = {
        "structure": (surprise - shared).clamp_min(0) / math.log(2),
        "surprise": surprise / math.log(2),
        "entropy": spread,
        "distance": None,
        "locality": None,
    }
    if positions is not None and len(positions) == weights.shape[1] == weights.shape[2]:
        apart = (positions[::step, None] - positions[None]).float()
        known = ~apart.isnan().any(-1)
        apart = apart.nan_to_num()
        inside = (share * known).sum((1, 2)).clamp_min(1e-30)
        found["distance"] = (share * apart.norm(dim=-1)).sum((1, 2)) / inside
        found["locality"] = (share * (known & (apart.abs().amax(-1) <= 1))).sum((1, 2)) / inside
    none: list[float | None] = [None] * len(weights)
    return {name: none if each is None else _rounded(each) for name, each in found.items()}


CLEAR = 0.5  # a pattern must hold this share of the weight, averaged over queries


def patterns(weights: Tensor, surprise: list[float | None], positions: Tensor | None = None) -> list[str]:
    """The pattern of each head: the one that holds most of its weight, if that is at least half of it.

    ``"itself"``, ``"previous"``, ``"next"`` and ``"neighbors"`` (also of a grid) are relative to the query, ``"first"`` and
    ``"one key"`` mean that all queries look at that key; ``"uniform"`` and ``"other"`` are the rest.

    >>> weights = torch.stack([torch.eye(4), torch.eye(4).roll(-1, 1), torch.full((4, 4), 0.25)])
    >>> patterns(weights, [2.0, 2.0, 0.0], torch.arange(4.0)[:, None])
    ['itself', 'previous', 'uniform']
    """
    heads, queries, keys = weights.shape
    step = math.ceil(queries / MOST_ROWS)
    rows = weights[:, ::step].abs()
    share = rows / rows.sum(-1, keepdim=True).clamp_min(1e-30)
    scores = _relative_patterns(share, step, positions) if positions is not None and queries == keys > 2 else {}
    if share.shape[1] > 1:
        common = share.mean(1)
        scores["first"] = common[:, 0]
        scores["one key"] = common[:, 1:].amax(-1) if keys > 1 else torch.zeros(heads)
    found = []
    for head in range(heads):
        clear = {name: float(each[head]) for name, each in scores.items() if float(each[head]) >= CLEAR}
        if (surprise[head] or 0.0) <= EVEN:
            found.append("uniform")
        else:
            found.append(max(clear, key=lambda name: clear[name]) if clear else "other")
    return found


def _relative_patterns(share: Tensor, step: int, positions: Tensor) -> dict[str, Tensor]:
    """The weight at fixed offsets from the query, ``(heads,)`` each, averaged over the queries that have such a key."""
    apart = (positions[None] - positions[::step, None]).float()  # (rows, keys, axes), NaN for prefix tokens

    def mean(mask: Tensor) -> Tensor:
        rows = mask.any(-1)
        return (share * mask).sum(-1)[:, rows].mean(-1) if bool(rows.any()) else torch.zeros(len(share))

    scores = {"itself": mean((apart == 0).all(-1))}
    if positions.shape[1] == 1:
        scores |= {"previous": mean(apart[..., 0] == -1), "next": mean(apart[..., 0] == 1)}
    near = (apart.abs().amax(-1) <= 1) & ~(apart == 0).all(-1)
    largest = torch.stack(list(scores.values())).amax(0)
    # "neighbors" counts only if no single neighbor is the pattern.
    scores["neighbors"] = torch.where(largest >= CLEAR, torch.zeros(len(share)), mean(near))
    return scores


def _rounded(values: Tensor) -> list[float | None]:
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values.tolist()]


def token_positions(count: int, grid: list[int] | None, prefix: int) -> Tensor:
    """Where each token lies, ``(count, axes)``: on its grid, or else in its sequence; NaN for prefix tokens.

    >>> token_positions(5, [2, 2], 1)[:, 0].tolist()
    [nan, 0.0, 0.0, 1.0, 1.0]
    """
    if grid is None or math.prod(grid) + prefix != count:
        return torch.arange(count, dtype=torch.float32)[:, None]
    places = torch.cartesian_prod(*(torch.arange(side, dtype=torch.float32) for side in grid)).reshape(-1, len(grid))
    return torch.cat([torch.full((prefix, len(grid)), math.nan), places])


def opening(layers: list[dict[str, Any]]) -> dict[str, Any]:
    """The head that a view shows first, and why: the most structured one, or if all rows are equal the least uniform one.

    >>> opening([{"name": "a", "heads": [0, 1], "statistics": {"structure": [0.1, 2.0], "surprise": [1.0, 2.0]}}])
    {'layer': 0, 'head': 1, 'why': 'the most structured head: what it looks at depends most on the query (2.0 bits)'}
    """
    for name, why in (
        ("structure", "the most structured head: what it looks at depends most on the query"),
        ("surprise", "the head furthest from uniform attention"),
    ):
        score, layer, head = max(
            (value or 0.0, -number, -head)
            for number, about in enumerate(layers)
            for head, value in enumerate(about["statistics"][name])
        )
        if score > EVEN:
            return {"layer": -layer, "head": -head, "why": f"{why} ({score:.1f} bits)"}
    return {"layer": len(layers) - 1, "head": 0, "why": "the last layer's first head: all heads are nearly uniform"}
