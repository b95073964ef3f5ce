"""Scaled dot-product attention: by the fused kernel if no map is requested, else the same result together with its map."""

import math
from contextlib import nullcontext
from typing import Any, Literal, overload

import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.functional._attention_checks import LARGEST_FUSED, check_attention, is_plain_call
from regard.functional._extreme_inputs import careful_attention, has_extreme_inputs
from regard.functional._softargmax import below_best, finite_number, hard_logits
from regard.observation import is_hidden, is_observed, observe
from regard.support.checks import (
    check_count,
    check_device,
    check_flag,
    is_exporting,
    is_functional,
    is_transformed,
    static_sizes,
    under_autocast,
    values_are_readable,
)
from regard.support.long_rows import is_long, softmax, softmax_in_place

Weights = Float[Tensor, "*batch heads queries keys"]


@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: float | Tensor | None = ...,
    keep: Tensor | None = ...,
    bias: Tensor | None = ...,
    causal: bool = ...,
    dropout: float = ...,
    return_weights: Literal[False] = ...,
) -> Tensor: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: float | Tensor | None = ...,
    keep: Tensor | None = ...,
    bias: Tensor | None = ...,
    causal: bool = ...,
    dropout: float = ...,
    return_weights: Literal[True],
) -> tuple[Tensor, Tensor]: ...
@overload
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    beta: float | Tensor | None = ...,
    keep: Tensor | None = ...,
    bias: Tensor | None = ...,
    causal: bool = ...,
    dropout: float = ...,
    return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...
