"""Gaussians fitted to the heads of a run whose network has no centers."""

from typing import TYPE_CHECKING, Any

from regard.analysis import Locality, locality
from regard.maps import Maps

if TYPE_CHECKING:
    from regard.training import Run
else:
    Run = Any

SAMPLES = 8  # that the maps are averaged over


def fitted(run: Run) -> tuple[list[Locality], list[int]]:
    """The best-fitting Gaussian of each head at every kept checkpoint, and the steps of the checkpoints."""
    from regard.training import Sample

    task, split = run.recipe.task, run.recipe.task.shown_split
    sample = Sample(task.batch(split, range(min(SAMPLES, task.count(split)))))
    steps = run.checkpoints.steps()
    if not steps:
        raise FileNotFoundError(f"{run.folder} has no checkpoint")
    found = []
    for step in steps:
        seen = task.attend(run.network(step), sample)
        grid = seen.grid if seen.tokens is None else (len(seen.tokens),)
        local = Maps(each for each in seen.maps.values() if _is_on_grid(each, grid))
        if not len(local) or isinstance(seen.tokens, tuple):
            raise ValueError(f"{run.folder} has no positional heads: its network does not attend over a grid")
        found.append(locality(local, grid))
    return found, steps


def _is_on_grid(found: Any, grid: tuple[int, ...] | None) -> bool:
    try:
        layout = found.layout(grid)
    except ValueError:
        return False
    return found.shape[2] == found.shape[3] and len(layout.grid) in (1, 2)
