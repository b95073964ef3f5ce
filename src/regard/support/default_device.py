"""``on_cpu``: functions whose own tensors are on the CPU, whatever the default device is."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
Result = TypeVar("Result")


def on_cpu(function: Callable[P, Result]) -> Callable[P, Result]:
    """Create tensors on the CPU, even if the caller has set another default device, such as ``meta``.

    >>> with torch.device("meta"):
    ...     on_cpu(torch.zeros)(2).device
    device(type='cpu')
    """

    @wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> Result:
        with torch.device("cpu"):
            return function(*args, **options)

    return run
