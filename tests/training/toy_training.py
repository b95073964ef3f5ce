"""A task and a network small enough for a whole run to take a tenth of a second."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import random_below, random_uniform
from regard.layers import GaussianAttention
from regard.training import AdamWSettings, NetworkSettings, Outcome, Recipe, ScheduleSettings, Task

GRID, WIDTH, CLASSES = (3, 4), 8, 3


class ToyBatch(NamedTuple):
    inputs: Tensor
    labels: Tensor
    asked: Tensor
    indices: Tensor


class ToyExamples:
    def __init__(self, task: "ToyTask", split: str, device: torch.device) -> None:
        self.task, self.split, self.index_device = task, split, device

    def __len__(self) -> int:
        return self.task.samples if self.split == "train" else 10

    def batch(self, index: Tensor, *, seed: int, epoch: int) -> ToyBatch:
        tokens = GRID[0] * GRID[1]
        place = index[:, None] * tokens * WIDTH + torch.arange(tokens * WIDTH)
        inputs = random_uniform(place, self.split, "inputs").view(len(index), *GRID, WIDTH) - 0.5
        if self.split == "train":  # augmentation, keyed by (seed, epoch, sample)
            inputs = inputs + 0.1 * random_uniform(place, seed, epoch, "noise").view_as(inputs)
        if self.task.poisoned is not None and self.split == "train":
            inputs = inputs.masked_fill((index == self.task.poisoned)[:, None, None, None], float("nan"))
        asked = 1 + random_below(index, 4, "asked") if self.task.unequal else torch.ones_like(index)
        return ToyBatch(inputs, inputs.mean((1, 2))[:, :CLASSES].argmax(-1), asked, index)


@dataclass(frozen=True)
class ToyTask(Task):
    samples: int = 24
    unequal: bool = False
    poisoned: int | None = None

    def examples(self, split: Any, device: torch.device) -> Any:
        return ToyExamples(self, split, device)

    def targets(self, batch: Any) -> Any:
        return batch.asked.sum() if self.unequal else len(batch.indices)

    def outcome(self, network: nn.Module, batch: Any) -> Outcome:
        logits = network(batch.inputs)
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        right = (logits.argmax(-1) == batch.labels).float()
        return Outcome((losses * batch.asked).sum(), (right * batch.asked).sum())


class ToyModule(nn.Module):
    grid = GRID

    def __init__(self, dropout: float, batch_norm: bool) -> None:
        super().__init__()
        self.attention = GaussianAttention(WIDTH, heads=2)
        self.norm = nn.BatchNorm1d(WIDTH) if batch_norm else nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.attention(x)).mean((1, 2))
        return self.head(self.dropout(F.gelu(self.hidden(self.norm(x)))))


@dataclass(frozen=True)
class ToyNetwork(NetworkSettings):
    dropout: float = 0.0
    batch_norm: bool = False

    def build(self, task: Any) -> nn.Module:
        return ToyModule(self.dropout, self.batch_norm)


def toy_recipe(task: Task | None = None, network: NetworkSettings | None = None, **changes: Any) -> Recipe:
    settings: dict[str, Any] = {
        "optimizer": AdamWSettings(1e-2, weight_decay=0.1, center_factor=5.0),
        "schedule": ScheduleSettings(warm_up=0.2),
        "epochs": 3,
        "batch_size": 6,
        **changes,
    }
    return Recipe("toy", task or ToyTask(), network or ToyNetwork(), **settings)
