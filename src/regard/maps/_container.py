"""``Maps``: a mapping from the names of modules to their maps."""

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from regard.maps._axes import Certainty, Over
from regard.maps._files import read_records, write_records
from regard.maps._layout import Layout, given_layout
from regard.maps._overview import KeyStatistics, Overview, QueryStatistics
from regard.maps._record import AttentionRecord, Missed
from regard.maps._selection import Rows, check_selection, select
from regard.support.checks import check_count
from regard.support.tables import text_table


class Map:
    """The attention of one module, call by call. The properties of the map are those of the latest call.

    Attributes:
        name: the module's path in the model.
        calls: a record for every call, in order (generation, shared modules, diffusion steps).
        reduced: what ``reduce=`` made of the weights; None without it.
    """

    def __init__(self, name: str, calls: list[AttentionRecord] | None = None, reduced: Any = None) -> None:
        self.name = name
        self.calls = calls if calls is not None else []
        self.reduced = reduced

    @property
    def latest(self) -> AttentionRecord:
        return self.calls[-1]

    @property
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """``(batch, heads, queries, keys)``; rows sum to 1, or to 0 if there was no key to attend to."""
        return self.latest.weights

    @property
    def overview(self) -> Float[Tensor, "batch heads rows columns"]:
        """The exact mass of each cell of the map, ``(batch, heads, cells, cells)``, from ``capture(overview=…)``."""
        return self._overview.mass

    @property
    def overview_largest(self) -> Float[Tensor, "batch heads rows columns"]:
        """The largest weight in each cell of the map."""
        return self._overview.largest

    @property
    def cell(self) -> tuple[int, int]:
        """How many queries and how many keys a cell of the overview covers."""
        return self._overview.cell

    @property
    def per_query(self) -> QueryStatistics:
        """Of every query: entropy, mass on the first keys, mean distance, largest weight and where it is."""
        return self._overview.per_query

    @property
    def per_key(self) -> KeyStatistics:
        """Of every key: mass received, the largest weight, and the query that gives it."""
        return self._overview.per_key

    @property
    def _overview(self) -> Overview:
        if self.latest.overview is None:
            raise ValueError(f"{self.name!r} has no overview: capture it with regard.capture(model, overview=128)")
        return self.latest.overview

    def row(self, index: int) -> Float[Tensor, "batch heads keys"]:
        """The weights of one query, exactly: it was kept by ``rows=``, or is computed from what ``keep_keys=True`` kept."""
        count = self.latest.shape[2]
        if isinstance(index, bool) or not isinstance(index, int) or not -count <= index < count:
            raise IndexError(f"row must be a whole number below {count}, got {index!r:.40}")
        return self.latest.block(torch.tensor([index % count]))[:, :, 0]

    def block(self, rows: Rows = None, columns: Rows = None) -> Float[Tensor, "batch heads rows columns"]:
        """The weights of some queries and keys, exactly, like :meth:`row`; None stands for all."""
        chosen = []
        for name, wanted, count in (("rows", rows, self.latest.shape[2]), ("columns", columns, self.latest.shape[3])):
            check_selection(name, wanted)
            selection = select(wanted, count)
            if isinstance(selection, str):
                raise IndexError(f"{name}={wanted!r:.80}: {selection}")
            chosen.append(selection)
        return self.latest.block(*chosen)

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
    def agrees(self) -> bool:
        """Whether rounding explains the residuals of all calls."""
        return all(call.agrees for call in self.calls)

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
        """What keys are: "tokens", "channels", or "samples", which are other ones for each query."""
        return self.latest.axes.over

    @property
    def kernel(self) -> str | None:
        return self.latest.kernel

    @property
    def kind(self) -> str:
        return self.latest.kind

    @property
    def shape(self) -> tuple[int, ...]:
        return self.latest.kept_shape

    def layout(self, grid: Any = None, prefix: int | None = None) -> Layout:
        """How the keys lie on an image: as given, else as the model states it. An error if neither is known."""
        keys = self.shape[-1] if self.shape else self.latest.shape[3]
        if prefix is not None:
            check_count("prefix", prefix)
        if grid is not None:
            return given_layout(keys, grid, prefix, self.name)
        known = self.latest.layout
        if known is None or (prefix is not None and prefix != known.prefix):
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
        return f"Map({self.name!r}, shape={self.shape}, calls={len(self.calls)}, residual={self.residual:.1e})"


