"""Where batch, heads, tokens and width are in the tensors of other people's models."""

from typing import Any

import torch
from torch import Tensor, nn


def canonical(x: Tensor, heads: int | None = None) -> Tensor:
    """``(batch, heads, tokens, width)`` from any number of leading axes.

    Three axes are ``(batch · heads, …)`` if the module says how many heads it has, else there is one head. Further
    leading axes (windows, blocks) are counted to the batch.
    """
    if x.ndim == 4:
        return x
    if x.ndim == 2:
        return x[None, None]
    if x.ndim == 3:
        folded = heads is not None and heads > 1 and x.shape[0] % heads == 0
        return x.unflatten(0, (-1, heads)) if folded else x[:, None]  # type: ignore[arg-type]
    return x.movedim(heads_axis(tuple(x.shape), heads), -3).flatten(0, -4)


def uncanonical(x: Tensor, shape: tuple[int, ...], heads: int | None) -> Tensor:
    """Back to ``shape``, from what :func:`canonical` made of it.

    >>> x = torch.randn(2, 3, 5, 4, 8)
    >>> torch.equal(uncanonical(canonical(x, 3), (2, 3, 5, 4, 8), 3), x)
    True
    """
    if len(shape) < 5:
        return x.reshape(shape)
    axis = heads_axis(shape, heads)
    moved = [*shape[:axis], *shape[axis + 1 : -2], shape[axis], *shape[-2:]] if axis >= 0 else list(shape)
    return x.reshape(moved).movedim(-3, axis)


def heads_axis(shape: tuple[int, ...], heads: int | None) -> int:
    """The axis of the heads: before the tokens, unless only the axis after the batch has the size the module says.

    >>> heads_axis((8, 3, 49, 64, 32), 3), heads_axis((8, 49, 3, 64, 32), 3)
    (1, -3)
    """
    return 1 if len(shape) > 4 and heads is not None and shape[-3] != heads == shape[1] else -3


def heads_of(module: nn.Module | None) -> int | None:
    """The number of heads that a module states under one of the usual names, else None."""
    for attribute in ("num_heads", "heads", "n_heads", "num_attention_heads", "nhead", "n_head"):
        count = getattr(module, attribute, None)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None


def why_unreadable(x: Any) -> str | None:
    """Why the values of x cannot be read; None if they can."""
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
