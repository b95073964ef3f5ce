"""Whether the values of a tensor can be read, and the usual layout ``(batch, heads, tokens, width)``."""

from typing import Any

import torch
from torch import Tensor


def canonical(x: Tensor) -> Tensor:
    """``x`` as ``(batch, heads, tokens, width)``. Three axes are a single head; further leading axes belong to the batch."""
    if x.ndim == 4:
        return x
    if x.ndim == 2:
        return x[None, None]
    return x[:, None] if x.ndim == 3 else x.flatten(0, -4)


def why_unreadable(x: Any) -> str | None:
    """The reason why the values of x cannot be read; None if they can."""
    if not isinstance(x, Tensor):
        return f"its input is a {type(x).__name__}, not a tensor"
    if x.is_nested:
        return "its tensors are nested: pad them to see their maps"
    if x.is_meta or type(x).__name__ == "FakeTensor":
        return "its tensors have shapes but no values"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "it runs inside torch.func.vmap or grad, where single maps do not exist"
    if x.ndim < 2:
        return f"its tensors have {x.ndim} axes"
    return None