def attention(
    query: Float[Tensor, "*batch_q queries d"],
    key: Float[Tensor, "*batch_k keys d"],
    value: Float[Tensor, "*batch_k keys dv"],
    *,
    beta: float | Tensor | None = None,
    keep: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> Float[Tensor, "*batch_q queries dv"] | tuple[Float[Tensor, "*batch_q queries dv"], Float[Tensor, "..."]]:
    r"""Dot-product attention: every query averages the values, weighted by how well their keys match it.

    .. math:: \mathrm{out} = A V, \qquad A = \mathrm{softmax}(\beta\, Q K^\top + \mathrm{bias})
        \ \text{over the kept keys}

    Args:
        query, key, value: ``(batch, heads, tokens, width)``; leading axes may be left out. Keys and values may have fewer
            heads than queries, a divisor of their number; neighboring query heads then share them (grouped heads).
        beta: inverse temperature in [0, ∞] (torch calls it ``scale``); default ``1/√width``. ``0`` ignores the scores,
            ``math.inf`` attends only to the best key (ties share the weight, by softmax(bias) if there is a ``bias``). A
            tensor must be finite and broadcasts against ``(batch, heads, queries, 1)``.
        keep: True = attend. ``(queries, keys)``, or with as many axes as the scores, each of the same size or 1. Two axes are
            always ``(queries, keys)``, also if ``(batch, keys)`` would fit: for padded items, pass ``keep[:, None, None, :]``.
        bias: added to the scores; same shapes as ``keep``; differentiable; −∞ hides a key.
        causal: query i sees key j where ``j ≤ i + keys − queries``: aligned at the end, so that a cache works.
        dropout: probability of dropping a weight (the returned map is before dropout).
        return_weights: also return A. Without it the fused kernel runs and A is never stored. That kernel has no gradients of
            gradients: for these (``create_graph=True``) return the weights, or use ``torch.func``.

    A query with nothing to attend to gives zeros, and finite gradients. On the CPU, in eager mode, extreme inputs also have
    defined results, with and without the map: scores may exceed the dtype's range; infinite entries of queries and keys
    count as its largest number; keys with an infinite score share the weight; hidden keys and values have no effect, even
    if they are infinite or NaN. On other devices this check would need a synchronization, so it is omitted.

    >>> q, k, v = torch.eye(2), torch.eye(2), torch.tensor([[1.0], [3.0]])
    >>> attention(q, k, v, beta=math.inf)
    tensor([[1.],
            [3.]])
    >>> out, weights = attention(q, k, v, beta=0.0, return_weights=True)
    >>> weights
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    if keep is None and bias is None and is_plain_call(query, key, value, beta, dropout):
        found = _plain(query, key, value, beta, causal, dropout, return_weights)
        if found is not None:
            return found
    check_attention(query, key, value, beta=beta, keep=keep, bias=bias, dropout=dropout)
    check_flag("causal", causal)
    check_flag("return_weights", return_weights)
    queries, keys = static_sizes(query)[-2], static_sizes(key)[-2]
    beta = max(query.shape[-1], 1) ** -0.5 if beta is None else finite_number(beta)
    if has_extreme_inputs(query, key, value, beta, bias, masked=keep is not None or bias is not None):
        if causal and queries > 1:
            keep = _and(keep, causal_keep(queries, keys, query.device))
        return careful_attention(query, key, value, beta, keep, bias, dropout, return_weights)
    by_hand = return_weights or keys == 0 or _is_differentiated_twice(query, key, value)
    # Under vmap torch does not see that a mask needs a gradient, and takes a kernel that has none for it.
    by_hand = by_hand or (bias is not None and torch.is_grad_enabled() and is_transformed())
    by_hand = by_hand or stores_long_map(query, key, value, bias, dropout)
    if isinstance(beta, Tensor):
        # β · query may overflow in float16; only the unfused path computes it in float32.
        by_hand = by_hand or query.dtype == torch.float16 or _may_overflow(beta)
    elif beta < torch.finfo(torch.promote_types(query.dtype, torch.float32)).tiny:
        # A kernel that masks with −∞ before it scales would compute 0 · −∞ = NaN.
        query, beta = query * 0.0, 1.0
    else:
        by_hand = by_hand or _may_overflow(beta)
    if by_hand:
        if causal and queries > 1:
            keep = _and(keep, causal_keep(queries, keys, query.device))
        return _with_weights(query, key, value, beta, keep, bias, dropout, return_weights)

    if isinstance(beta, Tensor):
        query, beta = query * beta.to(query.dtype), 1.0
    # torch's is_causal aligns at the start and cannot be combined with a mask. A single query is the last and sees all keys.
    causal = causal and queries > 1
    flag = causal and queries == keys and keep is None and bias is None
    if causal and not flag:
        keep = _and(keep, causal_keep(queries, keys, query.device))
    return _fused(query, key, value, beta, keep, bias, dropout, flag)


def causal_keep(queries: int, keys: int, device: torch.device | None = None) -> Bool[Tensor, "queries keys"]:
    """True where query i may see key j: ``j ≤ i + keys − queries``.

    >>> causal_keep(2, 3)
    tensor([[ True,  True, False],
            [ True,  True,  True]])
    """
    if not torch.compiler.is_compiling() and not is_exporting():
        check_count("queries", queries)
        check_count("keys", keys)
        if device is not None:
            device = check_device("device", device)
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def _plain(
    query: Tensor, key: Tensor, value: Tensor, beta: Any, causal: bool, dropout: float, return_weights: bool
) -> Tensor | tuple[Tensor, Tensor] | None:
    """The fast path for ordinary self-attention, with the same result; None if the call needs the general path."""
    batch, heads, tokens, width = query.shape
    scale = width**-0.5 if beta is None else beta
    if not query.is_cuda and has_extreme_inputs(query, key, value, scale, None, masked=False):
        return None
    if return_weights is False and (causal is False or causal is True):
        if dropout and stores_long_map(query, key, value, None, dropout):
            return None
        causal = causal and static_sizes(query)[2] > 1
        return F.scaled_dot_product_attention(query, key, value, None, dropout, causal, scale=scale)
    if return_weights is not True or causal is not False or dropout or under_autocast(query):
        return None
    shape = (batch * heads, tokens, width)
    rows, columns = query.reshape(shape), key.reshape(shape).mT
    logits = torch.baddbmm(query.new_empty(()), rows, columns, beta=0, alpha=scale)  # beta=0: input 0 is not read
    weights = softmax(logits) if logits.requires_grad else softmax_in_place(logits)
    out = torch.bmm(weights, value.reshape(shape))
    return out.view(batch, heads, tokens, width), weights.view(batch, heads, tokens, tokens)


def _and(left: Tensor | None, right: Tensor) -> Tensor:
    return right if left is None else left & right


def _fused(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: float,
    keep: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    causal: bool,
) -> Tensor:
    grouped = False
    if query.ndim > 2 and query.shape[-3] != key.shape[-3]:  # a plain bool, even for symbolic sizes
        grouped = True
    lead = 4 - query.ndim  # the fused kernels need four axes
    if lead:
        query, key, value = (x[(None,) * lead] for x in (query, key, value))
    mask = keep
    if bias is not None:
        mask = bias.to(query.dtype)
        if keep is not None:
            mask = mask.masked_fill(~keep, -math.inf)
    guard = None
    if mask is not None and not _gives_zeros_without_keys(query):
        hidden = ~mask if mask.dtype is torch.bool else mask == -math.inf
        guard = hidden.all(-1, keepdim=True)
        mask = mask | guard if mask.dtype is torch.bool else mask.masked_fill(guard, 0.0)

    given = (query, key, value, mask, guard, beta, causal, grouped)
    if guard is not None and are_shown(guard):
        out = observe(
            None, lambda: _guarded(*given, dropout),
            lambda: _with_weights(query, key, value, beta, keep, bias, 0.0, True)[1],
            value=value, kind="sdpa", clean=(lambda: _guarded(*given, 0.0)) if dropout else None,
        )  # fmt: skip
    else:
        out = _guarded(*given, dropout)
    return out[(0,) * lead] if lead else out


def _guarded(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, guard: Tensor | None, beta: float, causal: bool,
    grouped: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """torch's kernel, and zeros for rows of ``guard``."""
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=beta, enable_gqa=grouped
    )
    return out if guard is None else out.masked_fill(guard, 0.0)


