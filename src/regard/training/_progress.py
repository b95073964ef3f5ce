"""The progress bar and messages on the terminal during training."""

import sys
from typing import Any

from regard.training.events import Evaluated, Event, Logged, Started


class ProgressBar:
    """A progress bar with loss, accuracy, samples per second and time left.

    Args:
        name: the recipe's name.
        shown: whether to show it; None shows it if standard error is a terminal.
    """

    def __init__(self, name: str, shown: bool | None = None) -> None:
        self.name = name
        self.shown = (sys.stderr is not None and sys.stderr.isatty()) if shown is None else shown
        self._bar: Any = None
        self._validation = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started) and self.shown:
            self._start(event)
        elif isinstance(event, Evaluated):
            self._validation = f"  validation {event.score.accuracy:.2%}"
        elif isinstance(event, Logged) and self._bar is not None and event.records:
            loss, accuracy = (
                sum(getattr(record, name) for record in event.records) / len(event.records)
                for name in ("loss", "accuracy")
            )
            speed = f"{event.samples_per_second:,.0f}/s"
            figures = f"loss {loss:.3f}  train {accuracy:.1%}{self._validation}  {speed}"
            self._bar.update(self._task, completed=event.records[-1].step, figures=figures)

    def _start(self, event: Started) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError as missing:
            raise ImportError("the progress bar needs rich: pip install 'regard[train]'") from missing
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(self.name, total=event.total, completed=event.step, figures="")
        self._bar.start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def say(*lines: str) -> None:
    """Print an important message to standard error, whether or not it is a terminal."""
    print(*lines, sep="\n", file=sys.stderr)
