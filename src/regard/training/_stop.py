"""Ending a run early: on request, or at a loss that is not finite."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from regard.training._meter import StepRecord


class TrainingInterrupted(KeyboardInterrupt):
    """A run stopped on request, after saving a checkpoint of its last step."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class LostProcessError(RuntimeError):
    """An exchange with the other processes of a run failed, as it does when one of them ends."""


class NonFiniteError(RuntimeError):
    """A loss, gradient or parameter that is infinite or not a number.

    Attributes:
        step: the first such step, counted from 1.
        indices: the samples in its batch, over all processes.
    """

    def __init__(self, message: str, step: int, indices: Sequence[int]) -> None:
        super().__init__(message)
        self.step = step
        self.indices = list(indices)

    @classmethod
    def of_record(cls, record: StepRecord, indices: Sequence[int]) -> "NonFiniteError":
        """The loss or the gradient of a step is not finite."""
        return cls(
            f"at step {record.step} the loss is {record.loss:g} and the gradient norm {record.gradient_norm:g}, "
            f"on samples {listed(indices)}. A lower learning rate or clip=1.0 may help; "
            f"non_finite='skip' leaves such steps out",
            record.step,
            indices,
        )

    @classmethod
    def of_parameters(cls, step: int, names: Sequence[str], indices: Sequence[int]) -> "NonFiniteError":
        """The loss of a step was finite, but its update was not."""
        some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return cls(
            f"at step {step} the update left parameters that are not finite ({some}), on samples {listed(indices)}. "
            f"A lower learning rate or clip=1.0 may help",
            step,
            indices,
        )


def listed(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:16]))
    return shown if len(indices) <= 16 else f"{shown}, … ({len(indices)} in all)"


class StopRequest:
    """Inside the block, Ctrl-C and SIGTERM only set :attr:`asked`; a second Ctrl-C interrupts at once.

    Only the main thread receives signals, so in other threads ``asked`` stays False.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
