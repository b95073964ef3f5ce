"""Small training runs for empirical claims: the embedded images, and a plain loop with fixed seeds."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.claims._claim import Effort


class Images(NamedTuple):
    """Normalized images ``(n, 1, 28, 28)`` and their labels."""

    train: Tensor
    train_labels: Tensor
    validation: Tensor
    validation_labels: Tensor

    def some(self, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """A random subset of the training images."""
        chosen = torch.randperm(len(self.train), generator=torch.Generator().manual_seed(seed))[:count]
        return self.train[chosen], self.train_labels[chosen]


@cache
def images(effort: Effort) -> Images:
    """The embedded data set, or 40 images of it in a smoke run."""
    from regard.data import load

    data = load("fashion-mini")
    few = slice(None) if effort == "full" else slice(40)
    parts: list[Tensor] = []
    for part in (data.train, data.validation):
        parts += [((part.images[few].float() / 255) - data.mean[0]) / data.std[0], part.labels[few]]
    return Images(*parts)


def fit(
    model: nn.Module,
    loss: Callable[[int], Tensor],
    *,
    steps: int,
    rate: float,
    groups: list[dict[str, Any]] | None = None,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Minimize ``loss(step)`` with AdamW, warm-up and a decreasing learning rate.

    Args:
        rate: the largest learning rate.
        groups: parameter groups with learning rates (``lr``) of their own.
        watch: called before every step and after the last one.
    """
    groups = groups or [{"params": list(model.parameters()), "lr": rate}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    rates = [group["lr"] for group in groups]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=max(steps, 2), pct_start=0.15)
    model.train()
    for step in range(steps):
        if watch is not None:
            watch(step)
        optimizer.zero_grad()
        loss(step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    if watch is not None:
        watch(steps)
    model.eval()


def fit_classes(
    model: nn.Module, x: Tensor, labels: Tensor, *, steps: int, rate: float, seed: int, **more: Any
) -> None:
    """Train a classifier with random batches of 64."""
    random = torch.Generator().manual_seed(seed)

    def loss(step: int) -> Tensor:
        batch = torch.randint(len(x), (min(64, len(x)),), generator=random)
        return F.cross_entropy(model(x[batch]), labels[batch])

    fit(model, loss, steps=steps, rate=rate, **more)


@torch.no_grad()
def class_accuracy(model: nn.Module, data: Images) -> float:
    """The accuracy on the validation images."""
    said = torch.cat([model(part).argmax(-1) for part in data.validation.split(200)])
    return float((said == data.validation_labels).double().mean())
