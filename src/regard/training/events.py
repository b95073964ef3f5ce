"""The events that the training loop reports. Listeners are functions of one event and do not access the loop.

The loop runs in every process, the listeners only in the first one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from regard.training._evaluation import Score
from regard.training._meter import StepRecord


@dataclass(frozen=True)
class Started:
    """Training begins at a step: 0, or that of the checkpoint it resumes from."""

    step: int
    total: int


@dataclass(frozen=True)
class Stepped:
    """A step was done. Its numbers are still on the device; :class:`Logged` delivers them."""

    step: int


@dataclass(frozen=True)
class Logged:
    """The records of the steps since the last such event, read from the device together. May be empty."""

    step: int
    records: Sequence[StepRecord]
    learning_rates: Mapping[str, float]
    samples_per_second: float


@dataclass(frozen=True)
class Skipped:
    """A step was left out because its loss or gradient was not finite (``non_finite="skip"``)."""

    record: StepRecord
    indices: Sequence[int]


@dataclass(frozen=True)
class Evaluated:
    """The network was evaluated on the validation set. ``seconds`` is the training time so far."""

    step: int
    epoch: int
    score: Score
    seconds: float


@dataclass(frozen=True)
class CheckpointDue:
    """A checkpoint should be saved with this state. The tensors are in use: copy or write them before returning.

    Attributes:
        accuracy: validation accuracy at this step, or None where there was no evaluation.
    """

    step: int
    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    accuracy: float | None


@dataclass(frozen=True)
class Finished:
    """All steps are done.

    Attributes:
        network: the trained network (its average, if the recipe has one).
        score: the last validation score, or None.
        seconds: ``train_seconds``, ``process_seconds`` and ``compile_seconds``.
        hardware: the name of the device.
    """

    step: int
    network: nn.Module
    score: Score | None
    seconds: Mapping[str, float]
    hardware: str


Event = Started | Stepped | Logged | Skipped | Evaluated | CheckpointDue | Finished
Listener = Callable[[Event], None]
