"""Ending a run early: on request, and where a loss is not a number."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any


class TrainingInterrupted(KeyboardInterrupt):
    """A run that was asked to stop, and has saved where it is."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class NonFiniteError(RuntimeError):
    """A loss or gradient that is infinite or not a number.

    Attributes:
        step: the first such step, counted from 1.
        indices: the samples of its batch, over all processes.
    """

    def __init__(self, message: str, step: int, indices: Sequence[int]) -> None:
        super().__init__(message)
        self.step = step
        self.indices = list(indices)


class StopRequest:
    """Inside the block Ctrl-C and SIGTERM only set :attr:`asked`; a second Ctrl-C interrupts at once.

    Signals reach the main thread alone: in others it never asks.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
