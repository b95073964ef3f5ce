"""Known patterns of heads: the keys to which each query attends."""

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.maps import Layout

PATTERNS = ("previous", "first", "duplicate", "induction", "local")
ALIASES = {"previous token": "previous", "first token": "first", "sink": "first", "duplicate token": "duplicate"}
NEEDS_IDS = ("duplicate", "induction")


@dataclass(frozen=True)
class Kept:
    """The keys that each query may see, ``(batch or 1, queries, keys)``, as ones and zeros."""

    mask: Tensor
    batch: int
    causal: bool

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.batch, self.mask.shape[1], self.mask.shape[2]

    @property
    def tokens(self) -> Tensor:
        """Whether each key is no padding, ``(batch or 1, keys)``."""
        return self.mask.amax(1) > 0


def kept_keys(weights: Tensor, keep: Tensor | None) -> Kept:
    """The keys of a map ``(batch, heads, queries, keys)``: those before the query if it is causal, without padding."""
    batch, _, queries, keys = weights.shape
    seen = torch.ones(queries, keys, dtype=torch.bool, device=weights.device)
    if keep is not None:
        if tuple(keep.shape) != (batch, keys):
            raise ValueError(f"keep has shape {tuple(keep.shape)}, but the maps have ({batch}, {keys}) (batch, keys)")
        keep = keep.to(weights.device)
        if queries == keys:  # what padding attends to says nothing: often to all keys, where it may see none
            weights = weights.masked_fill(~keep[:, None, :, None], 0)
    causal = queries == keys > 1 and not bool(weights.triu(1).any())
    mask = (seen.tril() if causal else seen)[None]
    if keep is not None:
        mask = mask & keep[:, None, :]
    return Kept(mask.to(weights.dtype), batch, causal)


@dataclass(frozen=True)
class PatternKeys:
    """A pattern, ``(batch or 1, queries, keys)``: keys that count (boolean), or weights to compare with."""

    weights: Tensor
    boolean: bool = True

    def overlap(self, weights: Tensor) -> Tensor:
        """``(batch, heads, queries)``: the weight on the keys that count, or Σ min(A, P)."""
        pattern = self.weights[:, None].to(weights.dtype)
        return (weights * pattern if self.boolean else torch.minimum(weights, pattern)).sum(-1)


@dataclass(frozen=True)
class Pattern:
    """A pattern by its name, with what it needs."""

    name: str
    ids: Tensor | None = None
    radius: int = 2
    layout: Layout | None = None


def named_pattern(pattern: Pattern, kept: Kept) -> PatternKeys:
    """The keys of one of the :data:`PATTERNS`. Queries that see no other keys are not counted.

    >>> kept = kept_keys(torch.ones(1, 1, 4, 4).tril(), None)
    >>> named_pattern(Pattern("induction", torch.tensor([5, 7, 5, 7])), kept).weights[0].int().tolist()
    [[0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]
    """
    batch, queries, keys = kept.shape
    asked, read = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    if pattern.name == "previous":
        chosen = (read == asked - 1)[None]
    elif pattern.name == "first":
        # Padding may come before the first token.
        first = kept.tokens.to(torch.uint8).argmax(-1).cpu()[:, None, None]
        chosen = (read == first) & (asked > first)
    elif pattern.name == "local":
        chosen = _local(pattern, keys)[None]
    else:
        chosen = _same_token(pattern, batch, keys)
        if pattern.name == "induction":
            # An earlier token of the same kind, and the one after it.
            chosen = (chosen & (read < asked)).roll(1, -1) & (read > 0) & (read != asked)
        elif kept.causal:
            chosen = chosen & (read < asked)
    return PatternKeys(chosen.to(torch.float64))


def _same_token(pattern: Pattern, batch: int, keys: int) -> Tensor:
    ids = pattern.ids
    if ids is None:
        raise ValueError(f"ids is needed to find {pattern.name!r} heads")
    ids = (ids[None] if ids.ndim == 1 else ids).cpu()
    if ids.shape[0] not in (1, batch) or ids.shape[1] != keys:
        raise ValueError(
            f"ids has shape {tuple(ids.shape)}, but the maps attend over ({batch}, {keys}) (batch, tokens)"
        )
    same = ids[:, :, None] == ids[:, None, :]
    return same & ~torch.eye(keys, dtype=torch.bool)


def _local(pattern: Pattern, keys: int) -> Tensor:
    """Tokens at most ``radius`` away along each axis; prefix tokens have no position."""
    layout = pattern.layout
    if layout is None or layout.tokens != keys:
        layout = Layout((keys,), 0)
    places = torch.cartesian_prod(*(torch.arange(n) for n in layout.grid)).reshape(-1, len(layout.grid))
    near = (places[:, None] - places[None]).abs().amax(-1) <= pattern.radius
    whole = torch.zeros(keys, keys, dtype=torch.bool)
    whole[layout.prefix :, layout.prefix :] = near
    return whole