def stores_long_map(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout: float) -> bool:
    """Whether torch's kernel on a CPU would store the map, as it does in these cases, and lose digits in its long rows."""
    learned = bias is not None and bias.requires_grad and torch.is_grad_enabled()
    stored = learned or dropout > 0 or query.shape[-1] != value.shape[-1]
    return stored and not under_autocast(query) and is_long(key.mT, -1)


def _gives_zeros_without_keys(query: Tensor) -> bool:
    """Whether the fused kernel gives zeros to a row without any visible key. We rely on this only on the CPU. Elsewhere
    such a row sees all keys, and zeros replace its output."""
    return query.device.type == "cpu"


def are_shown(empty: Tensor) -> bool:
    """Whether a listener would see weights in rows that are ``empty``, to which the kernel gives some."""
    if not is_observed() or is_hidden() or torch.compiler.is_compiling() or is_transformed() or is_functional(empty):
        return False
    return bool(empty.any())


def _with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: float | Tensor,
    keep: Tensor | None,
    bias: Tensor | None,
    dropout: float,
    return_weights: bool,
) -> Tensor | tuple[Tensor, Tensor]:
    logits = _logits(query, key, beta, keep, bias)
    empty = None
    if bias is not None:
        empty = (logits == -math.inf).all(-1, keepdim=True)
    elif keep is not None:
        empty = ~keep.any(-1, keepdim=True)
    if empty is not None and _is_plain(empty) and values_are_readable(empty) and not bool(empty.any()):
        empty = None
    # The softmax of a row of −∞, and its gradient, would be NaN: use finite logits there and set the weights to zero.
    weights = _softmax(logits if empty is None else logits.masked_fill(empty, 0.0))
    if empty is not None:
        weights = weights.masked_fill(empty, 0.0)
    weights = weights.to(value.dtype)
    out = _averages(F.dropout(weights, dropout) if dropout else weights, value)
    return (out, weights) if return_weights else out


