"""Attention rollout: maps of all layers multiplied, so that the last layer's tokens are traced to the input's."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from regard._checks import check_choice, check_probability, describe
from regard.inspect._maps import Map, Maps

Fusion = Literal["mean", "max", "min"]


def rollout(
    maps: Maps | Sequence[Tensor],
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    identity: float = 0.5,
) -> Float[Tensor, "batch tokens tokens"]:
    r"""How much of each input token is in each output token, if values only flow along attention and skip connections.

    .. math:: R = \hat A_L \cdots \hat A_1, \qquad \hat A_l = \iota I + (1 - \iota)\, \mathrm{fuse}_h(A_l)

    with rows of every factor made to sum to 1, so that R is row-stochastic, which is verified.

    Args:
        maps: of self-attention over the same tokens in every layer, in order; the latest call of each. Choose some with
            ``maps["encoder.*"]``. Tensors ``(batch, heads, tokens, tokens)`` will do.
        fusion: how heads become one: ``"mean"``, ``"max"`` or ``"min"``.
        discard: fraction of the smallest weights of each row that is left out, in [0, 1).
        identity: ι, the share of the skip connection, in [0, 1).

    The result stays on the maps' device. For a model with a class token, ``R[:, 0, prefix:]`` is the usual picture.

    >>> regard.rollout([torch.eye(3).expand(1, 2, 3, 3)] * 4)
    tensor([[[1., 0., 0.],
             [0., 1., 0.],
             [0., 0., 1.]]])
    """
    check_choice("fusion", fusion, ("mean", "max", "min"))
    check_probability("discard", discard)
    check_probability("identity", identity)
    result: Tensor | None = None
    for name, weights in _self_attention(maps):
        fused = _fuse(weights if weights.dtype is torch.float64 else weights.float(), fusion)
        if discard:
            fused = _without_smallest(fused, discard)
        eye = torch.eye(fused.shape[-1], dtype=fused.dtype, device=fused.device)
        # A row with nothing to attend to is carried by the skip connection alone.
        total = fused.sum(-1, keepdim=True)
        share = torch.where(total > 0, identity, 1.0)
        step = share * eye + (1 - share) * fused / total.clamp_min(torch.finfo(fused.dtype).tiny)
        if result is not None and result.shape != step.shape:
            raise ValueError(
                f"{name} has {tuple(step.shape)} (batch, tokens, tokens) but earlier maps {tuple(result.shape)}: "
                "rollout needs the same tokens in every layer"
            )
        result = step if result is None else step @ result
    if result is None:
        raise ValueError("maps is empty: there is nothing to roll out")
    return _verified(result)


def _self_attention(maps: Maps | Sequence[Tensor]) -> list[tuple[str, Tensor]]:
    if isinstance(maps, Map):
        raise TypeError("maps must be several maps, as capture gives them; got a single one")
    if isinstance(maps, Maps):
        named = [(repr(name), found.weights) for name, found in maps.items()]
    else:
        named = [(f"map {i}", weights) for i, weights in enumerate(maps)]
    for name, weights in named:
        if not isinstance(weights, Tensor) or weights.ndim != 4:
            raise ValueError(f"{name} must be (batch, heads, tokens, tokens), got {describe(weights)}")
        if weights.shape[2] != weights.shape[3]:
            raise ValueError(
                f"{name} has {weights.shape[2]} queries and {weights.shape[3]} keys: rollout needs self-attention, "
                'with all rows; choose it, as in maps["encoder.*"]'
            )
    return named


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
            f"rollout is not row-stochastic: a row sums to 1 ± {float(error):.1e}; some map holds no weights"
        )
    return result
