"""Attention rollout: the product of the maps of all layers, from the tokens of the last to those of the first."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.maps import Layout, Map, Maps, check_over_tokens, merged_rows
from regard.support.checks import check_choice, check_probability, describe, is_iterable

Fusion = Literal["mean", "max", "min"]


def rollout(
    maps: Maps | Sequence[Tensor],
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    identity: float = 0.5,
) -> Float[Tensor, "batch outputs inputs"]:
    r"""How much of each input token is in each output token, if values only flow along attention and skip connections.

    .. math:: R = \hat A_L \cdots \hat A_1, \qquad \hat A_l = \iota I + (1 - \iota)\, \mathrm{fuse}_h(A_l)

    with the rows of every factor normalized to sum to 1, so that R is row-stochastic, which is verified. If a model
    merges squares of tokens, as its grids show (16×16, then 8×8), a merged token starts as the mean of its square.

    Args:
        maps: self-attention of every layer, in order, over the same tokens or over merged squares of them; the latest
            call of each. Choose some with ``maps["encoder.*"]``. Or tensors ``(batch, heads, tokens, tokens)``, all over
            the same tokens.
        fusion: how to combine the heads: ``"mean"``, ``"max"`` or ``"min"``.
        discard: the fraction of the smallest weights of each row to leave out, in [0, 1).
        identity: ι, the share of the skip connection, in [0, 1).

    The result is on the maps' device: a row for each token of the last layer, a column for each of the first. For a model
    with a class token, ``R[:, 0, prefix:]`` is the usual picture.

    >>> regard.rollout([torch.eye(3).expand(1, 2, 3, 3)] * 4)
    tensor([[[1., 0., 0.],
             [0., 1., 0.],
             [0., 0., 1.]]])
    """
    check_choice("fusion", fusion, ("mean", "max", "min"))
    check_probability("discard", discard)
    check_probability("identity", identity)
    result: Tensor | None = None
    before: Layout | None = None
    for name, weights, layout in _self_attention(maps):
        fused = _fuse(weights if weights.dtype is torch.float64 else weights.float(), fusion)
        if discard:
            fused = _without_smallest(fused, discard)
        eye = torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
        # A row without attention passes through the skip connection alone.
        total = fused.sum(-1, keepdim=True)
        share = torch.full_like(total, identity).masked_fill(total <= 0, 1.0)
        step = share * eye + (1 - share) * fused / total.clamp_min(torch.finfo(fused.dtype).tiny)
        if result is not None and result.shape[:2] != step.shape[:2]:
            merged = merged_rows(result, before, layout) if len(result) == len(step) else None
            if merged is None:
                raise ValueError(
                    f"{name} has {tuple(step.shape)} (batch, tokens, tokens) but the map before it is of "
                    f"{tuple(result.shape[:2])} (batch, tokens): rollout needs the same tokens in every layer, or grids "
                    f"that show which were merged ({_shown(before)}, then {_shown(layout)})"
                )
            result = merged
        result = step if result is None else step @ result
        before = layout
    if result is None:
        raise ValueError(f"maps is empty ({describe(maps):.60}): rollout needs one map at least")
    return _verified(result)


def _self_attention(maps: Maps | Sequence[Tensor]) -> list[tuple[str, Tensor, Layout | None]]:
    if isinstance(maps, Map):
        raise TypeError("maps must be several maps, as capture gives them; got a single one")
    if isinstance(maps, Maps):
        check_over_tokens(maps, "rollout")
        named = [(repr(name), found.weights, found.latest.layout) for name, found in maps.items()]
    elif not is_iterable(maps) or isinstance(maps, Tensor | str | bytes | nn.Module | range | dict):
        raise TypeError(f"maps must be what regard.capture gives, or several tensors, got {describe(maps)}")
    else:
        named = [(f"map {i}", weights, None) for i, weights in enumerate(maps)]
    for name, weights, _ in named:
        if not isinstance(weights, Tensor) or weights.ndim != 4:
            raise ValueError(f"maps: {name} must be (batch, heads, tokens, tokens), got {describe(weights)}")
        if weights.shape[2] != weights.shape[3]:
            raise ValueError(
                f"maps: {name} has {weights.shape[2]} queries and {weights.shape[3]} keys: rollout needs self-attention, "
                'with all rows; choose it, as in maps["encoder.*"]'
            )
    return named


def _shown(layout: Layout | None) -> str:
    return "unknown" if layout is None else "×".join(map(str, layout.grid))


def _fuse(weights: Tensor, fusion: Fusion) -> Tensor:
    if fusion == "mean":
        return weights.mean(1)
    return weights.amax(1) if fusion == "max" else weights.amin(1)


def _without_smallest(fused: Tensor, discard: float) -> Tensor:
    count = int(fused.shape[-1] * discard)
    if count == 0:
        return fused
    return fused.scatter(-1, fused.topk(count, largest=False).indices, 0.0)


def _verified(result: Tensor) -> Tensor:
    error = (result.sum(-1) - 1).abs().amax() if result.numel() else result.new_zeros(())
    if not bool(error <= 1e3 * torch.finfo(result.dtype).eps):
        raise ArithmeticError(
            f"rollout is not row-stochastic: a row sums to 1 ± {float(error):.1e}; some map contains no valid weights"
        )
    return result
