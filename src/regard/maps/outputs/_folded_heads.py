"""Which comes first if a model folds heads and samples into one axis: the heads or the samples?

Most models fold ``(batch, heads)``; some fold ``(heads, batch)``. The attention itself is the same in both cases. What
shows the order is the next step of the model: it merges the heads of each token, and the result fits only one of the
two orders.
"""

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Order = Literal["samples first", "heads first", "unknown"]
_RESHAPES = frozenset({"view", "reshape", "unflatten"})
_STEPS = 24  # functions that return a tensor, among which the one that merges the heads of an attention is looked for


@dataclass
class _Waiting:
    """The attention whose order is not known yet."""

    name: str
    output: Tensor  # (batch, heads, queries, width), if samples come first
    own: weakref.ref[Tensor]  # the output in the model's layout
    steps: int = _STEPS


class FoldedHeads:
    """Waits until the model merges the heads of the latest folded attention.

    Attributes:
        waiting: this attention; None if there is none.
    """

    def __init__(self) -> None:
        self.waiting: _Waiting | None = None

    def expect(self, name: str, output: Tensor | None, own: Tensor) -> None:
        """Wait for the heads of this attention to be merged: they are folded with the samples.

        Args:
            output, own: the output with which the model continues, ``(batch, heads, queries, width)`` and in its layout.
        """
        if output is not None and min(output.shape[:2]) > 1:
            self.waiting = _Waiting(name, output.detach(), weakref.ref(own))

    def saw(self, function: str, args: tuple[Any, ...], out: Any) -> tuple[str, Order] | None:
        """A torch function ran. Returns the name of the attention and its order, if this function shows it."""
        waiting = self.waiting
        if waiting is None or not isinstance(out, Tensor):
            return None  # as reads of attributes, of which an interceptor inside of this one makes many
        waiting.steps -= 1
        order: Order | None = "unknown" if waiting.steps <= 0 else None
        if out.numel() == waiting.output.numel():
            with torch.no_grad(), torch._C.DisableTorchFunction():
                order = _merged(out, waiting.output) or order
                if order is None and function in _RESHAPES and args and args[0] is waiting.own():
                    order = _split(out, waiting.output)
        if order is None:
            return None
        self.waiting = None
        return waiting.name, order

    def give_up(self) -> tuple[str, Order] | None:
        """Stop waiting. Returns the name of the attention whose order remains unknown, if there is one."""
        waiting, self.waiting = self.waiting, None
        return None if waiting is None else (waiting.name, "unknown")


def _merged(out: Tensor, output: Tensor) -> Order | None:
    """The order, if ``out`` holds the merged heads of each token (batch first or tokens first); else None.

    Heads are the last axis, or, as in images and before 1-D convolutions, the second one.
    """
    batch, heads, _, width = output.shape
    if out.ndim < 2 or out.dtype != output.dtype:
        return None
    forms = [x for x in (out, *([out.flatten(2).mT] if out.ndim > 2 else [])) if x.shape[-1] == heads * width]
    if bool(forms) and bool(output.isnan().any()):  # a sample that is padding alone: NaN is not equal to itself
        forms, output = [x.nan_to_num() for x in forms], output.nan_to_num()
    other = output.flatten(0, 1).unflatten(0, (heads, batch)).transpose(0, 1)
    orders: dict[Order, Tensor] = {"samples first": output, "heads first": other}
    for order, x in orders.items():
        for axes in ((0, 2, 1, 3), (2, 0, 1, 3)):
            merged = x.permute(axes).reshape(-1, heads * width)
            if any(torch.equal(form.reshape(merged.shape), merged) for form in forms):
                return order
    return None


def _split(out: Tensor, output: Tensor) -> Order | None:
    """The order, if ``out`` has one axis for samples and one for heads, and their sizes differ; else None."""
    batch, heads = output.shape[:2]
    if batch == heads or out.ndim < 4:
        return None
    orders: dict[tuple[int, ...], Order] = {(batch, heads): "samples first", (heads, batch): "heads first"}
    return orders.get(tuple(out.shape[:2]))
