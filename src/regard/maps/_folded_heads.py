"""Heads and samples that are folded into one axis: which of them comes first.

Most models fold ``(batch, heads)``; some fold ``(heads, batch)``. The attention itself is the same, so only what the model
does with its output tells: it merges the heads of each token, and the result contains the numbers in one order or in the
other.
"""

import weakref
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from regard.maps._record import Computation

Order = Literal["samples first", "heads first", "unknown"]
_RESHAPES = frozenset({"view", "reshape", "unflatten"})
_STEPS = 24  # functions of torch after an attention that may merge its heads


@dataclass
class _Waiting:
    name: str
    output: Tensor  # (batch, heads, queries, width), if samples come first
    own: weakref.ref[Tensor]  # the output in the model's layout
    steps: int = _STEPS


class FoldedHeads:
    """Waits until the heads of the latest folded attention are merged.

    Attributes:
        waiting: the attention; None if there is none to wait for.
    """

    def __init__(self) -> None:
        self.waiting: _Waiting | None = None

    def expect(self, name: str, running: Computation, own: Any) -> None:
        """An attention is recorded. What the model does with its output follows."""
        output = running.output
        if running.folded and output is not None and min(output.shape[:2]) > 1 and isinstance(own, Tensor):
            self.waiting = _Waiting(name, output.detach(), weakref.ref(own))

    def saw(self, function: str, args: tuple[Any, ...], out: Any) -> tuple[str, Order] | None:
        """A function of torch ran. The name of the attention and its order, if the function shows it."""
        waiting = self.waiting
        if waiting is None:
            return None
        waiting.steps -= 1
        order: Order | None = "unknown" if waiting.steps <= 0 else None
        if isinstance(out, Tensor) and out.numel() == waiting.output.numel():
            with torch.no_grad(), torch._C.DisableTorchFunction():
                order = _merged(out, waiting.output) or order
                if order is None and function in _RESHAPES and args and args[0] is waiting.own():
                    order = _split(out, waiting.output)
        if order is None:
            return None
        self.waiting = None
        return waiting.name, order

    def give_up(self) -> tuple[str, Order] | None:
        """Nothing more follows: the name of the attention whose order remains unknown, if there is one."""
        waiting, self.waiting = self.waiting, None
        return None if waiting is None else (waiting.name, "unknown")


def _merged(out: Tensor, output: Tensor) -> Order | None:
    """The order, if ``out`` holds the merged heads of each token, sample by sample or position by position."""
    batch, heads, _, width = output.shape
    if out.ndim < 2 or out.shape[-1] != heads * width or out.dtype != output.dtype:
        return None
    rows = out.detach().reshape(-1, heads * width)
    if bool(rows.isnan().any()):  # a sample that is padding alone: NaN is not equal to itself
        rows, output = rows.nan_to_num(), output.nan_to_num()
    other = output.flatten(0, 1).unflatten(0, (heads, batch)).transpose(0, 1)
    orders: dict[Order, Tensor] = {"samples first": output, "heads first": other}
    for order, x in orders.items():
        for axes in ((0, 2, 1, 3), (2, 0, 1, 3)):
            if torch.equal(rows, x.permute(axes).reshape(rows.shape)):
                return order
    return None


def _split(out: Tensor, output: Tensor) -> Order | None:
    """The order, if ``out`` has an axis for the samples and one for the heads, and they differ in size."""
    batch, heads = output.shape[:2]
    if batch == heads or out.ndim < 4:
        return None
    orders: dict[tuple[int, ...], Order] = {(batch, heads): "samples first", (heads, batch): "heads first"}
    return orders.get(tuple(out.shape[:2]))
