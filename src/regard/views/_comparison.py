"""Two sets of maps side by side, and their difference: two prompts, two models or two training steps."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from regard.maps import Maps
from regard.support.checks import describe
from regard.views._payload import FINE, Payload, Scaled
from regard.views._sheets import Sheet, notes, sheets
from regard.views._token_maps import token_lists

Names = tuple[str, str]


def payload(
    first: Maps, second: Maps, *, tokens: Any = None, sample: int = 0, names: Sequence[str] | None = None
) -> Payload:
    """The arguments are those of :func:`regard.show`. The difference is ``second − first``, over the tokens they share."""
    titles = _names(names)
    texts = _texts(tokens)
    pairs, left_out = _pairs(sheets(first, sample), sheets(second, sample))
    layers: list[dict[str, Any]] = []
    arrays: dict[str, Tensor | Scaled] = {}
    fine = sum(sheet.weights.numel() for pair in pairs for sheet in pair) <= FINE
    for number, (one, other) in enumerate(pairs):
        about, made = _layer(one, other, texts, fine)
        layers.append(about)
        arrays.update({f"{name}{number}": array for name, array in made.items()})
    most, layer, head = max(
        (change, -number, -head) for number, about in enumerate(layers) for head, change in enumerate(about["change"])
    )
    said = [*dict.fromkeys([*notes(first), *notes(second)])]
    if left_out:
        said.append(f"left out, because only one side has them or the heads differ: {', '.join(left_out)}")
    meta = {
        "layers": layers,
        "names": list(titles),
        "tokens": list(texts),
        "notes": said,
        "opening": {"layer": -layer, "head": -head, "why": f"the head that changes most ({100 * most:.0f} %)"},
    }
    return Payload("compare", meta, arrays)


def _layer(
    one: Sheet, other: Sheet, texts: tuple[list[str] | None, list[str] | None], fine: bool
) -> tuple[dict[str, Any], dict[str, Tensor | Scaled]]:
    counts = [(_queries(sheet), sheet.about["keys"]) for sheet in (one, other)]
    named = [text if sheet.over_tokens else None for text, sheet in zip(texts, (one, other), strict=True)]
    labels = [[_labels(text, count) for count in both] for text, both in zip(named, counts, strict=True)]
    name = one.about["name"]
    queries, columns = (
        _aligned(labels[0][axis], labels[1][axis], counts[0][axis], counts[1][axis], name, what)
        for axis, what in enumerate(("queries", "keys"))
    )
    rows = _kept(queries, one, other)
    at = [
        (torch.tensor([pair[side] for pair in rows]), torch.tensor([pair[side] for pair in columns])) for side in (0, 1)
    ]
    parts = [
        sheet.weights[:, where[0]][:, :, where[1]] if rows and columns else sheet.weights[:, :0, :0]
        for sheet, where in zip((one, other), at, strict=True)
    ]
    difference = parts[1] - parts[0]
    change = difference.abs().sum(-1).mean(-1) / 2 if difference.numel() else torch.zeros(len(one.weights))
    about = {
        "name": name,
        "other_name": other.about["name"],
        "heads": one.about["heads"],
        "sides": [_side(sheet, label) for sheet, label in zip((one, other), labels, strict=True)],
        "rows": [list(pair) for pair in rows],
        "columns": [list(pair) for pair in columns],
        "change": [float(f"{x:.4g}") for x in change.tolist()],
    }
    arrays: dict[str, Tensor | Scaled] = {
        "first": Scaled.roots(one.weights, fine),
        "second": Scaled.roots(other.weights, fine),
        "difference": Scaled.roots(difference, fine),
        "visible_first": one.visible.to(torch.int32),
        "visible_second": other.visible.to(torch.int32),
    }
    return about, arrays


def _side(sheet: Sheet, labels: list[list[str] | None]) -> dict[str, Any]:
    _, queries, keys = sheet.weights.shape
    kept = ("rows", "residual", "agrees", "against", "kernel", "kind", "over")
    named = [label is not None for label in labels]
    return {"queries": queries, "keys": keys, "named": named, **{key: sheet.about[key] for key in kept}}


def _queries(sheet: Sheet) -> int:
    """How many queries the map has, also if only some rows of it are shown."""
    return max(sheet.asked or 0, max(sheet.rows) + 1)


def _kept(pairs: list[tuple[int, int]], one: Sheet, other: Sheet) -> list[tuple[int, int]]:
    """The pairs of queries that both sides show, as places among the rows that each side shows."""
    here, there = ({row: place for place, row in reversed(list(enumerate(sheet.rows)))} for sheet in (one, other))
    found = [(here[row], there[other_row]) for row, other_row in pairs if row in here and other_row in there]
    if pairs and not found:
        raise ValueError(
            f"{one.about['name']!r} has the rows {one.rows[:5]} and, in other, {other.rows[:5]}: a difference needs the same "
            "queries, so capture both with the same rows="
        )
    return found


def _labels(text: list[str] | None, count: int) -> list[str] | None:
    """The tokens, if their number fits. One more is allowed: the last generated token, which was not read."""
    if text is None or len(text) not in (count, count + 1):
        return None
    return text[:count]


def _aligned(
    one: list[str] | None, other: list[str] | None, here: int, there: int, name: str, axis: str
) -> list[tuple[int, int]]:
    """Pairs of matching indices: equal indices, or matching tokens if the texts have different lengths."""
    if here == there:
        return [(i, i) for i in range(here)]
    if one is None or other is None:
        raise ValueError(
            f"{name!r} has {here} {axis} on one side and {there} on the other: pass tokens=(first, second), so that the "
            "tokens in both texts are compared"
        )
    found: list[tuple[int, int]] = []
    for kind, start, stop, begin, end in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal" or (kind == "replace" and stop - start == end - begin):
            found += zip(range(start, stop), range(begin, end), strict=True)
    return found


def _pairs(first: list[Sheet], second: list[Sheet]) -> tuple[list[tuple[Sheet, Sheet]], list[str]]:
    """Pairs of maps by name, or by order if they share no names; and the names of the maps without a partner."""
    by_name = {sheet.about["name"]: sheet for sheet in second}
    shared = [(sheet, by_name[sheet.about["name"]]) for sheet in first if sheet.about["name"] in by_name]
    if not shared and len(first) != len(second):
        raise ValueError(
            f"the two have {len(first)} and {len(second)} maps, and no name in common: choose the maps to compare, "
            'as in show(a["encoder.*"], b["encoder.*"])'
        )
    pairs = shared or list(zip(first, second, strict=True))
    fitting = [(one, other) for one, other in pairs if one.about["heads"] == other.about["heads"]]
    if not fitting:
        one, other = pairs[0]
        raise ValueError(
            f"{one.about['name']!r} has the heads {one.about['heads']} and, in other, {other.about['name']!r} has "
            f"{other.about['heads']}: a difference needs the same heads"
        )
    used = {id(sheet) for pair in fitting for sheet in pair}
    left = [sheet.about["name"] for sheet in (*first, *second) if id(sheet) not in used]
    return fitting, list(dict.fromkeys(left))


def _names(names: Sequence[str] | None) -> Names:
    if names is None:
        return "first", "second"
    if isinstance(names, str) or len(names) != 2 or not all(isinstance(name, str) for name in names):
        raise ValueError(f"names must be two strings, one for each side, got {describe(names)}")
    return names[0], names[1]


def _texts(tokens: Any) -> tuple[list[str] | None, list[str] | None]:
    """One text for both sides, or a pair."""
    lists = token_lists(tokens)
    if "text" in lists:
        return lists["text"], lists["text"]
    return lists.get("source"), lists.get("target")
