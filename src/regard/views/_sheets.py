"""Attention maps for a browser: the weights of one sample as bytes, with a description of each map."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from regard.maps import (
    AttentionRecord,
    Layout,
    Map,
    Maps,
    Missed,
    is_cross_attention,
    merged_rows,
    stacks_in,
    visible_keys,
)
from regard.support.checks import describe, is_functional
from regard.views._generations import shown_calls
from regard.views._head_statistics import patterns, statistics, token_positions
from regard.views._payload import FINE, Scaled

LARGE, LARGEST = 100_000_000, 350_000_000  # a view with more weights loads slowly, or not at all

# What patterns of tokens are if the keys are no tokens: no channel is the first one, and no key is that of another query.
_PATTERNS = {"tokens": {}, "channels": {"first": "one key"}, "samples": {"first": "other", "one key": "other"}}

TOO_LARGE = "too large for a page"
GAUSSIAN = "Gaussian heads ignore content: every input gets the same map"


@dataclass(frozen=True)
class Sheet:
    """One map of one sample.

    Attributes:
        found: the map.
        weights: ``(heads, queries, keys)``.
        about: its name, its residual and more, for JSON.
        visible: how many keys each query may see, ``(queries,)``.
        asked: how many queries the map has, of which ``rows=`` may have chosen some; None if that is not known.
    """

    found: Map
    weights: Tensor
    about: dict[str, Any]
    visible: Tensor
    asked: int | None

    @property
    def rows(self) -> list[int]:
        """The numbers of the queries that are shown."""
        chosen: list[int] | None = self.about["rows"]
        return list(range(self.about["queries"])) if chosen is None else chosen

    @property
    def over_tokens(self) -> bool:
        """Whether the keys are tokens, the same ones for all queries: not channels, nor keys of each query's own."""
        return self.about["over"] == "tokens"

    @property
    def self_attention(self) -> bool:
        """Whether queries may be the same tokens as keys: there are as many."""
        return self.over_tokens and self.asked in (None, self.about["keys"])


def as_maps(what: Any, argument: str = "what") -> Maps | None:
    """Maps from the argument of ``show``: maps, one or several, or weights ``(heads, queries, keys)`` with or without a batch;
    None for other types."""
    if isinstance(what, Maps):
        return what
    if isinstance(what, Map):
        return Maps([what])
    if isinstance(what, list | tuple) and what and all(isinstance(each, Map) for each in what):
        return Maps(what)
    if isinstance(what, Tensor):
        what = {"weights": what}
    elif isinstance(what, Sequence) and what and all(isinstance(each, Tensor) for each in what):
        what = {f"layer {number}": each for number, each in enumerate(what)}
    if isinstance(what, Mapping) and what and all(isinstance(each, Tensor) for each in what.values()):
        return Maps(Map(str(name), [_record(str(name), weights, argument)]) for name, weights in what.items())
    return None


def _record(name: str, weights: Tensor, argument: str) -> AttentionRecord:
    if weights.ndim not in (3, 4) or not weights.is_floating_point():
        raise ValueError(
            f"{argument} must have weights (heads, queries, keys) or (batch, heads, queries, keys), got "
            f"{describe(weights)} as {name!r}"
        )
    if is_functional(weights):
        raise ValueError(f"{argument} must have values, got {describe(weights)} on {weights.device}")
    whole = weights.detach() if weights.ndim == 4 else weights.detach()[None]
    return AttentionRecord.given(whole, name)


def sheets(maps: Maps, sample: int) -> list[Sheet]:
    """All maps of one sample, checked."""
    if not len(maps):
        missed = f"; {len(maps.missed)} were missed: {maps.missed[0]}" if maps.missed else ""
        raise ValueError(f"there are no maps to show{missed}")
    if isinstance(sample, bool) or not isinstance(sample, int):
        raise TypeError(f"sample must be a whole number, got {describe(sample)}")
    _check_size(maps)
    return [_sheet(found, sample) for found in maps.values()]


