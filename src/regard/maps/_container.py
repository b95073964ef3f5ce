"""``Map``: the attention of one module. ``Maps``: all maps of a capture, by the names of their modules."""

import copy
import fnmatch
import math
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.maps._call_list import CallList, Recordable
from regard.maps._files import read_records, write_records
from regard.maps._generation import join_calls
from regard.maps._long_map import LongMap
from regard.maps._maps_json import MapsContent
from regard.maps._record import AttentionRecord, Missed
from regard.maps.tokens._axes import Certainty, Over
from regard.maps.tokens._layout import Layout, given_layout
from regard.maps.tokens._segments import ImageTokens
from regard.support.checks import check_count, check_path, describe
from regard.support.tables import text_table


class Map(CallList, LongMap):
    """The attention of one module, call by call. The properties of the map are those of the latest call.

    Attributes:
        name: the module's path in the model.
        calls: a record for every call, in order (generation, shared modules, diffusion steps).
        reduced: what ``reduce=`` made of the weights; None without it.
    """

    def __init__(self, name: str, calls: list[AttentionRecord] | None = None) -> None:
        CallList.__init__(self, calls)
        self.name = name
        self.reduced: Any = None

    @property
    def latest(self) -> AttentionRecord:
        return self.calls[-1]

    @property
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """``(batch, heads, queries, keys)``; rows sum to 1, or to 0 if there was no key to attend to."""
        return self.latest.weights

    @property
    def windows(self) -> Tensor | None:
        """Windowed attention window by window, ``(batch · windows, heads, area, area)``; None for other attention."""
        return self.latest.stored if self.latest.windows is not None else None

    @property
    def residual(self) -> float:
        """The largest residual of all calls: max |weights @ V − what was returned|. This is a check, not a proof: maps
        that differ along the null space of V give the same output."""
        return _largest_residual(self.calls)

    @property
    def logsumexp_residual(self) -> float | None:
        return max((x for call in self.calls if (x := call.logsumexp_residual) is not None), default=None)

    @property
    def against(self) -> str:
        """What the residual compares with: "kernel", "product" (the model's own), "layer" (a whole layer's output)."""
        return self.latest.against

    @property
    def axes(self) -> Certainty:
        """How certain it is that the axes are batch, heads, queries and keys, over all calls: "known", "inferred" from
        conventions, or "ambiguous" if several readings fit. Then no axis is taken for heads, and all are in the batch."""
        return max(
            (call.axes.certainty for call in self.calls), key=("known", "inferred", "ambiguous").index, default="known"
        )

    @property
    def over(self) -> Over:
        """What the keys are: "tokens", "channels", or "samples", a set of keys for each query."""
        return self.latest.axes.over

    @property
    def query_positions(self) -> Int[Tensor, "queries"] | None:
        """Where the queries of the latest call lie in the whole sequence, for models with a cache; None if not known."""
        return None if self.latest.positions is None else self.latest.positions.query_positions

    @property
    def key_positions(self) -> Int[Tensor, "keys"] | None:
        """Where the keys of the latest call lie in the whole sequence; −1 for empty slots of a static cache."""
        return None if self.latest.positions is None else self.latest.positions.key_positions

    @property
    def kernel(self) -> str | None:
        return self.latest.kernel

    @property
    def kind(self) -> str:
        return self.latest.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return self.latest.kept_shape

    def contributions(self) -> Float[Tensor, "batch heads queries keys"]:
        r"""How much each key contributes to each query by each head, after ``capture(values=True)``.

        .. math:: \lVert A_{ij}\, v_j W_h \rVert

        with the columns :math:`W_h` of the layer's output projection that belong to the head. A sink, with large weights
        and small values, shrinks to what it contributes.
        """
        return self.latest.contributions

    def head_contributions(self) -> Float[Tensor, "batch heads queries"]:
        r"""How large the output of each head is for each query, behind the output projection:
        :math:`\lVert \sum_j A_{ij}\, v_j W_h \rVert`, after ``capture(values=True)``."""
        if self.latest.norms is None:
            return self.latest.contributions[..., 0]  # raises an error that says what is missing
        norms: Tensor = self.latest.norms.heads
        windows = self.latest.windows
        if windows is not None and self.latest.rows is None:
            return windows.merge(norms.unsqueeze(-1)).squeeze(-1)
        return norms

    def layout(self, grid: Any = None, prefix: int | None = None) -> Layout:
        """How the keys lie on an image: as given, else as the model states it. An error if neither is known."""
        keys = self.shape[-1] if self.shape else self.latest.shape[3]
        if prefix is not None:
            check_count("prefix", prefix)
        if grid is not None:
            return given_layout(keys, grid, prefix, self.name, self.latest.layout)
        known = self.latest.layout
        of_windows = known is not None and bool(self.shape) and known.tokens != keys  # of which rows= chose some
        if known is None or of_windows or (prefix is not None and prefix != known.prefix):
            but = "" if known is None else f" with {prefix} prefix tokens (the model states {known})"
            raise ValueError(
                f"how the {keys} tokens of {self.name!r} lie on a grid is not known{but}: "
                "pass grid=, such as (14, 14), and prefix=, the number of tokens before it"
            )
        return known

    @property
    def grid(self) -> tuple[int, ...]:
        return self.layout().grid

    @property
    def prefix(self) -> int:
        return self.layout().prefix

    def __repr__(self) -> str:
        size = f"shape={self.shape}" if self.shape else self.latest.kept_size
        return f"Map({self.name!r}, {size}, calls={len(self.calls)}, residual={self.residual:.1e})"


