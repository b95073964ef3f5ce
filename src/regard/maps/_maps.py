"""Attention maps that were captured: a mapping from the names of modules to their maps."""

import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from jaxtyping import Float
from torch import Tensor

from regard.maps._layout import Layout, given_layout
from regard.maps._windows import Windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Missed:
    """Attention that was computed but not captured, and why."""

    name: str
    reason: str
    shape: tuple[int, ...] | None = None
    count: int = 1

    def __str__(self) -> str:
        shape = f" {self.shape}" if self.shape else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.name}{shape}: {self.reason}{times}"


@dataclass(eq=False)
class Call:
    """One attention of one call of a module.

    Attributes:
        stored: the map as it was kept: ``(batch or 1, heads, rows, keys)``, or window by window.
        batch: the batch size, where the map is the same for all of it and was kept once.
        error: max |weights @ V − what was returned|, on the model's device.
        logsumexp_error: the same for the logsumexp of the scores, where the kernel returned it.
        allowed: how large ``error`` may be by rounding alone.
        against: what ``error`` compares with.
        kind: how the attention was recognized.
        kernel: the operator that ran, where known.
        rows, heads: which were kept; None for all.
        windows: how an image was cut into windows.
        layout: how the keys lie on an image, where known.
        query_layout: how the queries lie on an image, where that is known and differs.
    """

    stored: Tensor | None
    batch: int
    error: Tensor | None
    logsumexp_error: Tensor | None
    allowed: Tensor | None
    against: str
    kind: str
    kernel: str | None = None
    rows: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    windows: Windows | None = None
    layout: Layout | None = None
    query_layout: Layout | None = None

    @property
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """The map. Windowed attention is put back onto the image (zero between windows)."""
        if self.stored is None:
            raise ValueError("this map was folded by reduce= as it came and not kept: see .reduced")
        if self.windows is not None and self.rows is None:
            return self.windows.on_image(self.stored)
        if self.stored.shape[0] == 1 and self.batch > 1:
            return self.stored.expand(self.batch, -1, -1, -1)
        return self.stored

    @property
    def residual(self) -> float:
        """max |weights @ V − what the kernel (or layer) returned|; NaN where nothing could be compared."""
        return math.nan if self.error is None else float(self.error)

    @property
    def logsumexp_residual(self) -> float | None:
        """max |logsumexp of the scores − the kernel's own|; None where the kernel returns none."""
        return None if self.logsumexp_error is None else float(self.logsumexp_error)

    @property
    def agrees(self) -> bool:
        """Whether the residual is no larger than rounding explains. A check, not a proof."""
        return self.error is None or self.allowed is None or bool(self.error <= self.allowed)


