"""Where heads look, at one step or over training."""

import re
from typing import Any

import torch
from torch import Tensor

from regard.analysis import Locality, LocalityHistory
from regard.views._fits import fitted
from regard.views._payload import Payload


def payload(what: Any) -> Payload | None:
    """From a run, from its trajectory, from heads at one step, from fits at checkpoints (``regard.analysis.trajectory``)
    or from one fit; None for anything else.

    A run whose heads have no centers is shown by the Gaussians that fit its maps, at the checkpoints that were kept.
    """
    if isinstance(what, LocalityHistory):
        steps = [_step(path.parts, number) for number, path in enumerate(what.checkpoints)]
        return _fitted(what.localities, steps, title="Gaussians fitted to heads, over checkpoints")
    if isinstance(what, Locality):
        return _fitted([what], [0], title="Where heads look: the Gaussians that fit them best")
    from regard.training import HeadPositions, HeadTrajectory, Run

    if isinstance(what, Run):
        curve = [(line["step"], line["validation_accuracy"]) for line in what.evaluations]
        if what.heads is None:
            return _fitted(*fitted(what), what.recipe.name, curve)
        return _trajectory(what.heads, what.recipe.name, curve)
    if isinstance(what, HeadTrajectory):
        return _trajectory(what)
    if isinstance(what, HeadPositions):
        center, sharpness = (tuple(each[None] for each in values) for values in (what.center, what.sharpness))
        return _trajectory(HeadTrajectory((0,), what.layers, None, center, sharpness))
    return None


def _trajectory(found: Any, name: str = "", curve: Any = ()) -> Payload:
    """Centers and sharpness of Gaussian heads at each recorded step; ``curve`` holds (step, validation accuracy)."""
    arrays: dict[str, Tensor] = {}
    layers = []
    heads = zip(found.layers, found.grids, found.center, found.sharpness, strict=True)
    for number, (layer, grid, center, sharpness) in enumerate(heads):
        axes = center.shape[-1]
        if axes not in (1, 2):
            raise ValueError(f"heads over {axes} axes cannot be drawn: {layer!r} has center {tuple(center.shape)}")
        arrays[f"center{number}"] = center.float()
        arrays[f"sharpness{number}"] = matrices(sharpness.float(), axes)
        layers.append({"name": layer, "heads": center.shape[1], "axes": axes, "grid": _grid(grid, axes)})
    meta = {"name": name, "steps": list(found.steps), "layers": layers, "curve": [list(point) for point in curve]}
    return Payload("heads", meta, arrays)


def matrices(sharpness: Tensor, axes: int) -> Tensor:
    """S of each head at each step, ``(steps, heads, axes, axes)``.

    >>> matrices(torch.full((1, 2), 3.0), 2)[0, 0].tolist()
    [[3.0, 0.0], [0.0, 3.0]]
    """
    if sharpness.ndim == 2:
        return sharpness[..., None, None] * torch.eye(axes)
    return torch.diag_embed(sharpness) if sharpness.ndim == 3 else (sharpness + sharpness.mT) / 2


def _grid(grid: tuple[int, ...] | None, axes: int) -> list[int] | None:
    return list(grid) if grid is not None and len(grid) == axes else None


def _fitted(
    localities: list[Locality], steps: list[int], name: str = "", curve: Any = (), title: str | None = None
) -> Payload:
    """The Gaussians that fit the heads of any network, one set of fits for each step."""
    arrays: dict[str, Tensor] = {}
    layers = []
    for number, (layer, layout) in enumerate(localities[0].layouts.items()):
        heads = [[head for head in found if head.name == layer] for found in localities]
        axes = len(layout.grid)
        if axes not in (1, 2):
            raise ValueError(f"heads over {axes} axes cannot be drawn: the grid of {layer!r} is {layout.grid}")
        arrays[f"center{number}"] = torch.tensor([[head.center for head in moment] for moment in heads])
        sharpness = torch.tensor([[head.sharpness for head in moment] for moment in heads])
        arrays[f"sharpness{number}"] = matrices(sharpness, axes)
        arrays[f"fit{number}"] = torch.tensor([[head.fit for head in moment] for moment in heads])
        numbers = [head.head for head in heads[0]]
        about = {"name": layer, "heads": len(numbers), "numbers": numbers, "axes": axes, "grid": list(layout.grid)}
        layers.append({**about, "fitted": True})
    meta = {"name": name, "steps": steps, "layers": layers, "curve": [list(point) for point in curve]}
    return Payload("heads", meta if title is None else {**meta, "title": title}, arrays)


def _step(parts: tuple[str, ...], number: int) -> int:
    """The last number in the path of a checkpoint, which usually is the step."""
    found = re.findall(r"\d+", "/".join(parts[-2:]))
    return int(found[-1]) if found else number
