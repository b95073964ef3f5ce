"""Where the heads of a network look, over the course of a run: ``heads.jsonl`` in its folder.

The first line says what the rest is about, every other line is one moment::

    {"version": 1, "grid": [14, 14], "grids": null, "layers": ["blocks.0.attention", "blocks.1.attention"]}
    {"step": 0, "center": [[[0.1, -1.2], …], …], "sharpness": [[0.5, …], …]}

``center[layer][head]`` is (row, column), key − query; ``sharpness[layer]`` has an entry per head: a number, one for each
axis, or a symmetric matrix, as :func:`regard.gaussian_attention` takes them. ``grid`` is null where it is not known, and
``grids`` has one for each layer where they differ.
Numbers have seven significant digits. A network without Gaussian heads leaves no file.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.training._lines import Lines, read_lines


def gaussian_layers(network: nn.Module) -> dict[str, nn.Module]:
    """The layers with Gaussian heads, by their names in the network: those with a ``center`` and a ``sharpness``.

    >>> gaussian_layers(torch.nn.Linear(2, 2))
    {}
    """
    found: dict[str, nn.Module] = {}
    centers: list[Tensor] = []
    for name, module in network.named_modules():
        center, sharpness = getattr(module, "center", None), getattr(module, "sharpness", None)
        if not (isinstance(center, Tensor) and isinstance(sharpness, Tensor) and center.ndim == 2):
            continue
        # A layer often keeps its heads in a part of its own: the outer one, which comes first, names them.
        if not any(center is known for known in centers):
            centers.append(center)
            found[name] = module
    return found


def layer_grids(network: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """The tokens that each of those layers sees, where the network says: one ``grid`` for all, or ``grids`` by the block
    that a layer is in, which is the first number in its name.

    >>> from regard.models import ImageEncoder
    >>> layer_grids(ImageEncoder(16, 2, 2, dim=9, depth=2, merge=(1,)))
    {'blocks.0.attention': (8, 8), 'blocks.1.attention': (4, 4)}
    """
    grid: Any = getattr(network, "grid", None)
    grids: Any = getattr(network, "grids", None)
    numbers = {
        name: next((int(part) for part in name.split(".") if part.isdigit()), None) for name in gaussian_layers(network)
    }
    found = {name: grids[number] if grids and number is not None else grid for name, number in numbers.items()}
    return {name: None if own is None else tuple(own) for name, own in found.items()}


@dataclass(frozen=True)
class Heads:
    """The heads of all layers at one moment: by layer, ``center`` (heads, axes) and ``sharpness`` (heads, …)."""

    layers: tuple[str, ...]
    center: tuple[Float[Tensor, "_ _"], ...]
    sharpness: tuple[Float[Tensor, "..."], ...]

    @classmethod
    def of(cls, layers: Mapping[str, nn.Module]) -> "Heads":
        """Of :func:`gaussian_layers`, as they are now, in float32, where the network is: nobody waits for the device."""
        with torch.no_grad():
            # Copies: the parameters themselves go on moving.
            center = tuple(layer.center.detach().float().clone() for layer in layers.values())  # type: ignore[operator]
            sharpness = tuple(layer.sharpness.detach().float().clone() for layer in layers.values())  # type: ignore[operator]
        return cls(tuple(layers), center, sharpness)

    @property
    def are_finite(self) -> bool:
        return all(bool(values.isfinite().all()) for values in (*self.center, *self.sharpness))

    def on_host(self) -> "Heads":
        center, sharpness = (tuple(each.cpu() for each in values) for values in (self.center, self.sharpness))
        return Heads(self.layers, center, sharpness)


@dataclass(frozen=True)
class Trajectory:
    """Where heads looked during a run, as ``heads.jsonl`` has it.

    Attributes:
        steps: when.
        layers: names of the layers.
        grid: the tokens' shape, where it is known.
        grids: of each layer, where they are known; ``grid`` for all by default.
        center: for each layer (steps, heads, axes).
        sharpness: for each layer (steps, heads), (steps, heads, axes) or (steps, heads, axes, axes).
    """

    steps: tuple[int, ...]
    layers: tuple[str, ...]
    grid: tuple[int, ...] | None
    center: tuple[Float[Tensor, "_ _ _"], ...]
    sharpness: tuple[Float[Tensor, "..."], ...]
    grids: tuple[tuple[int, ...] | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.grids:
            object.__setattr__(self, "grids", (self.grid,) * len(self.layers))

    @classmethod
    def read(cls, path: Path) -> "Trajectory | None":
        """None where there is no file, or nothing in it yet."""
        header: dict[str, Any] | None = None
        moments = []
        for line in read_lines(path):
            if header is None:
                header = line
                if header.get("version") != 1:
                    raise ValueError(f"{path} is of version {header.get('version')!r}, but this regard reads version 1")
            else:
                moments.append(line)
        if header is None or not moments:
            return None
        layers = range(len(header["layers"]))
        return cls(
            steps=tuple(moment["step"] for moment in moments),
            layers=tuple(header["layers"]),
            grid=None if header["grid"] is None else tuple(header["grid"]),
            grids=tuple(map(tuple, header.get("grids") or ())),  # files of older versions have none
            center=tuple(torch.tensor([moment["center"][layer] for moment in moments]) for layer in layers),
            sharpness=tuple(torch.tensor([moment["sharpness"][layer] for moment in moments]) for layer in layers),
        )

    def at(self, moment: int) -> Heads:
        """The heads at the given entry of ``steps``."""
        center, sharpness = (tuple(each[moment] for each in values) for values in (self.center, self.sharpness))
        return Heads(self.layers, center, sharpness)


@dataclass
class HeadLog:
    """Writes the trajectory of a network's heads, about ``moments`` times in a run of ``total`` steps.

    The first and the last moment are always among them. A network without Gaussian heads costs nothing.
    """

    path: Path
    network: nn.Module
    total: int
    moments: int = 200
    lines: Lines = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.lines = Lines(self.path)
        self.layers = gaussian_layers(self.network)
        self.active = bool(self.layers)
        self._noted: list[tuple[int, Heads]] = []

    def is_due(self, step: int) -> bool:
        return self.active and (step % max(1, self.total // self.moments) == 0 or step == self.total)

    def note(self, step: int) -> None:
        """Remember where the heads are now; :meth:`write` says it."""
        self._noted.append((step, Heads.of(self.layers)))

    def write(self) -> list[tuple[int, Heads]]:
        """What was noted since, to the file, but for heads that are nowhere: of those the loss tells. Waits for the
        device."""
        written = [(step, heads.on_host()) for step, heads in self._noted]
        written = [(step, heads) for step, heads in written if heads.are_finite]
        self._noted.clear()
        if written and self.lines.size == 0:
            grid: Any = getattr(self.network, "grid", None)
            grids = list(layer_grids(self.network).values())
            own = None if set(grids) == {None if grid is None else tuple(grid)} else grids
            header = {"grid": None if grid is None else list(grid), "grids": own, "layers": list(self.layers)}
            self.lines.add({"version": 1, **header})
        for step, heads in written:
            self.lines.add({"step": step, "center": _rounded(heads.center), "sharpness": _rounded(heads.sharpness)})
        return written


def _rounded(values: Any) -> Any:
    if isinstance(values, Tensor):
        return _rounded(values.tolist())
    if isinstance(values, list | tuple):
        return [_rounded(value) for value in values]
    return float(f"{values:.7g}")