class Maps(Mapping[str, Map]):
    """Maps by name, in the order in which the modules first ran.

    ``maps["blocks.3.attn"]``, ``maps[-1]``, ``maps[2:4]`` and ``maps["blocks.*"]`` (the maps that match, as a
    :class:`Maps`).

    Attributes:
        missed: attention that was computed but not captured, with the reason.
        notes: what a reader should know about the capture.
        image_tokens: how the model marks the patches of images in its text, if its configuration says so.
    """

    def __init__(self, maps: Iterable[Map] = (), missed: list[Missed] | None = None) -> None:
        self._maps: dict[str, Map] = {}
        for found in maps:
            if self._maps.setdefault(found.name, found) is not found:
                raise ValueError(f"two of the maps are named {found.name!r}: maps of one model have names of their own")
        self.missed: list[Missed] = missed if missed is not None else []
        self.notes: list[str] = []
        self.image_tokens: ImageTokens | None = None

    def add(self, record: AttentionRecord) -> Map:
        """Append the record to the map of its name, and return this map."""
        found = self.ensure(record.name)
        found.calls.append(record)
        return found

    def keep(self, name: str, call: Recordable) -> None:
        """Append a call to the map of this name. Its record is made when the map's calls are first read."""
        self.ensure(name).later.append(call)

    def ensure(self, name: str) -> Map:
        """The map of this name. If there was none, an empty one is added."""
        found = self._maps.get(name)
        if found is None:
            found = self._maps[name] = Map(name)
        return found

    def remove_latest(self, name: str) -> AttentionRecord | None:
        """Take the latest record of this name out again, and return it."""
        found = self._maps.get(name)
        if found is None:
            return None
        removed = found.calls.pop()
        if not found.calls and found.reduced is None:
            del self._maps[name]
        return removed

    @property
    def records(self) -> list[AttentionRecord]:
        """The records of all maps."""
        return [call for found in self.values() for call in found.calls]

    @overload
    def __getitem__(self, key: int) -> Map: ...
    @overload
    def __getitem__(self, key: slice) -> "Maps": ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: str | int | slice) -> Any:
        if isinstance(key, str):
            if key in self._maps:
                return self._maps[key]
            if any(sign in key for sign in "*?["):
                found = self._some(found for name, found in self._maps.items() if fnmatch.fnmatchcase(name, key))
                if found:
                    return found
            raise KeyError(f"no map is named {key!r}; there are {', '.join(self._maps) or 'none'}")
        if not isinstance(key, slice):
            if isinstance(key, bool) or not isinstance(key, int):
                raise TypeError(f"key must be a name, a number or a slice, got {describe(key)}")
            if not -len(self._maps) <= key < len(self._maps):
                raise IndexError(f"key is {key}, but there are {len(self._maps)} maps")
        chosen = list(self._maps.values())[key]
        return self._some(chosen) if isinstance(chosen, list) else chosen

    def _some(self, chosen: Iterable[Map]) -> "Maps":
        some = Maps(chosen)
        some.notes, some.image_tokens = list(self.notes), self.image_tokens
        return some

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    def values(self) -> ValuesView[Map]:
        return self._maps.values()

    def items(self) -> ItemsView[str, Map]:
        return self._maps.items()

    def stack(self) -> Float[Tensor, "maps batch heads queries keys"]:
        """All maps in one tensor, if they have one shape."""
        shapes = {found.shape for found in self.values()}
        if len(shapes) != 1:
            raise ValueError(
                "stack needs maps of one shape, but there are "
                + (", ".join(map(str, sorted(shapes))) or "no maps")
                + '; choose some first, as in maps["blocks.*"].stack()'
            )
        return torch.stack([found.weights for found in self.values()])

    def generation(self, output: Any = None) -> "Maps":
        """The calls of ``model.generate`` put together: maps of the whole sequence, prompt and answer.

        Positions are those that the cache states at each call, so that dynamic, static, sliding-window and quantized
        caches, prompt lookup and prefill in chunks all fit. The last token of the answer is in no map, because the model
        never read it. An encoder's maps stay as they are. Overviews are joined, too, with the rows of all calls that
        were kept in full, the queries and keys of ``keep_keys=True``, and the norms of ``values=True``.

        Args:
            output: what ``generate`` returned, with the prompt or without. Needed if tokens may have been rejected
                (prompt lookup), and for beam search with ``return_dict_in_generate=True, output_scores=True``: then the
                maps follow each sequence through the beams.
        """
        found = Maps((Map(name, [join_calls(name, m.calls, output)]) for name, m in self.items()), list(self.missed))
        found.notes = list(self.notes)
        found.image_tokens = self.image_tokens
        return found

    def contributions(self) -> "Maps":
        """Maps of contributions in the place of weights (see :meth:`Map.contributions`), for views and figures."""
        made = Maps(missed=self.missed)
        for found in self.values():
            for call in found.calls:
                sizes = call.contributions
                same = {name: getattr(call, name) for name in ("layout", "axes", "rows", "heads")}
                same |= {"shape": call.shape if call.windows is None else sizes.shape}
                record = AttentionRecord.given(sizes, found.name, kind="contributions", **same)
                made.add(record).latest.moment = call.moment
        made.image_tokens = self.image_tokens
        said = "weights times the norms of values behind the output projection: rows do not sum to 1"
        made.notes = [said, *self.notes]
        return made

    @property
    def residual(self) -> float:
        """The largest residual of all maps."""
        return _largest_residual(self.records)

    @property
    def last_run(self) -> list[tuple[str, AttentionRecord]]:
        """Names and records of the model's latest run, in the order in which they were computed: a layer that is used
        several times appears as often. If the order is not known: the latest call of each."""
        named = [(found.name, call) for found in self.values() for call in found.calls]
        last = max((call.moment[0] for _, call in named if call.moment is not None), default=None)
        if last is None or any(call.moment is None for _, call in named):
            return [(found.name, found.latest) for found in self.values() if found.calls]
        return sorted(
            ((name, call) for name, call in named if call.moment is not None and call.moment[0] == last),
            key=lambda pair: pair[1].moment or (0, 0),
        )

    def save(self, path: str | Path, *, dtype: str | None = None) -> Path:
        """Write all maps to one safetensors file; ``dtype`` "uint8" (scaled per head) or "float16" makes it small."""
        named = [_renamed(call, found.name) for found in self.values() for call in found.calls]
        return write_records(Path(path), MapsContent(named, self.missed, self.notes, self.image_tokens), dtype)

    @classmethod
    def load(cls, path: str | Path) -> "Maps":
        """Read the file that :meth:`save` wrote, or the folder that ``capture(stream=…)`` wrote."""
        check_path("path", path)
        maps = cls()
        records, maps.missed, maps.notes, maps.image_tokens = read_records(Path(path))
        for record in records:
            maps.add(record)
        return maps

    def __repr__(self) -> str:
        rows = [("name", "shape", "calls", "residual", "against", "axes", "kernel"), *map(_row, self.values())]
        lines = text_table(rows) if len(rows) > 1 else ["no attention was captured"]
        lines += [f"missed  {missed}" for missed in self.missed]
        lines += [f"note    {note}" for note in self.notes]
        return "\n".join(lines)


