"""TensorBoard: scalars, learning rates, where heads look, attention maps and alignments."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from regard.training._evaluation import Score
from regard.training._heads import Heads
from regard.training._meter import StepRecord
from regard.training._recipe import Task

AXES = ("row", "column")


class Board:
    """Event files in ``folder``.

    Args:
        folder: where they are.
        step: the run's step; what earlier files say about later steps is no longer shown.
        grid: the shape of the tokens, outlined around heads.
        figures: about how many pictures of the heads are drawn in a run.
    """

    def __init__(self, folder: Path, step: int, total: int, grid: Sequence[int] | None, figures: int = 5) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise ImportError("tensorboard=True needs tensorboard: pip install 'regard[train]'") from missing
        self._writer: Any = SummaryWriter(str(folder), purge_step=step + 1 if step else None)
        self._grid = grid
        self._every = max(1, total // figures)
        self._next_figure = step
        self._total = total

    def steps(self, records: Sequence[StepRecord], rate: float, optimisers: Sequence[Optimizer]) -> None:
        """The mean of the steps since the last call, at the last of them."""
        step = records[-1].step
        for name in ("loss", "accuracy", "gradient_norm"):
            mean = sum(getattr(record, name) for record in records) / len(records)
            self._writer.add_scalar(f"train/{name}", mean, step)
        self._writer.add_scalar("speed/samples_per_second", rate, step)
        for number, optimiser in enumerate(optimisers):
            for at, group in enumerate(optimiser.param_groups):
                name = f"learning_rate/{number}_{type(optimiser).__name__}_{at}"
                self._writer.add_scalar(name, group["lr"], step)

    def evaluated(self, step: int, score: Score) -> None:
        self._writer.add_scalar("validation/loss", score.loss, step)
        self._writer.add_scalar("validation/accuracy", score.accuracy, step)

    def heads(self, step: int, heads: Heads) -> None:
        """Each head's center and sharpness as scalars, and now and then a picture of all of them."""
        for layer, center, sharpness in zip(heads.layers, heads.center, heads.sharpness, strict=True):
            for head in range(len(center)):
                for axis, value in zip(AXES if center.shape[1] == 2 else range(9), center[head].tolist(), strict=False):
                    self._writer.add_scalar(f"center/{layer}/{head}_{axis}", value, step)
                for at, value in enumerate(sharpness[head].flatten().tolist()):
                    self._writer.add_scalar(f"sharpness/{layer}/{head}_{at}", value, step)
        if step >= self._next_figure or step == self._total:
            self._next_figure = step + self._every
            from regard.plots import heads as draw

            grid = self._grid if self._grid and len(self._grid) == heads.center[0].shape[1] else None
            figure = draw(list(heads.center), list(heads.sharpness), grid, titles=list(heads.layers))
            self._writer.add_figure("heads", figure, step)

    def pictures(self, step: int, task: Task, network: nn.Module, examples: Any) -> None:
        """What the task draws of the network: attention maps of fixed held-out images, alignments of sentences."""
        for name, figure in task.pictures(network, examples).items():
            self._writer.add_figure(name, figure, step)

    def close(self) -> None:
        self._writer.close()
