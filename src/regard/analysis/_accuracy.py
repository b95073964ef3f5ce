"""Running a model over batches: its outputs, accuracy and loss."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.maps import exact
from regard.support.checks import check_module, describe, is_iterable, taking

# Inputs (a tensor, a mapping or a sequence) and class numbers.
Batch = tuple[Any, Tensor]
Loss = Callable[[Any, Tensor], Tensor]


def call(model: nn.Module, x: Any) -> Any:
    """The model's output for one tensor, keyword arguments or positional arguments."""
    if isinstance(x, Tensor):
        return model(x)
    if isinstance(x, Mapping):
        return model(**x)
    if isinstance(x, Sequence) and not isinstance(x, str):
        return model(*x)
    raise TypeError(f"x must be a tensor, a mapping or a sequence of inputs, got {describe(x)}")


def logits_of(output: Any) -> Tensor:
    """The class scores ``(batch, classes)`` in the output of a model."""
    found = output
    if not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
        if found is None and isinstance(output, tuple | list) and output:
            found = output[0]
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ValueError(
            f"the output of model must hold class scores (batch, classes), got {describe(found)}: "
            "pass a function of the output instead"
        )
    return found


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside the block the model is in evaluation mode; afterwards the mode of every module is restored."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def check_batches(batches: Any) -> list[Batch]:
    """Pairs of inputs and labels, at least one."""
    if not is_iterable(batches) or isinstance(batches, Tensor | str | bytes | nn.Module):
        raise TypeError(f"batches must be pairs of inputs and labels, got {describe(batches)}")
    kept = list(batches)
    if not kept:
        raise ValueError(f"batches is empty ({describe(batches)}): pass at least one pair of inputs and labels")
    for pair in kept:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], Tensor):
            raise TypeError(f"batches must be pairs of inputs and labels (a tensor), got {describe(batches):.200}")
    return kept


@torch.no_grad()
def predictions(model: nn.Module, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
    """The classes that the model predicts, and the labels."""
    predicted, right = [], []
    with evaluating(model):
        for x, labels in batches:
            with taking("batches", x, model):
                output = call(model, x)
            scores = logits_of(output)
            classes = scores.argmax(-1).masked_fill(scores.isnan().any(-1), -1).cpu()  # NaN predicts no class
            if labels.shape != classes.shape:  # it would be compared with every prediction
                raise ValueError(
                    f"batches: labels must be class numbers, one for each of {len(classes)} samples, got {describe(labels)}"
                )
            predicted.append(classes)
            right.append(labels.cpu())
    if not predicted:
        raise ValueError("batches is empty: pass at least one pair of inputs and labels")
    return torch.cat(predicted), torch.cat(right)


def accuracy(model: nn.Module, batches: Iterable[Batch]) -> float:
    """The share of samples whose class the model predicts.

    Args:
        batches: pairs of inputs (a tensor, a mapping or a sequence) and class numbers ``(batch,)``.
    """
    check_module("model", model)
    predicted, right = predictions(model, check_batches(batches))
    return float((predicted == right).double().mean())


def sample_losses(output: Any, labels: Tensor) -> Tensor:
    """Cross-entropy, one number per sample."""
    return F.cross_entropy(exact(logits_of(output)), labels, reduction="none")