class Map:
    """The maps of one module, call by call. What is asked of the map itself is answered for the latest call.

    Attributes:
        name: the module's path in the model.
        calls: every call, in order (generation, shared modules, diffusion steps).
        reduced: what ``reduce=`` made of the maps; None without it.
    """

    def __init__(self, name: str, calls: list[Call] | None = None, reduced: Any = None) -> None:
        self.name = name
        self.calls = calls if calls is not None else []
        self.reduced = reduced

    @property
    def latest(self) -> Call:
        return self.calls[-1]

    @property
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """``(batch, heads, queries, keys)``; rows sum to 1, or to 0 where there was nothing to attend to."""
        return self.latest.weights

    @property
    def windows(self) -> Tensor | None:
        """Windowed attention window by window, ``(batch · windows, heads, area, area)``; None for other attention."""
        return self.latest.stored if self.latest.windows is not None else None

    @property
    def residual(self) -> float:
        """The largest of the calls' residuals: max |weights @ V − what was returned|. A check, not a proof: maps that
        differ along the null space of V give the same output."""
        found = [call.residual for call in self.calls if call.error is not None]
        return math.nan if any(map(math.isnan, found)) else max(found, default=math.nan)

    @property
    def logsumexp_residual(self) -> float | None:
        found = [x for call in self.calls if (x := call.logsumexp_residual) is not None]
        return max(found, default=None)

    @property
    def agrees(self) -> bool:
        return all(call.agrees for call in self.calls)

    @property
    def against(self) -> str:
        """What the residual compares with: "kernel", "product" (the model's own), "layer" (a whole layer's output)."""
        return self.latest.against

    @property
    def kernel(self) -> str | None:
        return self.latest.kernel

    @property
    def kind(self) -> str:
        return self.latest.kind

    @property
    def shape(self) -> tuple[int, ...]:
        call = self.latest
        if call.stored is None:
            return ()
        if call.windows is not None and call.rows is None:
            tokens = math.prod(call.windows.grid)
            return (call.stored.shape[0] // call.windows.count, call.stored.shape[1], tokens, tokens)
        return (max(call.batch, call.stored.shape[0]), *call.stored.shape[1:])

    def layout(self, grid: Any = None, prefix: int | None = None) -> Layout:
        """How the keys lie on an image: as given, else as the model says; where neither says it, an error."""
        keys = self.shape[-1]
        if grid is not None:
            return given_layout(keys, grid, prefix, self.name)
        known = self.latest.layout
        if known is None or (prefix is not None and prefix != known.prefix):
            raise ValueError(
                f"how the {keys} tokens of {self.name!r} lie on a grid is not known"
                + ("" if known is None else f" to be {prefix} prefix tokens (the model says {known})")
                + ": pass grid=, as in (14, 14), and prefix=, the number of tokens before it"
            )
        return known

    @property
    def grid(self) -> tuple[int, ...]:
        return self.layout().grid

    @property
    def prefix(self) -> int:
        return self.layout().prefix

    def plot(self, *, sample: int = 0, query: int | None = None) -> "Figure":
        """One panel per head: the map, or on a grid what one query attends to. Needs matplotlib."""
        from regard.figures._map import plot

        return plot(self, sample=sample, query=query)

    def __repr__(self) -> str:
        return f"Map({self.name!r}, shape={self.shape}, calls={len(self.calls)}, residual={self.residual:.1e})"


class Maps(Mapping[str, Map]):
    """Maps by name, in the order in which they were first seen.

    ``maps["blocks.3.attn"]``, ``maps[-1]``, ``maps[2:4]`` and ``maps["blocks.*"]`` (a part, again a :class:`Maps`).

    Attributes:
        missed: attention that was computed but not captured, with the reason.
        notes: what a reader should know, such as a path of the model that was not kept.
    """

    def __init__(self, maps: Iterable[Map] = (), missed: list[Missed] | None = None) -> None:
        self._maps = {found.name: found for found in maps}
        self.missed: list[Missed] = missed if missed is not None else []
        self.notes: list[str] = []

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
        """All maps in one tensor, where they have one shape."""
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
        """The largest residual of all."""
        found = [call.residual for one in self.values() for call in one.calls if call.error is not None]
        return math.nan if any(map(math.isnan, found)) else max(found, default=math.nan)

    def save(self, path: str | Path, *, dtype: str | None = None) -> Path:
        """Write all maps to one safetensors file; ``dtype`` "uint8" (scaled per head) or "float16" makes it small."""
        from regard.maps._files import save

        return save(self, Path(path), dtype)

    @classmethod
    def load(cls, path: str | Path) -> "Maps":
        """Read what :meth:`save` wrote, or a folder that ``capture(stream=…)`` wrote."""
        from regard.maps._files import load

        return load(Path(path))

    def __repr__(self) -> str:
        from regard.maps._table import table

        return table(self)


def check_maps(maps: Any) -> None:
    """``maps`` is what a caller captured."""
    if isinstance(maps, Map):
        raise TypeError(f"maps must be several maps, as capture gives them, got the single {maps.name!r}")
    if not isinstance(maps, Maps):
        raise TypeError(f"maps must be what regard.capture gives, got a {type(maps).__name__}")
