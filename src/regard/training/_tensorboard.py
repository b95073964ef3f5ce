"""TensorBoard: scalars, learning rates, where heads look, attention maps and alignments."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from regard import figures
from regard.training._event_file import EventFile
from regard.training._head_trajectory import HeadPositions
from regard.training._recipe import Recipe
from regard.training.events import Evaluated, Event, Logged, Started

AXES = ("row", "column")
HEAD_FIGURES, ATTENTION_FIGURES = 5, 4  # about how many of each in a run
SAMPLES = 2  # validation samples whose attention is drawn
Grid = Sequence[int]


class TensorBoard:
    """Writes event files.

    Args:
        folder: the folder of the files.
        recipe: the recipe, whose task draws attention maps of validation samples.
        network: the network that is evaluated.
        grids: the grid of tokens of each layer with Gaussian heads, drawn around its heads.
    """

    def __init__(self, folder: Path, recipe: Recipe, network: nn.Module, grids: Mapping[str, Grid | None]) -> None:
        self.folder, self.recipe, self.network, self.grids = folder, recipe, network, grids
        self._file: EventFile

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self._file = EventFile(self.folder, event.step)
            self._total, self._next_figure = event.total, event.step
        elif isinstance(event, Logged) and event.records:
            self._scalars(event)
        elif isinstance(event, Evaluated):
            values = {"validation/loss": event.score.loss, "validation/accuracy": event.score.accuracy}
            self._file.scalars(event.step, values)
            if event.epoch % max(1, self.recipe.epochs // ATTENTION_FIGURES) == 0 or event.step == self._total:
                for name, figure in sample_figures(self.recipe.task, self.network).items():
                    self._file.figure(event.step, name, figure)

    def _scalars(self, event: Logged) -> None:
        """The mean of the steps since the last call, at the last of them."""
        values = {
            f"train/{name}": sum(getattr(record, name) for record in event.records) / len(event.records)
            for name in ("loss", "accuracy", "gradient_norm")
        }
        values["speed/samples_per_second"] = event.samples_per_second
        values |= {f"learning_rate/{name}": rate for name, rate in event.learning_rates.items()}
        self._file.scalars(event.records[-1].step, values)

    def heads(self, step: int, heads: HeadPositions) -> None:
        """Write the center and sharpness of each head as numbers, and sometimes a figure of all heads."""
        values = {}
        for layer, center, sharpness in zip(heads.layers, heads.center, heads.sharpness, strict=True):
            for head in range(len(center)):
                for axis, value in zip(AXES if center.shape[1] == 2 else range(9), center[head].tolist(), strict=False):
                    values[f"center/{layer}/{head}_{axis}"] = value
                for at, value in enumerate(sharpness[head].flatten().tolist()):
                    values[f"sharpness/{layer}/{head}_{at}"] = value
        self._file.scalars(step, values)
        if step >= self._next_figure or step == self._total:
            self._next_figure = step + max(1, self._total // HEAD_FIGURES)
            grids = [self._grid_of(layer, c.shape[1]) for layer, c in zip(heads.layers, heads.center, strict=True)]
            figure = figures.heads(list(heads.center), list(heads.sharpness), grids, titles=list(heads.layers))
            self._file.figure(step, "heads", figure)

    def _grid_of(self, layer: str, axes: int) -> Grid | None:
        grid = self.grids.get(layer)
        return grid if grid is not None and len(grid) == axes else None


def sample_figures(task: Any, network: nn.Module, samples: int = SAMPLES) -> dict[str, Any]:
    """Figures of the network's attention on the first validation samples, by name: maps over images, or the alignment of
    a sentence; empty for other tasks."""
    found = {}
    split = task.shown_split
    for number in range(min(samples, task.count(split))):
        seen = task.attend(network, task.sample(split, number))
        if seen.image is not None:
            found[f"attention/image_{number}"] = figures.image_attention(seen.maps, seen.image, grid=seen.grid)
        elif seen.alignment is not None:
            found[f"attention/alignment_{number}"] = figures.alignment(seen.alignment, *seen.tokens)
    return {name: figure for name, figure in found.items() if figure is not None}
