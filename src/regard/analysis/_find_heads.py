"""``find_heads``: search for heads that follow a named pattern."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis._head_patterns import (
    ALIASES,
    NEEDS_IDS,
    PATTERNS,
    Kept,
    Pattern,
    PatternKeys,
    kept_keys,
    named_pattern,
)
from regard.analysis._statistics import check_finite, shares
from regard.maps import Map, Maps, check_maps, check_over_tokens
from regard.support.checks import check_choice, check_count, describe
from regard.support.tables import text_table

# Kinds of maps whose rows may have any sum.
_NO_SHARES = ("sigmoid", "difference", "contributions", "composed")

Given = str | Tensor | Map | Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class HeadScore:
    """One head and how well a pattern describes it.

    Attributes:
        name, head: the map and the number of the head in it, as in ``regard.capture`` and ``importance``.
        score: the share of attention on the pattern's keys, averaged over the queries that have such keys.
        chance: the score of a head that attends evenly to all keys it may see.
    """

    name: str
    head: int
    score: float
    chance: float

    @property
    def lift(self) -> float:
        """0 at chance, 1 if the head attends only to the pattern; below 0 if it avoids the pattern."""
        return (self.score - self.chance) / (1 - self.chance) if self.chance < 1 else 0.0


@dataclass(frozen=True)
class FoundHeads:
    """All heads, best match first. Prints as a table.

    Attributes:
        pattern: the pattern that was searched for.
        heads: every head with its score.
        margin: the lift from which a head counts as found.
    """

    pattern: str
    heads: tuple[HeadScore, ...]
    margin: float

    @property
    def found(self) -> tuple[HeadScore, ...]:
        """The heads that are above chance by the margin."""
        return self.above(self.margin)

    def above(self, lift: float) -> tuple[HeadScore, ...]:
        """The heads whose lift is at least this."""
        return tuple(head for head in self.heads if head.lift >= lift)

    def __iter__(self) -> Iterator[HeadScore]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, place: int) -> HeadScore:
        return self.heads[place]

    def table(self, most: int = 10) -> str:
        """The ``most`` best heads as a table."""
        rows = [("head", "score", "chance", "lift", "")]
        for each in self.heads[:most]:
            mark = "found" if each.lift >= self.margin else ""
            rows.append(
                (f"{each.name}[{each.head}]", f"{each.score:.3f}", f"{each.chance:.3f}", f"{each.lift:+.3f}", mark)
            )
        more = len(self.heads) - most
        found = f"{self.pattern}: {len(self.found)} of {len(self.heads)} heads have a lift of {self.margin:g} or more"
        return "\n".join([found, *text_table(rows, right={1, 2, 3}), *([f"… and {more} more"] if more > 0 else [])])

    def __str__(self) -> str:
        return self.table()


def find_heads(
    maps: Maps | Sequence[Map],
    pattern: Given,
    *,
    ids: Tensor | None = None,
    keep: Tensor | None = None,
    radius: int = 2,
    margin: float = 0.25,
) -> FoundHeads:
    r"""Rank all heads by how much they attend to a pattern, compared with a head that attends evenly.

    .. math:: \mathrm{score} = \operatorname{mean}_q \sum_{k \in P(q)} A_{qk}, \qquad
        \mathrm{chance} = \operatorname{mean}_q \frac{|P(q)|}{|K(q)|}, \qquad
        \mathrm{lift} = \frac{\mathrm{score} - \mathrm{chance}}{1 - \mathrm{chance}}

    over the queries whose pattern P(q) has a key among the keys K(q) they may see. Rows of sigmoid attention, of differences,
    products of maps and contributions, which may have any sum, are normalized first, by the sizes of their weights. A head
    counts as found if its lift is ``margin`` or more. There is no p-value, because the rows of one map are not independent
    samples.

    ==================  ==============================================================================================
    ``"previous"``      the token before
    ``"first"``         the first token, a sink
    ``"duplicate"``     other tokens of the same kind (before it, if the map is causal); needs ``ids``
    ``"induction"``     the token after an earlier one of the same kind; needs ``ids``
    ``"local"``         tokens at most ``radius`` away, on the grid if the map has one
    ==================  ==============================================================================================

    Args:
        maps: the result of ``regard.capture``: self-attention with all rows. All calls of a module count.
        pattern: one of these (``"previous token"``, ``"first token"``, ``"sink"`` and ``"duplicate token"`` mean the same);
            a boolean tensor ``(queries, keys)``, with or without a batch; weights of this shape, or a map (the mean of its
            heads), with which a head's score is their overlap Σ min(A, P); or a function of query and key numbers,
            ``(queries, 1)`` and ``(1, keys)``, that returns such a tensor.
        ids: the tokens, ``(batch, tokens)`` or ``(tokens,)``.
        keep: False for padding, ``(batch, keys)``: padding is not a key, and not a query if the tokens attend to each other.
            Causal maps are recognized.
        radius: how far ``"local"`` reaches.
        margin: the lift from which a head counts as found.

    >>> weights = torch.eye(6).roll(-1, 1).tril()[None, None]   # one head that looks at the token before
    >>> from regard.maps import AttentionRecord, Map, Maps
    >>> maps = Maps([Map("attn", [AttentionRecord.given(weights, "attn")])])
    >>> print(regard.find_heads(maps, "previous"))
    previous: 1 of 1 heads have a lift of 0.25 or more
    head     score  chance    lift
    ───────  ─────  ──────  ──────  ─────
    attn[0]  1.000   0.290  +1.000  found
    """
    maps = check_maps(maps)
    check_over_tokens(maps, "find_heads")
    pattern = ALIASES.get(pattern, pattern) if isinstance(pattern, str) else pattern
    _check_options(pattern, ids, keep, radius, margin)
    scores: list[HeadScore] = []
    for name, found in maps.items():
        given = [_score(call.weights, call, pattern, ids, keep, radius) for call in found.calls]
        queries = sum(count for _, _, count in given)
        if not queries:
            raise ValueError(f"no query of {name!r} has a key of the pattern {_name(pattern)!r}")
        score = torch.stack([total for total, _, _ in given]).sum(0) / queries
        chance = sum(each for _, each, _ in given) / queries
        heads = found.latest.heads or range(len(score))
        scores += [HeadScore(name, head, x, chance) for head, x in zip(heads, score.tolist(), strict=True)]
    if not scores:
        raise ValueError("maps is empty: find_heads needs one map at least")
    return FoundHeads(_name(pattern), tuple(sorted(scores, key=lambda each: -each.lift)), margin)


def _score(
    weights: Float[Tensor, "batch heads queries keys"],
    call: Any,
    pattern: Given,
    ids: Tensor | None,
    keep: Tensor | None,
    radius: int,
) -> tuple[Tensor, float, int]:
    """Sums over the queries that have keys of the pattern: the scores of each head and chance; and the number of queries."""
    batch, _, queries, keys = weights.shape
    if call.rows is not None or (isinstance(pattern, str) and queries != keys):
        raise ValueError(
            f"{call.name!r} attends from {queries} queries to {keys} keys: find_heads needs self-attention with all rows; "
            'choose it, as in maps["encoder.*"]; after generate, pass maps.generation()'
        )
    check_finite(call.name, weights)
    weights = _shares_of(weights, call.kind)
    kept = kept_keys(weights, keep)
    wanted = _wanted(pattern, call, kept, ids, radius)
    wanted = PatternKeys(wanted.weights.to(weights.device) * kept.mask, wanted.boolean)
    # Rows that attend to nothing are padding, and so are the queries of tokens that are.
    present = wanted.weights.sum(-1).gt(0) & weights.sum((1, 3)).gt(0)
    present = present & kept.tokens if queries == keys else present
    count = int(present.expand(batch, -1).sum())
    even = kept.mask / kept.mask.sum(-1, keepdim=True).clamp_min(1)
    total = (wanted.overlap(weights) * present[:, None]).sum((0, 2))
    chance = (wanted.overlap(even[:, None])[:, 0] * present).expand(batch, -1).sum()
    return total, float(chance), count


def _shares_of(weights: Tensor, kind: str) -> Tensor:
    """The share that each key has of the attention of its query. What an attention sink takes belongs to no key."""
    every = shares(weights)
    if kind in _NO_SHARES or bool((weights < 0).any()):
        return every
    weights = weights.to(every.dtype)
    return weights / weights.sum(-1, keepdim=True).clamp_min(1)


def _wanted(pattern: Given, call: Any, kept: Kept, ids: Tensor | None, radius: int) -> PatternKeys:
    batch, queries, keys = kept.shape
    if isinstance(pattern, str):
        return named_pattern(Pattern(pattern, ids, radius, call.layout), kept)
    if isinstance(pattern, Map):
        given = _shares_of(pattern.weights, pattern.kind).mean(1)
    elif isinstance(pattern, Tensor):
        given = pattern
    else:
        asked, read = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
        try:
            given = pattern(asked, read)
        except Exception as error:
            raise ValueError(
                f"pattern must be a function of query and key numbers, but {pattern!r:.100} raised an error: {error}"
            ) from error
        if not isinstance(given, Tensor):
            raise TypeError(
                f"pattern ({describe(pattern)}) must return a tensor (queries, keys), got {describe(given)}"
            )
    given = given[None] if given.ndim == 2 else given
    if given.ndim != 3 or given.shape[0] not in (1, batch) or given.shape[1:] != (queries, keys):
        raise ValueError(
            f"pattern has shape {tuple(given.shape)}, but {call.name!r} is ({batch}, {queries}, {keys}) "
            "(batch, queries, keys)"
        )
    return PatternKeys(given.to(torch.float64), given.dtype is torch.bool)


def _name(pattern: Given) -> str:
    if isinstance(pattern, str):
        return pattern
    return pattern.name if isinstance(pattern, Map) else getattr(pattern, "__name__", "your pattern")


def _check_options(pattern: Any, ids: Any, keep: Any, radius: Any, margin: Any) -> None:
    check_count("radius", radius)
    if isinstance(pattern, str):
        check_choice("pattern", pattern, PATTERNS)
        if pattern in NEEDS_IDS and ids is None:
            raise ValueError(f"ids is needed to find {pattern!r} heads: pass the tokens, (batch, tokens)")
    elif not isinstance(pattern, Tensor | Map) and not callable(pattern):
        names = ", ".join(map(repr, PATTERNS))
        raise TypeError(f"pattern must be one of {names}, a tensor, a map or a function, got {describe(pattern)}")
    if ids is not None and (not isinstance(ids, Tensor) or ids.is_floating_point() or ids.ndim not in (1, 2)):
        raise TypeError(f"ids must be whole numbers (batch, tokens), got {describe(ids)}")
    if keep is not None and (not isinstance(keep, Tensor) or keep.dtype is not torch.bool or keep.ndim != 2):
        raise TypeError(f"keep must be a boolean tensor (batch, keys), got {describe(keep)}")
    if isinstance(margin, bool) or not isinstance(margin, int | float):
        raise TypeError(f"margin must be a number, got {describe(margin)}")
