"""The numbers of each step, kept on the device until they are read together."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.training._fabric import total_over_processes


@dataclass(frozen=True)
class StepRecord:
    """One step, counted from 1: mean loss and accuracy over its whole batch, before the parameters were updated."""

    step: int
    loss: float
    accuracy: float
    gradient_norm: float
    learning_rate: float

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)


class Meter:
    """Collects a few numbers from each step without synchronizing, and reads them together.

    Args:
        fabric: sums over processes.
        capacity: largest number of steps between two reads.
    """

    def __init__(self, fabric: Any, capacity: int) -> None:
        self._fabric = fabric
        self._values = torch.zeros(capacity, 3, device=fabric.device)
        self._steps: list[tuple[int, float]] = []

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: int, loss: Tensor, accuracy: Tensor, gradient_norm: Tensor, learning_rate: float) -> None:
        """Add a step. ``loss`` and ``accuracy`` are this process's share; the norm is that of the whole batch."""
        shared = gradient_norm / self._fabric.world_size
        self._values[len(self._steps)] = torch.stack((loss.detach(), accuracy.detach(), shared.detach()))
        self._steps.append((step, learning_rate))

    def read(self) -> list[StepRecord]:
        """The steps since the last read. Synchronizes with the device."""
        if not self._steps:
            return []
        values = total_over_processes(self._fabric, self._values[: len(self._steps)].clone()).tolist()
        records = [
            StepRecord(step, loss, accuracy, norm, rate)
            for (step, rate), (loss, accuracy, norm) in zip(self._steps, values, strict=True)
        ]
        self._steps.clear()
        return records
