"""Follows what entered dropout through the functions that come after it.

A map never contains dropout. So each function that a model applies to weights after dropout is also applied to the weights
before it. What dropout kept, and scaled up, must agree with these: this is the check of the map.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.maps._shapes import why_unreadable
from regard.maps.sources._tensor_facts import (
    DIVISIONS,
    MULTIPLICATIONS,
    is_in_place,
    number_of,
    shares_memory,
    sums_to_one,
)
from regard.maps.sources._tensor_origins import RandomMask, TensorOrigin

Origins = Callable[[Any], TensorOrigin | None]


def entered_dropout(x: Any, origins: Origins) -> Any:
    """An argument, or a list of arguments, with what entered dropout in place of what left it.

    Args:
        origins: returns the origin of a tensor.
    """
    if isinstance(x, list | tuple):
        return type(x)([entered_dropout(y, origins) for y in x]) if type(x) in (list, tuple) else x
    origin = origins(x) if isinstance(x, Tensor) else None
    return x if origin is None else origin.before_dropout(x)


def before_dropout(
    name: str,
    origins: Origins,
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]],
    index: int,
    out: Tensor,
) -> TensorOrigin | None:
    """The origin of the result of a function that was applied to weights after dropout, or to scores with a random mask.

    None if the function cannot be applied to what entered dropout: then the result is no longer a map.

    Args:
        name: the name of the function.
        call: the function and its arguments.
        index: which argument these weights are.
        out: the result of the function.
    """
    func, args, kwargs = call
    x, origin = args[index], origins(args[index])
    if origin is None:  # a list of tensors
        origin = next(found for part in x if (found := origins(part)) is not None)
    if (scale := _scale_of_dropout(name, origin.mask, args, index)) is not None:
        return origin.dropped(origin.source, kept=1 / scale)
    given = [entered_dropout(y, origins) for y in args]
    in_place = is_in_place(name)
    if (in_place and given[0] is out) or kwargs.get("out") is not None:
        return None  # it is changed already, and was not copied before
    try:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if in_place:
                given[0] = given[0].clone()  # it may be a tensor of the model
            source = func(*given, **{key: entered_dropout(y, origins) for key, y in kwargs.items()})
            source = given[0] if in_place else source
            return _after(origin, x, source, out) if isinstance(x, Tensor) else origin.dropped(source)
    except (RuntimeError, TypeError):
        return None


def _after(origin: TensorOrigin, x: Tensor, source: Tensor, out: Tensor) -> TensorOrigin:
    """The origin of ``out``, which a function made of ``x`` as it made ``source`` of what entered dropout.

    The function may leave the relation of the two as it was, divide rows by the sums of what was kept, or mix weights, such as
    those of heads. After mixing they can no longer be compared, so this is done before.
    """
    error = origin.mask.error
    if origin.kind not in ("weights", "averages") or origin.source is None or why_unreadable(out) is not None:
        return origin.dropped(source)
    if x is not out and shares_memory(x, out):
        return origin.dropped(source)
    if out.shape == source.shape and sums_to_one(out, -1) and not sums_to_one(source, -1):
        source = divided_by_sums(source)
    if error is None:
        hidden = origin.dropped(source, hidden=True, written=False, kept=1.0)
        for found in (origin.dropped(source), hidden):
            if is_kept(out, source, found.mask):
                return found
        if x is not out and x.shape == origin.source.shape:
            error = error_of_kept(x, origin.source, origin.mask)
    return origin.dropped(source, error=error)


def _scale_of_dropout(name: str, mask: RandomMask, args: tuple[Any, ...], index: int) -> float | None:
    """The number by which this function scales weights up that a random mask did not scale yet; None for other functions."""
    factor = number_of(args[1 - index]) if index < 2 <= len(args) else None
    if not mask.written or mask.kept != 1 or factor is None or name not in MULTIPLICATIONS | DIVISIONS:
        return None
    scale = 1 / factor if name in DIVISIONS else factor
    return scale if scale > 1.001 else None


def divided_by_sums(weights: Tensor) -> Tensor:
    """Each row divided by its sum; rows of zeros as they are."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        total = weights.sum(-1, keepdim=True)
        return weights / torch.where(total == 0, 1, total)


def error_of_kept(dropped: Tensor, before: Tensor, mask: RandomMask) -> Tensor:
    """How far the weights that dropout kept are from those before: max |kept · dropped − before|, where dropped is not zero.

    >>> before = torch.tensor([[0.5, 0.25, 0.25]])
    >>> error_of_kept(torch.tensor([[1.0, 0.0, 0.5]]), before, RandomMask(kept=0.5))
    tensor(0.)
    """
    kept = dropped * mask.kept
    if mask.hidden:  # the other keys share the weights of masked ones
        shares = torch.where(dropped == 0, dropped, before).sum(-1, keepdim=True)
        before = before * torch.where(shares == 0, shares, kept.sum(-1, keepdim=True) / shares)
    left = torch.where(dropped == 0, dropped, kept - before).abs()
    return left.amax() if left.numel() else left.new_zeros(())


def is_kept(dropped: Tensor, before: Tensor, mask: RandomMask) -> bool:
    """Whether ``dropped`` is ``before`` after dropout, to the precision of its dtype."""
    if dropped.shape != before.shape:
        return False
    within = max(1e-3, 8 * torch.finfo(dropped.dtype).eps)
    return before.numel() == 0 or bool(error_of_kept(dropped, before, mask) <= within * before.abs().amax())
