"""Overviews of long maps: cells of every head, and curves over the tokens, in a page of limited size."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.maps import AttentionRecord, Map, Maps, Overview
from regard.support.checks import describe
from regard.views._payload import Payload, Scaled
from regard.views._sheets import notes
from regard.views._token_maps import likely_names, token_lists

CELLS, CURVES, ROWS = 8_500_000, 2_200_000, 2_000_000  # bytes of a page before compression
BINS = 2048  # bins of a curve, at most

coarse = partial(Scaled.roots, fine=False)  # where there is no room for two bytes


def is_long(maps: Maps) -> bool:
    """Whether any of these maps has an overview."""
    return any(found.calls and found.latest.overview is not None for found in maps.values())


def payload(maps: Maps, *, tokens: Any = None, sample: int = 0) -> Payload:
    """The arguments are those of :func:`regard.show`. Maps without an overview are left out, with a note."""
    kept = {name: found for name, found in maps.items() if found.calls and found.latest.overview is not None}
    shown = {name: _whole(found) for name, found in kept.items()}
    others = [name for name in maps if name not in shown]
    if isinstance(sample, bool) or not isinstance(sample, int):
        raise TypeError(f"sample must be a whole number, got {describe(sample)}")
    lists = token_lists(tokens)
    named = _named(shown, lists)
    count = sum(found.overview.shape[1] for found in shown.values())
    side = max(16, math.isqrt(CELLS // (2 * count)))
    bins = max(64, min(BINS, CURVES // (3 * count)))  # two bytes for the mass received, one for the entropy
    cells = sum(math.prod(found.overview.shape[1:]) for found in shown.values())
    pack = Scaled.halves if 4 * cells <= CELLS else coarse
    abouts: list[dict[str, Any]] = []
    arrays: dict[str, Tensor | Scaled] = {}
    for number, found in enumerate(shown.values()):
        about, made = _layer(found, sample, side, bins, pack)
        about["asks"], about["reads"] = named[number]
        about["first"] = _first(found.latest)
        calls = len(kept[found.name].calls)
        about.update(calls=calls, joined=calls > len(found.calls))
        abouts.append(about)
        arrays |= {f"{name}{number}": array for name, array in made.items()}
    rows = _kept_rows(shown, sample)
    for number, array in rows.items():
        arrays[f"rows{number}"] = array
        abouts[number]["rows"] = list(list(shown.values())[number].latest.rows or ())
    said = notes(maps) + ([f"left out, because they have no overview: {', '.join(others)}"] if others else [])
    large = [name for n, (name, found) in enumerate(shown.items()) if n not in rows and _has_rows(found)]
    said += [f"rows in full are left out, because the page has no room for them: {', '.join(large)}"] if large else []
    return Payload(
        "long", {"layers": abouts, "tokens": lists, "notes": said, "opening": _opening(shown, sample)}, arrays
    )


def _whole(found: Map) -> Map:
    """The calls of a generation put together, or else the map as it is: of other calls the latest is shown."""
    if len(found.calls) == 1:
        return found
    try:
        joined: Map = Maps([found]).generation()[found.name]
    except ValueError:
        return found
    return joined


def _layer(
    found: Map, sample: int, side: int, bins: int, pack: Callable[[Tensor], Scaled]
) -> tuple[dict[str, Any], dict[str, Tensor | Scaled]]:
    record, overview = found.latest, found.latest.overview
    if overview is None:
        raise ValueError(f"{found.name!r} has no overview")
    batch, heads, queries, keys = overview.shape
    if not -batch <= sample < batch:
        raise ValueError(f"sample must lie in 0 … {batch - 1}, the batch of {found.name!r}, got {sample}")
    one = overview.sample(sample % batch)
    if not bool(one.mass.sum().isfinite()):
        raise ValueError(
            f"what must have finite weights, to be shown as maps, but {found.name!r} holds NaN or infinity"
        )
    steps = tuple(math.ceil(n / side) for n in one.mass.shape[2:])
    mass, largest = _pooled(one, steps)
    about = {
        "name": found.name,
        "heads": list(record.heads or range(heads)),
        "queries": queries,
        "keys": keys,
        "cell": [overview.cell[0] * steps[0], overview.cell[1] * steps[1]],
        "bin": [math.ceil(n / bins) for n in (queries, keys)],
        "rows": None,
        "residual": found.residual,
        "agrees": found.agrees,
        "against": record.against,
        "kind": record.kind,
        "kernel": record.kernel,
        "over": found.over,
    }
    arrays: dict[str, Tensor | Scaled] = {
        "mass": pack(mass),
        "largest": pack(largest),
        "received": Scaled.halves(_curve(one.per_key.received[0], bins, "sum")),
        "entropy": Scaled.rows(_curve(one.per_query.entropy[0].float(), bins, "mean")),
    }
    return about, arrays


def _pooled(one: Overview, steps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Two arrays ``(heads, rows, columns)``: the mass of each cell per query, and its largest weight."""
    rows, columns = steps
    mass, largest = one.mass[0].float(), one.largest[0].float()
    gap = (0, -mass.shape[2] % columns, 0, -mass.shape[1] % rows)
    mass, largest = (F.pad(x, gap).unflatten(2, (-1, columns)).unflatten(1, (-1, rows)) for x in (mass, largest))
    height, queries = one.cell[0] * rows, one.shape[2]
    each = torch.tensor([min(height, queries - start) for start in range(0, queries, height)])
    return mass.sum((2, 4)) / each[:, None], largest.amax((2, 4))


