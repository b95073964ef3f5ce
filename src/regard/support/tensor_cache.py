"""A cache of small tensors that depend on shapes alone, on their device, so that calls do not create or copy them again.

A copy from host memory to a GPU synchronizes, and is not allowed while a CUDA graph is captured.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.support.checks import is_exporting, is_tracing


class TensorCache:
    """The ``most`` most recently created tensors, by cache key. Tensors that a CUDA graph reads are never dropped, because a
    graph is replayed without calling :meth:`get` again."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.recent: dict[Hashable, Tensor] = {}
        self.of_graphs: dict[Hashable, Tensor] = {}

    def get(self, key: Hashable, device: torch.device, make: Callable[[], Tensor]) -> Tensor:
        """The cached result of ``make``, which must be on the device and the same for the same key."""
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
        if captured:  # not cached: a tensor created during capture has no values until the graph is replayed
            return make()
        # Outside of inference mode, because later calls could not use its tensors in autograd.
        with torch.inference_mode(False), torch.no_grad():
            found = make()
        while len(self.recent) >= self.most:
            del self.recent[next(iter(self.recent))]
        self.recent[key] = found
        return found


def is_captured(device: torch.device) -> bool:
    """Whether operations on the device are being captured into a CUDA graph instead of running."""
    return device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def is_plain() -> bool:
    """Whether later calls can use a tensor created now: no trace, transform or dispatch mode is active."""
    return not (
        torch.compiler.is_compiling()
        or is_exporting()
        or is_tracing()
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() > 0
    )


_CONSTANTS = TensorCache(256)


def constant(numbers: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """A tensor of these (nested) numbers, cached on other devices than the CPU.

    >>> constant((2, 0, 1), torch.device("cpu"))
    tensor([2, 0, 1])
    """
    if device.type == "cpu" or not is_plain():
        return torch.tensor(numbers, device=device, dtype=dtype)

    def make() -> Tensor:
        return filled(numbers, device, dtype) if is_captured(device) else torch.tensor(numbers, dtype=dtype).to(device)

    return _CONSTANTS.get((tuple(numbers), device, dtype), device, make)


def filled(numbers: Any, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A tensor of these (nested) numbers, filled one by one, without a copy from the host.

    >>> filled(((1, 2), (3, 4)), torch.device("cpu"), torch.long)
    tensor([[1, 2],
            [3, 4]])
    """
    if isinstance(numbers, Sequence):
        return torch.stack([filled(number, device, dtype) for number in numbers])
    return torch.full((), numbers, device=device, dtype=dtype)
