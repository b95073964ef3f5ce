"""Listeners that write a run's files: metrics, heads, checkpoints and the summary."""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from torch import nn

from regard.models import Pretrained
from regard.training._head_trajectory import HeadPositions, gaussian_layers, header, moment
from regard.training._json_lines import JsonLines
from regard.training._machine import command, commit, versions
from regard.training._progress import say
from regard.training._recipe import Recipe
from regard.training._run import SUMMARY, Run
from regard.training._stop import listed
from regard.training.events import CheckpointDue, Evaluated, Event, Finished, Logged, Skipped, Started, Stepped

MOMENTS = 200  # about how many head positions a run keeps


class MetricsWriter:
    """Writes a line for each step and each evaluation."""

    def __init__(self, lines: JsonLines) -> None:
        self.lines = lines

    def __call__(self, event: Event) -> None:
        if isinstance(event, Logged):
            self.lines.add(*(vars(record) for record in event.records))
        elif isinstance(event, Evaluated):
            self.lines.add(
                {
                    "step": event.step,
                    "epoch": event.epoch,
                    "validation_loss": event.score.loss,
                    "validation_accuracy": event.score.accuracy,
                    "seconds": round(event.seconds, 3),
                }
            )


class HeadWriter:
    """Writes where a network's Gaussian heads look, about ``MOMENTS`` times in a run, the first and last step included.

    Positions are copied on the device at each such step and written when the loop logs, so that no step waits. A network
    without Gaussian heads costs nothing.

    Args:
        lines: the file.
        network: the network whose heads are written.
        total: steps of the run.
        written: called with each step and the positions written for it.
    """

    def __init__(
        self,
        lines: JsonLines,
        network: nn.Module,
        total: int,
        written: Callable[[int, HeadPositions], None] | None = None,
    ) -> None:
        self.lines, self.network, self.total, self.written = lines, network, total, written
        self.layers = gaussian_layers(network)
        self._noted: list[tuple[int, HeadPositions]] = []

    def __call__(self, event: Event) -> None:
        if not self.layers:
            return
        begins = isinstance(event, Started) and event.step == 0
        if begins or (isinstance(event, Stepped) and self.is_due(event.step)):
            self._noted.append((event.step, HeadPositions.of(self.layers)))  # type: ignore[union-attr]
        elif isinstance(event, Logged):
            self._write()

    def is_due(self, step: int) -> bool:
        return step % max(1, self.total // MOMENTS) == 0 or step == self.total

    def _write(self) -> None:
        noted = [(step, heads.on_host()) for step, heads in self._noted]
        self._noted.clear()
        for step, heads in noted:
            if not heads.are_finite:  # the loss of this step reports the problem
                continue
            if self.lines.size == 0:
                self.lines.add(header(self.network))
            self.lines.add(moment(step, heads))
            if self.written is not None:
                self.written(step, heads)


class CheckpointWriter:
    """Saves checkpoints, together with the sizes of the log files, to which a resumed run truncates them."""

    def __init__(self, run: Run, logs: Sequence[JsonLines]) -> None:
        self.run, self.logs = run, logs

    def __call__(self, event: Event) -> None:
        if isinstance(event, CheckpointDue):
            for log in self.logs:
                log.flush()
            sizes = {log.path.name: log.size for log in self.logs}
            state = {**event.state, "logs": sizes, "score": event.accuracy}
            self.run.checkpoints.save(event.step, event.tensors, state)


class SummaryWriter:
    """Writes the trained network and the summary at the end, unless the run already has them."""

    def __init__(self, run: Run, recipe: Recipe) -> None:
        self.run, self.recipe = run, recipe

    def __call__(self, event: Event) -> None:
        if not isinstance(event, Finished) or self.run.summary is not None:
            return
        if isinstance(event.network, Pretrained):
            event.network.save_pretrained(Path(self.run.folder) / "model")
        summary = {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "steps": event.step,
            "parameters": sum(parameter.numel() for parameter in event.network.parameters()),
            **{name: round(seconds, 3) for name, seconds in event.seconds.items()},
            "validation_loss": None if event.score is None else event.score.loss,
            "validation_accuracy": None if event.score is None else event.score.accuracy,
            "hardware": event.hardware,
            "command": command(),
            "commit": commit(),
            "versions": versions(),
        }
        self.run.write(SUMMARY, summary)


def report_skipped(event: Event) -> None:
    """Print which steps were skipped."""
    if isinstance(event, Skipped):
        record = event.record
        say(
            f"step {record.step} is skipped: its loss is {record.loss:g} and its gradient norm "
            f"{record.gradient_norm:g}, on samples {listed(event.indices)}"
        )
