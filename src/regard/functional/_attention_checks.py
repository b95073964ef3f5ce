"""The argument checks of attention, and a quick test for calls that need none of them."""

from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor

from regard.support.checks import (
    check_beta,
    check_broadcastable,
    check_floating,
    check_probability,
    describe,
    under_autocast,
    values_are_readable,
)
from regard.support.mask_checks import check_mask

# Beyond this β, a fused kernel that scales the scores after computing them may overflow.
LARGEST_FUSED = 1e4
# Dtypes in which a sum of products does not overflow.
WIDE = (torch.float32, torch.bfloat16, torch.float64)


def is_plain_call(query: Any, key: Any, value: Any, beta: Any, dropout: Any) -> bool:
    """Whether no check is needed: three tensors of one shape (batch, heads, tokens, width), an ordinary temperature, eager
    mode. Host time limits small layers on a GPU, so each condition is tested only once."""
    if torch.compiler.is_compiling() or not type(query) is type(key) is type(value) is Tensor:
        return False
    shape, dtype, device = query.shape, query.dtype, query.device
    return (
        len(shape) == 4
        and key.shape == shape
        and value.shape == shape
        and 0 not in shape
        and dtype in WIDE
        and key.dtype is dtype
        and value.dtype is dtype
        and key.device == device
        and value.device == device
        and query.layout is key.layout is value.layout is torch.strided
        and (beta is None or (type(beta) is float and 1e-30 < beta <= LARGEST_FUSED))
        and type(dropout) is float
        and 0.0 <= dropout < 1.0
        and not torch._C._are_functorch_transforms_active()
        and fwAD._current_level < 0  # no forward gradients
    )


def check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: float | Tensor | None,
    keep: Tensor | None,
    bias: Tensor | None,
    dropout: float,
) -> None:
    """Raise an error for arguments that do not fit together. Under autocast dtypes may differ."""
    autocast = isinstance(query, Tensor) and under_autocast(query)
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_floating(name, x)
        if not 2 <= x.ndim <= 4 or x.ndim != query.ndim:
            raise ValueError(
                f"{name} has shape {tuple(x.shape)}; query, key and value must all be (batch, heads, tokens, width), "
                f"or all leave out the same leading axes (query has shape {tuple(query.shape)})"
            )
        if (x.dtype != query.dtype and not autocast) or x.device != query.device:
            raise TypeError(
                f"{name} is {x.dtype} on {x.device} but query is {query.dtype} on {query.device}: they must be alike"
            )
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(
            f"key has width {key.shape[-1]} but query has width {query.shape[-1]}: their dot product needs equal widths"
        )
    if value.shape[:-1] != key.shape[:-1]:
        raise ValueError(
            f"value has shape {tuple(value.shape)} but key has shape {tuple(key.shape)}: "
            f"there must be one value for each key"
        )
    if query.ndim == 4 and key.shape[0] != query.shape[0]:
        raise ValueError(f"key has batch size {key.shape[0]} but query has {query.shape[0]}")
    if query.ndim >= 3 and query.shape[-3] % max(key.shape[-3], 1):
        raise ValueError(f"key has {key.shape[-3]} heads, which do not divide query's {query.shape[-3]}")
    scores = (*query.shape[:-1], key.shape[-2])
    if beta is not None:
        check_beta(beta)
        if isinstance(beta, Tensor):
            check_broadcastable("beta", beta, (*scores[:-1], 1), "(batch, heads, queries, 1)", same_ndim=False)
            if values_are_readable(beta) and not bool(beta.isfinite().all()):
                raise ValueError("beta as a tensor must be finite; for hard attention pass beta=math.inf")
    for name, mask, dtype in (("keep", keep, torch.bool), ("bias", bias, None)):
        if mask is None:
            continue
        check_mask(name, mask, scores, dtype=dtype)
        if mask.device != query.device:
            raise TypeError(f"{name} is on {mask.device} but query is on {query.device}")
    if isinstance(bias, Tensor) and bias.dtype.itemsize > query.dtype.itemsize and not autocast:
        raise TypeError(f"bias is {describe(bias)} but query is {query.dtype}: pass bias.to(query.dtype)")
    check_probability("dropout", dropout)
