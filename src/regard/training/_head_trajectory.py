"""Where the Gaussian heads of a network look, over a run: ``heads.jsonl`` in its folder.

The first line describes the network; each further line holds the positions at one step::

    {"version": 1, "grid": [14, 14], "grids": null, "layers": ["blocks.0.attention", "blocks.1.attention"]}
    {"step": 0, "center": [[[0.1, -1.2], …], …], "sharpness": [[0.5, …], …]}

``center[layer][head]`` is (row, column), key − query. ``sharpness[layer]`` has an entry per head: a number, one for each
axis, or a symmetric matrix, as :func:`regard.gaussian_attention` takes them. ``grid`` is null if it is unknown;
``grids`` holds one for each layer if they differ. Numbers have seven significant digits. A network without Gaussian
heads has no such file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.reading import UnreadableError
from regard.training._json_lines import read_lines

_LARGEST_SIDE = 2**20
_MOST_LINES = 20_000  # a run writes a few hundred


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
        # A layer often keeps its heads in a submodule. The outer layer comes first and gives the name.
        if not any(center is known for known in centers):
            centers.append(center)
            found[name] = module
    return found


def layer_grids(network: nn.Module) -> dict[str, tuple[int, ...] | None]:
    """The grid of tokens that each of those layers sees: the network's ``grid``, or its ``grids`` by block, where the
    block is the first number in a layer's name. None where the network has neither.

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
class HeadPositions:
    """The heads of all layers at one step: for each layer ``center`` (heads, axes) and ``sharpness`` (heads, …)."""

    layers: tuple[str, ...]
    center: tuple[Float[Tensor, "_ _"], ...]
    sharpness: tuple[Float[Tensor, "..."], ...]

    @classmethod
    def of(cls, layers: Mapping[str, nn.Module]) -> "HeadPositions":
        """The current positions of :func:`gaussian_layers`, in float32, on the network's device; does not synchronize."""
        with torch.no_grad():
            # Copies: the parameters keep changing.
            center = tuple(layer.center.detach().float().clone() for layer in layers.values())  # type: ignore[operator]
            sharpness = tuple(layer.sharpness.detach().float().clone() for layer in layers.values())  # type: ignore[operator]
        return cls(tuple(layers), center, sharpness)

    @property
    def are_finite(self) -> bool:
        return all(bool(values.isfinite().all()) for values in (*self.center, *self.sharpness))

    def on_host(self) -> "HeadPositions":
        center, sharpness = (tuple(each.cpu() for each in values) for values in (self.center, self.sharpness))
        return HeadPositions(self.layers, center, sharpness)


@dataclass(frozen=True)
class HeadTrajectory:
    """Where heads looked during a run, read from ``heads.jsonl``.

    Attributes:
        steps: the steps at which positions were written.
        layers: names of the layers.
        grid: the grid of tokens, or None where it is unknown.
        grids: the grid of each layer; by default ``grid`` for all.
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
    def read(cls, path: Path) -> "HeadTrajectory | None":
        """The trajectory in a file; None if the file is missing or still empty."""
        lines = list(read_lines(path, _MOST_LINES))
        if lines and lines[0].get("version") != 1:
            raise UnreadableError(f"{path} has version {lines[0].get('version')!r}; this regard reads version 1")
        if len(lines) < 2:
            return None
        try:
            return cls._of_lines(*lines)
        except (ValueError, TypeError, KeyError, IndexError, RuntimeError, OverflowError) as error:
            raise UnreadableError(
                f"{path} does not hold positions of heads: {type(error).__name__}: {error}"
            ) from error

    @classmethod
    def _of_lines(cls, first: Mapping[str, Any], *moments: Mapping[str, Any]) -> "HeadTrajectory":
        layers = range(len(first["layers"]))
        found = cls(
            steps=tuple(int(line["step"]) for line in moments),
            layers=tuple(map(str, first["layers"])),
            grid=None if first["grid"] is None else _sizes(first["grid"]),
            grids=tuple(map(_sizes, first.get("grids") or ())),  # files of older versions have none
            center=tuple(_numbers([line["center"][layer] for line in moments]) for layer in layers),
            sharpness=tuple(_numbers([line["sharpness"][layer] for line in moments]) for layer in layers),
        )
        for center, sharpness in zip(found.center, found.sharpness, strict=True):
            if center.ndim != 3 or sharpness.shape[:2] != center.shape[:2]:
                raise ValueError(f"centers {tuple(center.shape)} and sharpness {tuple(sharpness.shape)} do not fit")
        return found

    def at(self, index: int) -> HeadPositions:
        """The positions at the given entry of ``steps``."""
        center, sharpness = (tuple(each[index] for each in values) for values in (self.center, self.sharpness))
        return HeadPositions(self.layers, center, sharpness)


def header(network: nn.Module) -> dict[str, Any]:
    """The first line of the file."""
    grid: Any = getattr(network, "grid", None)
    grids = layer_grids(network)
    shared = None if grid is None else tuple(grid)
    own = None if set(grids.values()) == {shared} else list(grids.values())
    return {"version": 1, "grid": None if grid is None else list(grid), "grids": own, "layers": list(grids)}


def moment(step: int, heads: "HeadPositions") -> dict[str, Any]:
    """A further line of the file: the positions at one step."""
    return {"step": step, "center": _rounded(heads.center), "sharpness": _rounded(heads.sharpness)}


def _sizes(grid: Any) -> tuple[int, ...]:
    """The sides of a grid in a file; raises an error if they are not valid sizes."""
    if not isinstance(grid, list) or not all(type(side) is int and 0 < side <= _LARGEST_SIDE for side in grid):
        raise ValueError(f"{grid!r:.100} is not a grid of tokens")
    return tuple(grid)


def _numbers(values: Any) -> Tensor:
    found = torch.tensor(values, dtype=torch.float32)
    if not found.isfinite().all():
        raise ValueError("not all numbers are finite")
    return found


def _rounded(values: Any) -> Any:
    if isinstance(values, Tensor):
        return _rounded(values.tolist())
    if isinstance(values, list | tuple):
        return [_rounded(value) for value in values]
    return float(f"{values:.7g}")