def maps_for_page(maps: Maps, most: int | None = None) -> Maps:
    """The maps that a page can show, in their order, with at most this many weights of a sample. The others are missed,
    which the view says. For pages about a run, whose reader did not choose what is captured."""
    most = LARGE if most is None else most
    kept: list[Map] = []
    missed, size = list(maps.missed), 0
    for found in maps.values():
        count = math.prod(found.shape[1:]) if found.shape else 0
        if size + count > most:
            missed.append(Missed(found.name, TOO_LARGE, tuple(found.shape)))
        else:
            size += count
            kept.append(found)
    made = Maps(kept, missed)
    made.notes = list(maps.notes)
    return made


def lacks_large(maps: Maps) -> bool:
    """Whether maps were left out because of their size, by the capture or by :func:`maps_for_page`."""
    return any(TOO_LARGE in missed.reason or "budget" in missed.reason for missed in maps.missed)


def _check_size(maps: Maps) -> None:
    """Refuse maps that are too large for a browser, and warn of large ones. A weight takes one byte."""
    size = sum(math.prod(found.shape[1:]) for found in maps.values() if found.shape)
    if size <= LARGE:
        return
    says = (
        f"{len(maps)} maps of {size / 1e6:,.0f} million weights are {{}} for a browser: show some of them, as in "
        'show(maps["blocks.1*"]), or capture less, as in capture(model, heads=slice(0, 4), rows=[0])'
    )
    if size > LARGEST:
        raise ValueError(says.format("too many"))
    warnings.warn(says.format("many"), stacklevel=5)


def _sheet(found: Map, sample: int) -> Sheet:
    if found.calls and found.latest.stored is None and found.latest.overview is not None:
        raise ValueError(
            f"only an overview of {found.name!r} was kept, which is shown alone: to compare maps, to merge words or to show "
            "parts of the text, capture whole maps, without overview="
        )
    if not found.calls or found.latest.stored is None:
        raise ValueError(f"{found.name!r} was reduced by reduce=, so there is no map to show")
    batch = found.shape[0]
    if not batch:
        raise ValueError(f"what must hold a sample, but {found.name!r} has shape {tuple(found.shape)}")
    if not -batch <= sample < batch:
        raise ValueError(f"sample must lie in 0 … {batch - 1}, the batch of {found.name!r}, got {sample}")
    chosen = shown_calls(found, sample)
    weights = chosen.weights.detach().float().cpu()
    if not weights.numel():
        raise ValueError(
            f"what must have a head, a query and a key at least, but {found.name!r} is {describe(weights)} (heads, queries, "
            f"keys)"
        )
    # A sum is finite only if all terms are: this needs one pass and no boolean array.
    if not bool(weights.sum().isfinite()):
        raise ValueError(
            f"what (or other) must have finite weights, to be shown as maps, but {found.name!r} holds NaN or infinity"
        )
    shown = Map(found.name, chosen.calls)
    latest = found.latest
    layout = latest.layout if latest.layout is not None and latest.layout.tokens == weights.shape[2] else None
    asked = weights.shape[1] if latest.rows is None else latest.asked
    visible, mask = visible_keys(weights, latest.kind, latest.rows, asked)
    about: dict[str, Any] = {
        "name": found.name,
        "heads": list(latest.heads or range(weights.shape[0])),
        "queries": weights.shape[1],
        "keys": weights.shape[2],
        "rows": None if latest.rows is None else list(latest.rows),
        "residual": shown.residual,
        "agrees": shown.agrees,
        "against": latest.against,
        "kind": latest.kind,
        "kernel": latest.kernel,
        "over": found.over,
        "calls": len(found.calls),
        "joined": len(chosen.calls) > 1,
        "steps": chosen.steps,
        "grid": None if layout is None else list(layout.grid),
        "prefix": 0 if layout is None else layout.prefix,
        "signed": float(weights.min()) < 0,
        "visible": int(visible[0]) if bool((visible == visible[0]).all()) else None,  # else a separate array
    }
    _describe_heads(about, weights, visible, mask)
    return Sheet(found, weights, about, visible, asked)


