"""A cache for repeated calls of Gaussian attention: one lookup replaces argument checks and launch decisions.

In a training step the GPU often waits for the host between launches, so calls with known shapes, strides and dtypes are
not checked again. Tensor values are never read here: on a GPU that would be a synchronization.
"""

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from regard.functional.kernels._tensors import is_on_current_gpu
from regard.support.checks import is_transformed

Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]

MOST_CALLS = 1024
_PLAIN = (Tensor, torch.nn.Parameter)

# From cache key to the function that computes the call, and its plan.
_known: dict[Hashable, tuple[Attend, Any]] = {}


def key_of(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Hashable:
    return (
        grid, value.shape, value.stride(), value.dtype, value.device,
        center.shape, center.stride(), center.dtype, center.device,
        sharpness.shape, sharpness.stride(), sharpness.dtype, sharpness.device,
    )  # fmt: skip


def remember(key: Hashable, attend: Attend, plan: Any) -> None:
    """Remember that calls with this key are computed by ``attend(value, center, sharpness, plan)``."""
    if len(_known) >= MOST_CALLS:
        _known.clear()
    _known[key] = attend, plan


def forget() -> None:
    _known.clear()


def is_repeatable(value: Tensor, center: Tensor, sharpness: Tensor) -> bool:
    """Whether the cache may be used: plain tensors on the current GPU, no transform and no dispatch mode active."""
    return (
        type(value) in _PLAIN and type(center) in _PLAIN and type(sharpness) in _PLAIN and is_on_current_gpu(value)
        and torch._C._len_torch_dispatch_stack() == 0 and not is_transformed()
    )  # fmt: skip


def cached_attention(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor | None:
    """The output, or None if there was no such call before."""
    found = _known.get(key_of(value, center, sharpness, grid))
    if found is None:
        return None
    attend, plan = found
    try:
        return attend(value, center, sharpness, plan)
    except MemoryError:  # no kernel fits this GPU: the general path handles that
        return None