def _logits(
    query: Tensor, key: Tensor, beta: float | Tensor, keep: Tensor | None, bias: Tensor | None
) -> Float[Tensor, "*batch queries keys"]:
    """β·q·kᵀ + bias, and −∞ for keys that are not kept."""
    if not isinstance(beta, Tensor) and beta == math.inf:
        return hard_logits(_scores(query, key, 1.0), bias, keep, -1)
    if _may_overflow(beta):
        scores = below_best(_scores(query, key, 1.0), bias, keep, -1)
        largest = torch.finfo(scores.dtype).max
        logits = scores * (beta.to(scores.dtype).clamp(max=largest) if isinstance(beta, Tensor) else min(beta, largest))
    elif isinstance(beta, Tensor):
        wide = torch.promote_types(query.dtype, torch.float32) if query.dtype == torch.float16 else query.dtype
        logits = _scores(query.to(wide) * beta.to(wide), key.to(wide), 1.0)
    else:
        logits = _scores(query, key, beta)
    # The map is the largest tensor here, and allocating a second one costs as much as computing it, so it is changed in
    # place. That is safe: the backward pass of a product reads its factors, not its result.
    in_place = all(_is_plain(x) for x in (logits, bias, keep) if x is not None)
    if bias is not None:
        logits = logits.add_(bias) if in_place and bias.dtype == logits.dtype else logits + bias
    if keep is not None:
        logits = logits.masked_fill_(~keep, -math.inf) if in_place else logits.masked_fill(~keep, -math.inf)
    return logits


def _may_overflow(beta: float | Tensor) -> bool:
    """Whether β exceeds ``LARGEST_FUSED``. A tensor on another device is not read, to avoid a synchronization."""
    if isinstance(beta, Tensor):
        return values_are_readable(beta) and bool((beta > LARGEST_FUSED).any())
    return beta > LARGEST_FUSED


def _scores(query: Tensor, key: Tensor, beta: float) -> Tensor:
    """β·q·kᵀ as one product; query heads that share a key head are stacked as its rows. Float16 is computed in float32,
    as in the fused kernels, because sums of products may overflow."""
    autocast = under_autocast(query)
    if torch.float16 in (query.dtype, torch.get_autocast_dtype(query.device.type) if autocast else None):
        with torch.autocast(query.device.type, enabled=False) if autocast else nullcontext():
            return _scores(query.float(), key.float(), beta)
    rows, shared = _fold(query, _group(query, key)), _fold(key)
    scores = torch.baddbmm(query.new_empty(()), rows, shared.mT, beta=0, alpha=beta)  # beta=0: input 0 is not read
    return scores.view(*query.shape[:-1], key.shape[-2])


def _averages(weights: Tensor, value: Tensor) -> Tensor:
    out = torch.bmm(_fold(weights, _group(weights, value)), _fold(value))
    return out.view(*weights.shape[:-1], value.shape[-1])


def _group(left: Tensor, right: Tensor) -> int:
    """How many neighboring heads of ``left`` share one head of ``right``."""
    return 1 if left.ndim < 3 or not right.shape[-3] else left.shape[-3] // right.shape[-3]


def _fold(x: Tensor, group: int = 1) -> Tensor:
    """Reshape to ``(batch · heads / group, group · tokens, width)``; batch and heads may be missing."""
    return x.reshape(math.prod(x.shape[:-2]) // group, group * x.shape[-2], x.shape[-1])


def _softmax(logits: Tensor) -> Tensor:
    """Softmax over the last axis, in place if nothing reads the logits again."""
    if logits.requires_grad or under_autocast(logits) or not _is_plain(logits):
        return softmax(logits)
    return softmax_in_place(logits)


def _is_differentiated_twice(*tensors: Tensor) -> bool:
    """Whether forward-mode or second-order gradients are being computed, which the fused kernels do not support."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active():
        kinds = [level.key() for level in torch._C._functorch.get_interpreter_stack() or ()]
        transforms = torch._C._functorch.TransformType
        return transforms.Jvp in kinds or kinds.count(transforms.Grad) > 1
    return fwAD._current_level >= 0 and any(fwAD.unpack_dual(x).tangent is not None for x in tensors)


def _is_plain(x: Tensor) -> bool:
    """Whether x may take part in in-place operations: no tensor subclass, not traced, not transformed (vmap, jvp)."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, nn.Parameter):
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x) and fwAD.unpack_dual(x).tangent is None
