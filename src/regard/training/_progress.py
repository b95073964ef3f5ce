"""What a person sees on the terminal while a network is trained."""

import sys
from types import TracebackType
from typing import Any

from regard.training._meter import StepRecord


class Progress:
    """A bar with loss, accuracy, samples per second and time left; nothing at all where standard error is no terminal.

    Args:
        name: of the recipe.
        total: steps of the run.
        done: steps taken before.
        samples: in a step.
        shown: None shows it on terminals alone.
    """

    def __init__(self, name: str, total: int, done: int, samples: int, shown: bool | None = None) -> None:
        self._samples = samples
        self._bar: Any = None
        self._validation = ""
        if shown is None:
            shown = sys.stderr.isatty()
        if not shown:
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
        except ImportError as missing:
            raise ImportError("the progress bar needs rich: pip install 'regard[train]'") from missing
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(name, total=total, completed=done, figures="")

    def __enter__(self) -> "Progress":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, records: list[StepRecord], rate: float) -> None:
        """The steps since the last call, taken at ``rate`` samples per second."""
        if self._bar is None or not records:
            return
        loss = sum(record.loss for record in records) / len(records)
        accuracy = sum(record.accuracy for record in records) / len(records)
        figures = f"loss {loss:.3f}  train {accuracy:.1%}{self._validation}  {rate:,.0f}/s"
        self._bar.update(self._task, completed=records[-1].step, figures=figures)

    def validated(self, accuracy: float) -> None:
        self._validation = f"  held out {accuracy:.2%}"


def say(*lines: str) -> None:
    """To standard error: what a person must know, terminal or not."""
    print(*lines, sep="\n", file=sys.stderr)