def _curve(values: Tensor, bins: int, how: str) -> Tensor:
    """Values of every token, summed or averaged over bins, ``(heads, bins)``; the last bin may have fewer tokens."""
    count = values.shape[-1]
    step = math.ceil(count / bins)
    whole = F.pad(values, (0, -count % step)).unflatten(-1, (-1, step)).sum(-1)
    each = torch.tensor([min(step, count - start) for start in range(0, count, step)])
    return whole if how == "sum" else whole / each


def _has_rows(found: Map) -> bool:
    return found.latest.stored is not None and found.latest.rows is not None


def _kept_rows(shown: dict[str, Map], sample: int) -> dict[int, Scaled]:
    """Rows that were kept in full, with a weight for every token, as many as fit in the page."""
    made, room = {}, ROWS
    for number, found in enumerate(shown.values()):
        record = found.latest
        if record.stored is None or not _has_rows(found):
            continue
        size = math.prod(record.stored.shape[1:])
        pack, bytes_each = (Scaled.halves, 2) if 2 * size <= room else (coarse, 1)
        if bytes_each * size <= room:
            room -= bytes_each * size
            made[number] = pack(record.weights[sample].float().cpu())
    return made


def _first(record: AttentionRecord) -> list[int]:
    """The positions of the first query and of the first key in the whole text, if a cache states them; else 0."""
    place = record.positions
    return [0, 0] if place is None or not place.cached else [place.first, place.first_key]


def _counted(record: AttentionRecord) -> tuple[int, int]:
    """Of how many tokens the queries are some, and the keys: with a cache, of the whole text until then."""
    place, (queries, keys) = record.positions, record.shape[2:]
    if place is None or not place.cached:
        return queries, keys
    return place.end, keys if place.cross else place.length


def _named(shown: dict[str, Map], lists: dict[str, list[str]]) -> list[tuple[str | None, str | None]]:
    """For each map the lists that name its queries and its keys. The last token that generation wrote, and did not read, is
    taken off its list."""
    counted = {name: _counted(found.latest) for name, found in shown.items() if found.over == "tokens"}
    if lists and not counted:
        raise ValueError(f"tokens name nothing in these maps: {next(iter(shown))!r} attends over channels")
    if "text" in lists and len(lists["text"]) - 1 == max(keys for _, keys in counted.values()):
        lists["text"].pop()
    elif "target" in lists:
        written = {
            queries for name, (queries, keys) in counted.items() if likely_names(name, queries == keys)[0] == "target"
        }
        if written == {len(lists["target"]) - 1}:
            lists["target"].pop()
    return [_lists_of(name, *counted[name], lists) if name in counted else (None, None) for name in shown]


def _lists_of(name: str, queries: int, keys: int, lists: dict[str, list[str]]) -> tuple[str | None, str | None]:
    """The lists that name the queries and the keys of a map. Where queries are not the tokens that keys are (cross-attention,
    the steps of a generation), one text names one of them."""
    if not lists:
        return None, None
    if "text" in lists:
        text = lists["text"]
        if len(text) not in (queries, keys):
            raise ValueError(
                f"tokens has {len(text)} entries ({', '.join(map(repr, text[:3]))}), but needs {keys}, which {name!r} attends "
                "over"
            )
        return "text" if queries == len(text) else None, "text" if keys == len(text) else None
    for asks, reads in (
        likely_names(name, queries == keys),
        ("source", "source"),
        ("target", "target"),
        ("target", "source"),
    ):
        if (queries, keys) == (len(lists[asks]), len(lists[reads])):
            return asks, reads
    raise ValueError(
        f"tokens has {len(lists['source'])} source and {len(lists['target'])} target entries, but {name!r} attends from "
        f"{queries} to {keys}"
    )


def _opening(shown: dict[str, Map], sample: int) -> dict[str, Any]:
    """The head with the lowest entropy, which shows most."""
    spread = [float(found.per_query.entropy[sample, head].float().mean())
              for found in shown.values() for head in range(found.overview.shape[1])]  # fmt: skip
    places = [(layer, head) for layer, found in enumerate(shown.values()) for head in range(found.overview.shape[1])]
    layer, head = places[spread.index(min(spread))]
    return {"layer": layer, "head": head, "why": f"the sharpest head, entropy {min(spread):.2f} nats on average"}
