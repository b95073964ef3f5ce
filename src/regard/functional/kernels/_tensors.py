"""What launches ask of tensors. Apart from the launches, so that no one of them imports Triton for it."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

_NOTHING = nullcontext()


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Kernels are launched on the current device, which need not be that of a model on several."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(x.device)


def raw_stream(x: Tensor) -> int:
    """The number of the current stream of a tensor's device; 0 on a CPU."""
    return torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else 0


def is_on_current_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.get_device() == torch.cuda.current_device()


def is_aligned(*tensors: Tensor) -> bool:
    """Whether all begin at multiples of 16 bytes."""
    together = 0
    for address in map(Tensor.data_ptr, tensors):
        together |= address
    return together % 16 == 0


def rows_of(x: Tensor) -> Tensor:
    """Channels side by side, as the kernels read them."""
    return x if x.stride(3) == 1 else x.contiguous()


def power_of_two(n: int) -> int:
    """The smallest power of two that is not less.

    >>> power_of_two(1), power_of_two(64), power_of_two(65)
    (1, 64, 128)
    """
    return 1 << max(0, n - 1).bit_length()
