"""Convert the attention masks of torch."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.support.checks import check_positive, check_tensor, describe


def keep_from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, heads: int | None = None
) -> tuple[Bool[Tensor, "..."] | None, Float[Tensor, "..."] | None]:
    """Translate the masks of ``nn.MultiheadAttention`` into ``keep`` and ``bias``.

    In torch a boolean mask says what is **hidden** (True = do not attend), and a float mask is added to the scores. Here
    ``keep`` says what is attended, and ``bias`` is added.

    Args:
        attn_mask: ``(queries, keys)``, or ``(batch · heads, queries, keys)`` together with ``heads``.
        key_padding_mask: ``(batch, keys)``, or ``(keys,)`` for a single item.
        heads: the number of heads, needed for an ``attn_mask`` with three axes.

    Returns:
        keep, bias: None if no mask of that kind was passed. They have two axes for an ``attn_mask`` of two axes alone,
        otherwise four, ``(batch, heads, queries, keys)``, with size 1 where an axis is shared.

    >>> from regard.layers import keep_from_torch
    >>> keep, bias = keep_from_torch(key_padding_mask=torch.tensor([[False, False, True]]))
    >>> keep, bias
    (tensor([[[[ True,  True, False]]]]), None)
    """
    keep: Tensor | None = None
    bias: Tensor | None = None
    for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if mask is None:
            continue
        check_tensor(name, mask)
        shaped = _attention_axes(mask, heads) if name == "attn_mask" else _padding_axes(mask)
        if mask.dtype is torch.bool:
            keep = ~shaped if keep is None else _like(keep, shaped) & ~shaped
        elif mask.is_floating_point():
            bias = shaped if bias is None else _like(bias, shaped) + shaped
        else:
            raise TypeError(
                f"{name} must be a boolean tensor (True = hidden) or a float one (added), got {describe(mask)}"
            )
    return keep, bias


def _attention_axes(mask: Tensor, heads: int | None) -> Tensor:
    if mask.ndim == 2:
        return mask
    if mask.ndim != 3:
        raise ValueError(
            f"attn_mask has shape {tuple(mask.shape)}, but must be (queries, keys) or (batch · heads, queries, keys)"
        )
    if heads is None:
        raise ValueError(f"attn_mask has shape {tuple(mask.shape)}: pass heads, to separate its batch from its heads")
    check_positive("heads", heads)
    if mask.shape[0] % heads:
        raise ValueError(f"attn_mask has {mask.shape[0]} = batch · heads maps, which {heads} heads do not divide")
    return mask.unflatten(0, (-1, heads))


def _padding_axes(mask: Tensor) -> Tensor:
    if mask.ndim not in (1, 2):
        raise ValueError(f"key_padding_mask has shape {tuple(mask.shape)}, but must be (batch, keys) or (keys,)")
    return (mask if mask.ndim == 2 else mask[None])[:, None, None]  # reshape fails for zero keys


def _like(mask: Tensor, other: Tensor) -> Tensor:
    """The mask with as many axes as ``other``, after checking that both have the same keys."""
    if mask.shape[-1] != other.shape[-1]:
        raise ValueError(f"attn_mask has {mask.shape[-1]} keys but key_padding_mask has {other.shape[-1]}")
    if mask.ndim == 4 and mask.shape[0] != other.shape[0]:
        raise ValueError(f"attn_mask is for a batch of {mask.shape[0]} but key_padding_mask for {other.shape[0]}")
    return mask if mask.ndim == 4 else mask[None, None]
