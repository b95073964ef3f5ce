"""Running a model over batches: accuracy and loss."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.analysis._relevance import call, logits_of
from regard.maps._seen import exact

# What a model is given and what it should answer: a tensor, a mapping or a sequence of inputs, and class numbers.
Batch = tuple[Any, Tensor]
Loss = Callable[[Any, Tensor], Tensor]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode inside the block, as before after it, module by module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@torch.no_grad()
def answers(model: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The classes that the model gives, and those that are right."""
    given, right = [], []
    with evaluating(model):
        for x, labels in batches:
            given.append(logits_of(call(model, x)).argmax(-1).cpu())
            right.append(labels.cpu())
    if not given:
        raise ValueError("batches is empty: there is nothing to measure")
    return torch.cat(given), torch.cat(right)


def accuracy(model: nn.Module, batches: Iterable[Batch]) -> float:
    """The share of samples whose class the model gives.

    Args:
        batches: pairs of inputs (a tensor, a mapping or a sequence) and class numbers ``(batch,)``.
    """
    given, right = answers(model, batches)
    return float((given == right).double().mean())


def sample_losses(output: Any, labels: Tensor) -> Tensor:
    """Cross-entropy, one number per sample."""
    return F.cross_entropy(exact(logits_of(output)), labels, reduction="none")
