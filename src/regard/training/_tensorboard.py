"""TensorBoard: scalars, learning rates, where heads look, attention maps and alignments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from regard.training._evaluation import Score
from regard.training._events import EventFile
from regard.training._heads import Heads
from regard.training._meter import StepRecord
from regard.training._recipe import Task

AXES = ("row", "column")
Grid = Sequence[int]


class Board:
    """Event files in ``folder``.

    Args:
        folder: where they are.
        step: the run's step; what earlier files say about later steps is no longer shown.
        grids: the shape of the tokens that each layer sees, outlined around its heads.
        figures: about how many pictures of the heads are drawn in a run.
    """

    def __init__(self, folder: Path, step: int, total: int, grids: Mapping[str, Grid | None], figures: int = 5) -> None:
        self._file = EventFile(folder, step)
        self._grids = grids
        self._every = max(1, total // figures)
        self._next_figure = step
        self._total = total

    def steps(self, records: Sequence[StepRecord], rate: float, optimizers: Sequence[Optimizer]) -> None:
        """The mean of the steps since the last call, at the last of them."""
        values = {
            f"train/{name}": sum(getattr(record, name) for record in records) / len(records)
            for name in ("loss", "accuracy", "gradient_norm")
        }
        values["speed/samples_per_second"] = rate
        for number, optimizer in enumerate(optimizers):
            for at, group in enumerate(optimizer.param_groups):
                values[f"learning_rate/{number}_{type(optimizer).__name__}_{at}"] = group["lr"]
        self._file.scalars(records[-1].step, values)

    def evaluated(self, step: int, score: Score) -> None:
        self._file.scalars(step, {"validation/loss": score.loss, "validation/accuracy": score.accuracy})

    def heads(self, step: int, heads: Heads) -> None:
        """Each head's center and sharpness as numbers, and now and then a picture of all of them."""
        values = {}
        for layer, center, sharpness in zip(heads.layers, heads.center, heads.sharpness, strict=True):
            for head in range(len(center)):
                for axis, value in zip(AXES if center.shape[1] == 2 else range(9), center[head].tolist(), strict=False):
                    values[f"center/{layer}/{head}_{axis}"] = value
                for at, value in enumerate(sharpness[head].flatten().tolist()):
                    values[f"sharpness/{layer}/{head}_{at}"] = value
        self._file.scalars(step, values)
        if step >= self._next_figure or step == self._total:
            self._next_figure = step + self._every
            from regard.figures import heads as draw

            grids = [self._grid_of(layer, c.shape[1]) for layer, c in zip(heads.layers, heads.center, strict=True)]
            figure = draw(list(heads.center), list(heads.sharpness), grids, titles=list(heads.layers))
            self._file.figure(step, "heads", figure)

    def _grid_of(self, layer: str, axes: int) -> Grid | None:
        grid = self._grids.get(layer)
        return grid if grid is not None and len(grid) == axes else None

    def pictures(self, step: int, task: Task, network: nn.Module, examples: Any) -> None:
        """What the task draws of the network: attention maps of fixed held-out images, alignments of sentences."""
        for name, figure in task.pictures(network, examples).items():
            self._file.figure(step, name, figure)
