"""Helpers that launches use on tensors. A separate file, so that importing it does not import Triton."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

_NOTHING = nullcontext()
Rest = ParamSpec("Rest")
Result = TypeVar("Result")


def on_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device current: Triton launches on the current device, and a model may span several devices."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return _NOTHING
    return torch.cuda.device(x.device)


def on_own_device(
    launching: Callable[Concatenate[Tensor, Rest], Result],
) -> Callable[Concatenate[Tensor, Rest], Result]:
    """The function, called with the device of its first argument current."""

    @functools.wraps(launching)
    def call(x: Tensor, /, *rest: Rest.args, **named: Rest.kwargs) -> Result:
        with on_device_of(x):
            return launching(x, *rest, **named)

    return call


def raw_stream(x: Tensor) -> int:
    """The raw handle of the current stream of a tensor's device; 0 on the CPU."""
    return torch._C._cuda_getCurrentRawStream(x.get_device()) if x.is_cuda else 0


def is_on_current_gpu(x: Tensor) -> bool:
    return x.is_cuda and x.get_device() == torch.cuda.current_device()


def is_aligned(*tensors: Tensor) -> bool:
    """Whether all tensors start at multiples of 16 bytes."""
    together = 0
    for address in map(Tensor.data_ptr, tensors):
        together |= address
    return together % 16 == 0


def rows_of(x: Tensor) -> Tensor:
    """The tensor with contiguous channels (the last axis), as the kernels need."""
    return x if x.stride(3) == 1 else x.contiguous()


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n.

    >>> power_of_two(1), power_of_two(64), power_of_two(65)
    (1, 64, 128)
    """
    return 1 << max(0, n - 1).bit_length()


def readable(tensor: Tensor) -> Tensor:
    """The tensor with contiguous channels, as the kernels need; copied only if necessary."""
    return tensor if tensor.stride(3) == 1 or tensor.shape[3] == 1 else tensor.contiguous()


def readable_as_plane(tensor: Tensor) -> Tensor:
    """The same for kernels that keep the distances between the tokens of an item in 32 bits."""
    return readable(tensor if (tensor.shape[2] - 1) * tensor.stride(2) < 2**30 else tensor.contiguous())


def empty_output(value: Tensor, heads: int, tokens: int) -> Tensor:
    """(batch, heads, tokens, width) with token-major strides, so that joining the heads for the output layer is a view."""
    return value.new_empty(value.shape[0], tokens, heads, value.shape[3]).transpose(1, 2)