def _describe_heads(about: dict[str, Any], weights: Tensor, visible: Tensor, mask: Tensor | None) -> None:
    """Add statistics and patterns of each head, on the grid in ``about``. Channels have no order and no distance, and neither
    have keys that differ from query to query."""
    placed = about["rows"] is None and about["over"] == "tokens"
    positions = token_positions(about["keys"], about["grid"], about["prefix"]) if placed else None
    about["statistics"] = statistics(weights, visible, mask, positions)
    found = patterns(weights, about["statistics"]["surprise"], positions)
    about["patterns"] = [_PATTERNS[about["over"]].get(each, each) for each in found]


def place_on_grid(sheet: Sheet, grid: Sequence[int], prefix: int) -> None:
    """Set the grid of the keys, so that distances are measured on it even if the model did not declare it."""
    known = sheet.about["grid"] == list(grid) and sheet.about["prefix"] == prefix
    sheet.about.update(grid=list(grid), prefix=prefix)
    if not known:
        latest = sheet.found.latest
        _describe_heads(sheet.about, sheet.weights, *visible_keys(sheet.weights, latest.kind, latest.rows, sheet.asked))


def arrays(shown: list[Sheet]) -> dict[str, Tensor | Scaled]:
    """The weights of each map, and the number of visible keys per query if it differs."""
    made: dict[str, Tensor | Scaled] = {}
    fine = sum(sheet.weights.numel() for sheet in shown) <= FINE
    for number, sheet in enumerate(shown):
        made[f"map{number}"] = Scaled.roots(sheet.weights, fine)
        if sheet.about["visible"] is None:
            made[f"visible{number}"] = sheet.visible
    return made


def rolls_out(shown: list[Sheet], maps: Maps) -> bool:
    """Whether the maps can be multiplied, as in :func:`regard.rollout`: no layer was left out because of its size, and every
    layer attends among the same tokens, or among merged squares of the tokens before, according to the grids."""
    if lacks_large(maps):
        return False
    abouts = [sheet.about for sheet in shown]
    over_tokens = all(about["over"] == "tokens" for about in abouts)
    square = over_tokens and all(about["queries"] == about["keys"] and about["rows"] is None for about in abouts)
    names = [about["name"] for about in abouts]
    together = len(stacks_in(names)) == 1 and not any(map(is_cross_attention, names))
    once = all(_calls_of_last_run(sheet.found) == 1 for sheet in shown)
    return square and together and once and len(abouts) > 1 and all(_follows(*pair) for pair in pairwise(abouts))


def _calls_of_last_run(found: Map) -> int:
    runs = [call.moment[0] for call in found.calls if call.moment is not None]
    return runs.count(runs[-1]) if runs else 1


def _follows(before: dict[str, Any], after: dict[str, Any]) -> bool:
    if before["keys"] == after["keys"]:
        return True
    layouts = (
        None if each["grid"] is None else Layout(tuple(each["grid"]), each["prefix"]) for each in (before, after)
    )
    return merged_rows(torch.empty(1, before["keys"], 1), *layouts) is not None


def notes(maps: Maps, left_out: Sequence[str] = ()) -> list[str]:
    """Notes for the reader: attention that was missed, and maps that are not shown."""
    said = list(maps.notes)
    if any(found.calls and found.latest.kind == "gaussian" for found in maps.values()):
        said.append(GAUSSIAN)
    if maps.missed:
        said.append(f"missed: {'; '.join(map(str, maps.missed[:3]))}{' …' if len(maps.missed) > 3 else ''}")
    if left_out:
        said.append(f"left out, because they have no grid on the image: {', '.join(left_out)}")
    return said