class Maps(Mapping[str, Map]):
    """Maps by name, in the order in which the modules first ran.

    ``maps["blocks.3.attn"]``, ``maps[-1]``, ``maps[2:4]`` and ``maps["blocks.*"]`` (the maps that match, as a
    :class:`Maps`).

    Attributes:
        missed: attention that was computed but not captured, with the reason.
        notes: what a reader should know about the capture.
    """

    def __init__(self, maps: Iterable[Map] = (), missed: list[Missed] | None = None) -> None:
        self._maps = {found.name: found for found in maps}
        self.missed: list[Missed] = missed if missed is not None else []
        self.notes: list[str] = []

    def add(self, record: AttentionRecord) -> Map:
        """Append the record to the map of its name, and return this map."""
        found = self.ensure(record.name)
        found.calls.append(record)
        return found

    def ensure(self, name: str) -> Map:
        """The map of this name, which may have no calls yet."""
        return self._maps.setdefault(name, Map(name))

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
                found = Maps(found for name, found in self._maps.items() if fnmatch.fnmatchcase(name, key))
                if found:
                    return found
            raise KeyError(f"no map is named {key!r}; there are {', '.join(self._maps) or 'none'}")
        chosen = list(self._maps.values())[key]
        return Maps(chosen) if isinstance(chosen, list) else chosen

    def __iter__(self) -> Iterator[str]:
        return iter(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

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

    @property
    def residual(self) -> float:
        """The largest residual of all maps."""
        return _largest_residual(self.records)

    def save(self, path: str | Path, *, dtype: str | None = None) -> Path:
        """Write all maps to one safetensors file; ``dtype`` "uint8" (scaled per head) or "float16" makes it small."""
        named = [replace(call, name=found.name) for found in self.values() for call in found.calls]
        return write_records(Path(path), named, self.missed, self.notes, dtype)

    @classmethod
    def load(cls, path: str | Path) -> "Maps":
        """Read the file that :meth:`save` wrote, or the folder that ``capture(stream=…)`` wrote."""
        maps = cls()
        records, maps.missed, maps.notes = read_records(Path(path))
        for record in records:
            maps.add(record)
        return maps

    def __repr__(self) -> str:
        rows = [("name", "shape", "calls", "residual", "against", "axes", "kernel"), *map(_row, self.values())]
        lines = text_table(rows) if len(rows) > 1 else ["no attention was captured"]
        lines += [f"missed  {missed}" for missed in self.missed]
        lines += [f"note    {note}" for note in self.notes]
        return "\n".join(lines)


def check_maps(maps: Any) -> None:
    """Raise an error unless ``maps`` are what ``regard.capture`` gives."""
    if isinstance(maps, Map):
        raise TypeError(f"maps must be several maps, as capture gives them, got the single {maps.name!r}")
    if not isinstance(maps, Maps):
        raise TypeError(f"maps must be what regard.capture gives, got a {type(maps).__name__}")


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


def _row(found: Map) -> tuple[str, ...]:
    residual = found.residual
    return (
        found.name,
        "×".join(map(str, found.shape)) or ("folded" if found.latest.overview is None else _cells(found.latest)),
        str(len(found.calls)),
        "not compared" if math.isnan(residual) else f"{residual:.1e}",
        found.against,
        found.axes if found.over == "tokens" else f"{found.axes}, over {found.over}",
        (found.kernel or found.kind) + ("" if found.agrees else "  ← does not agree"),
    )


def _cells(record: AttentionRecord) -> str:
    """An overview, as in ``1×4×16384×16384 in 128×128 cells``."""
    rows, columns = (0, 0) if record.overview is None else record.overview.mass.shape[2:]
    return "×".join(map(str, record.shape)) + f" in {rows}×{columns} cells"


def _largest_residual(records: Iterable[AttentionRecord]) -> float:
    found = [record.residual for record in records if record.check.error is not None]
    return math.nan if any(map(math.isnan, found)) else max(found, default=math.nan)