def check_maps(maps: Any) -> Maps:
    """The maps that ``regard.capture`` gave, or a list of some of them; an error for anything else."""
    if isinstance(maps, Map):
        raise TypeError(f"maps must be several maps, as capture gives them, got the single {maps.name!r}")
    if isinstance(maps, list | tuple) and maps and all(isinstance(found, Map) for found in maps):
        return Maps(maps)
    if not isinstance(maps, Maps):
        raise TypeError(f"maps must be what regard.capture gives, got a {type(maps).__name__}")
    return maps


def check_over_tokens(maps: Maps, what: str) -> None:
    """Raise an error unless all maps attend over tokens that all their queries share, with axes that are certain enough.

    Args:
        what: the analysis that needs it, for the message.
    """
    for name, found in maps.items():
        check_whole(found, what)
        if found.over == "channels":
            raise ValueError(
                f"{name!r} attends over channels, not over tokens: {what} needs maps over tokens; leave it out"
            )
        if found.over == "samples":
            raise ValueError(
                f"each query of {name!r} has keys of its own: {what} needs keys that are the same tokens for all queries"
            )
        if found.axes == "ambiguous":
            raise ValueError(
                f"which axis of {name!r} is the heads is ambiguous (its map is {found.shape}): {what} needs to know it"
            )


def check_whole(found: Map, what: str) -> None:
    """Raise an error if only an overview of this map was kept, and not its weights."""
    if any(call.stored is None and call.overview is not None for call in found.calls):
        raise ValueError(
            f"{what} needs whole maps, but {found.name!r} is an overview: capture it without overview=, at a length that "
            "fits into the budget, or read its .overview, .per_query and .per_key"
        )


def _renamed(record: AttentionRecord, name: str) -> AttentionRecord:
    same = copy.copy(record)
    same.name = name
    return same


def _row(found: Map) -> tuple[str, ...]:
    residual = found.residual
    return (
        found.name,
        found.latest.kept_size,
        str(len(found.calls)),
        "not compared" if math.isnan(residual) else f"{residual:.1e}",
        found.against,
        found.axes if found.over == "tokens" else f"{found.axes}, over {found.over}",
        (found.kernel or found.kind) + ("" if found.agrees else "  ← does not agree"),
    )


def _largest_residual(records: Iterable[AttentionRecord]) -> float:
    found = [record.residual for record in records if record.check.error is not None]
    return math.nan if any(map(math.isnan, found)) else max(found, default=math.nan)
