"""Small tensors that depend on shapes alone, kept on their device so that a call neither makes nor copies them again.

A copy from the host's memory waits for a GPU, and is not allowed at all while a CUDA graph is being captured.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.support.checks import is_exporting, is_tracing


class KeptTensors:
    """The ``most`` recently made tensors, by their keys. Those that a CUDA graph reads stay for good: it is replayed without
    asking again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.recent: dict[Hashable, Tensor] = {}
        self.of_graphs: dict[Hashable, Tensor] = {}

    def get(self, key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """What ``make`` gives, which must be on the device and the same for the same key."""
        if not is_plain():
            return make()
        captured = is_captured(device)
        found = self.of_graphs.get(key)
        if found is None:
            found = self.recent.get(key)
        if found is not None:
            if captured:
                self.of_graphs[key] = found
            return found
        if captured:  # a graph writes what is made in it only when it is replayed
            return make()
        # Not made in inference mode, whose tensors later calls could not differentiate through.
        with torch.inference_mode(False), torch.no_grad():
            found = make()
        while len(self.recent) >= self.most:
            del self.recent[next(iter(self.recent))]
        self.recent[key] = found
        return found


def is_captured(device: torch.device) -> bool:
    """Whether what is called now goes into a CUDA graph instead of running."""
    return device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_plain() -> bool:
    """Whether a tensor made now is one that later calls can use: no trace, transform or mode stands behind it."""
    return not (
        torch.compiler.is_compiling()
        or is_exporting()
        or is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


_CONSTANTS = KeptTensors(256)


def constant(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """A tensor of these numbers, nested in tuples as they are.

    >>> constant((2, 0, 1), torch.device("cpu"))
    tensor([2, 0, 1])
    """
    if device.type == "cpu" or not is_plain():
        return torch.tensor(numbers, device=device, dtype=dtype)

    def make() -> Tensor:
        return filled(numbers, device, dtype) if is_captured(device) else torch.tensor(numbers, dtype=dtype).to(device)

    return _CONSTANTS.get((tuple(numbers), device, dtype), device, make)


def filled(numbers: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The same, one number after the other, without a copy from the host.

    >>> filled(((1, 2), (3, 4)), torch.device("cpu"), torch.long)
    tensor([[1, 2],
            [3, 4]])
    """
    if isinstance(numbers, Sequence):
        return torch.stack([filled(number, device, dtype) for number in numbers])
    return torch.full((), numbers, device=device, dtype=dtype)
