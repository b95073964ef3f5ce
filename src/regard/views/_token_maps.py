"""Attention maps over text: which token attends to which, in one sequence or between two."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from torch import Tensor

from regard.maps import Maps, is_cross_attention
from regard.support.checks import describe
from regard.views._byte_tokens import readable
from regard.views._head_statistics import opening
from regard.views._payload import Payload, Scaled
from regard.views._sheets import Sheet, arrays, notes, rolls_out, sheets
from regard.views._thumbnails import thumbnails

MANY = 4_000_000  # weights; a page with more starts with thumbnails and one head, while the rest loads


def payload(maps: Maps, *, tokens: Any = None, sample: int = 0) -> Payload:
    """The arguments are those of :func:`regard.show`."""
    shown = sheets(maps, sample)
    lists = token_lists(tokens)
    if _has_unread(shown, lists):
        lists["text" if "text" in lists else "target"].pop()
    given = bool(lists)
    if given and all(sheet.about["over"] == "channels" for sheet in shown):
        raise ValueError(f"tokens name nothing in these maps: {shown[0].about['name']!r} attends over channels")
    for sheet in shown:
        asks, reads = _names(sheet, lists) if given else _patches(sheet, lists)
        sheet.about.update(asks=asks, reads=reads)
    meta: dict[str, Any] = {
        "layers": [sheet.about for sheet in shown],
        "tokens": lists,
        "notes": notes(maps),
        "rollout": rolls_out(shown, maps),
        "opening": opening([sheet.about for sheet in shown]),
    }
    weights = arrays(shown)
    if sum(sheet.weights.numel() for sheet in shown) < MANY:
        return Payload("tokens", meta, weights)
    weights = {**thumbnails(shown, weights), "opening": _opening_map(meta["opening"], weights), **weights}
    return Payload("tokens", meta, weights, late=frozenset(f"map{place}" for place in range(len(shown))))


def _has_unread(shown: list[Sheet], lists: dict[str, list[str]]) -> bool:
    """Whether the tokens include the last generated one, which was never read and has no row and no column."""
    if "text" in lists:
        return len(lists["text"]) - 1 == max((sheet.about["keys"] for sheet in shown if sheet.over_tokens), default=0)
    written = {sheet.asked for sheet in shown if _likely(sheet)[0] == "target"}
    return "target" in lists and written == {len(lists["target"]) - 1}


def _opening_map(opened: dict[str, Any], weights: Mapping[str, Tensor | Scaled]) -> Scaled:
    """The map of the head that the view shows first, while the others are loading."""
    layer, head = weights[f"map{opened['layer']}"], opened["head"]
    assert isinstance(layer, Scaled)
    return replace(layer, stored=layer.stored[head], scale=layer.scale[head])


def token_lists(tokens: Any) -> dict[str, list[str]]:
    """``{"text": …}``, or ``{"source": …, "target": …}`` for an encoder–decoder."""
    if tokens is None:
        return {}
    if _is_list(tokens):
        return {"text": readable(tokens)}
    if isinstance(tokens, list | tuple) and len(tokens) == 2 and all(_is_list(part) for part in tokens):
        return {"source": readable(tokens[0]), "target": readable(tokens[1])}
    raise TypeError(f"tokens must be a list of strings, or a pair of lists (source, target), got {describe(tokens)}")


def _is_list(tokens: Any) -> bool:
    return isinstance(tokens, Sequence) and not isinstance(tokens, str) and all(isinstance(t, str) for t in tokens)


def _patches(sheet: Sheet, lists: dict[str, list[str]]) -> tuple[str | None, str | None]:
    """Names by position, for tokens of images and videos with a known grid and without a text."""
    layout = sheet.found.latest.layout if sheet.over_tokens else None
    if layout is None or len(layout.grid) < 2 or layout.tokens != sheet.about["keys"]:
        return None, None
    name = f"{layout.prefix} + {' × '.join(map(str, layout.grid))}"
    prefix = ["[class]", *(f"[prefix{number}]" for number in range(1, layout.prefix))][: layout.prefix]
    lists[name] = prefix + [f"({', '.join(map(str, place))})" for place in product(*map(range, layout.grid))]
    return name if sheet.self_attention else None, name


def _names(sheet: Sheet, lists: dict[str, list[str]]) -> tuple[str | None, str | None]:
    """The token lists of a map's queries and keys."""
    about, queries = sheet.about, sheet.asked
    keys = about["keys"]
    if not sheet.over_tokens:
        # Channels have no names. Keys that differ from query to query have none either, but their queries are tokens.
        asks = "text" in lists and about["over"] == "samples" and queries == len(lists["text"])
        return "text" if asks else None, None
    if "text" in lists:
        count = len(lists["text"])
        if keys != count and queries != count:
            raise ValueError(
                f"tokens {'has' if count else 'is empty: it has'} {count} entries "
                f"({', '.join(map(repr, lists['text'][:3]))}), but needs {keys}, which {about['name']!r} attends over"
            )
        return "text" if queries in (None, count) else None, "text" if keys == count else None
    source, target = len(lists["source"]), len(lists["target"])
    for asks, reads in (_likely(sheet), ("source", "source"), ("target", "target"), ("target", "source")):
        if queries in (None, len(lists[asks])) and keys == len(lists[reads]):
            return asks, reads
    raise ValueError(
        f"tokens has {source} source and {target} target entries, but {about['name']!r} attends "
        f"from {about['queries']} to {keys}"
    )


def _likely(sheet: Sheet) -> tuple[str, str]:
    return likely_names(sheet.about["name"], sheet.self_attention)


def likely_names(name: str, self_attention: bool) -> tuple[str, str]:
    """A guess from the map's name, used if its size fits encoder, decoder and cross-attention alike."""
    lower = name.lower()
    if not self_attention or is_cross_attention(name) or lower == "attention":
        return "target", "source"
    return ("target", "target") if "decoder" in lower else ("source", "source")
