"""Pruning regard's own layers: the weights of removed heads are deleted."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers import (
    GatedPositionalAttention,
    GaussianAttention,
    GaussianHeads,
    MultiHeadAttention,
    RelativeAttention,
)

Positional = GaussianAttention | RelativeAttention | GatedPositionalAttention
OwnLayer = MultiHeadAttention | Positional


def heads_of_layer(module: nn.Module) -> int:
    """The number of heads of a layer that can be pruned."""
    return int(module.num_heads if isinstance(module, nn.MultiheadAttention) else module.heads)  # type: ignore[arg-type]


def pruned(layer: OwnLayer, kept: Sequence[int]) -> OwnLayer:
    """A copy of the layer with these heads; the given layer is not changed.

    >>> from regard.layers import GaussianAttention
    >>> layer = pruned(GaussianAttention(12, 3, axes=1), [0, 2])
    >>> layer.center.shape, layer(torch.randn(1, 5, 12)).shape
    (torch.Size([2, 1]), torch.Size([1, 5, 12]))
    """
    return pruned_multi_head(layer, kept) if isinstance(layer, MultiHeadAttention) else _positional(layer, kept)


def _positional(layer: Positional, kept: Sequence[int]) -> Positional:
    new = copy.deepcopy(layer)
    heads = list(kept)
    new.heads = len(heads)
    _keep_columns(new.output, heads, layer.head_dim)
    if isinstance(new, GaussianAttention | GatedPositionalAttention):
        _keep_positions(new.positions, heads)
    if isinstance(new, GaussianAttention) and not isinstance(new.plan, str):
        new.plan = "auto"  # a frozen plan is for the original heads
    if isinstance(new, GatedPositionalAttention):
        new.gate = _part(new.gate, heads)
    if isinstance(new, RelativeAttention):
        _keep_rows(new.position, heads, layer.head_dim if layer.content else 1)
    if isinstance(new, GatedPositionalAttention) or (isinstance(new, RelativeAttention) and new.content):
        every = [layer.heads * part + head for part in range(3) for head in heads]
        _keep_rows(new.qkv, every, layer.head_dim)
    elif new.value is not None:
        _keep_rows(new.value, heads, layer.head_dim)
    if isinstance(new, RelativeAttention) and new.content:
        new.u, new.v = _part(new.u, heads), _part(new.v, heads)
    return new


def _keep_positions(positions: GaussianHeads, heads: list[int]) -> None:
    positions.heads = len(heads)
    positions.init = "normal"  # the remaining heads need not form a grid
    positions.center = _part(positions.center, heads)
    if positions.covariance == "full":
        positions.root = _part(positions.root, heads)
    else:
        positions.log_sharpness = _part(positions.log_sharpness, heads)


def _part(parameter: nn.Parameter, heads: list[int]) -> nn.Parameter:
    return nn.Parameter(parameter.detach()[heads].clone(), requires_grad=parameter.requires_grad)


def _keep_rows(linear: nn.Linear, heads: list[int], width: int) -> None:
    """Keep the outputs of a linear layer that belong to these heads."""
    linear.weight = _taken(linear.weight, _rows(linear.weight.detach(), heads, width))
    if linear.bias is not None:
        linear.bias = _taken(linear.bias, _rows(linear.bias.detach(), heads, width))
    linear.out_features = linear.weight.shape[0]


def _keep_columns(linear: nn.Linear, heads: list[int], width: int) -> None:
    """Keep the inputs of a linear layer that come from these heads."""
    linear.weight = _taken(linear.weight, _rows(linear.weight.detach().mT, heads, width).mT.contiguous())
    linear.in_features = linear.weight.shape[1]


def _taken(parameter: Tensor, part: Tensor) -> nn.Parameter:
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def pruned_multi_head(layer: MultiHeadAttention, kept: Sequence[int]) -> MultiHeadAttention:
    """Multi-head attention with some of its heads; key and value heads that no query head uses are removed, too."""
    new = MultiHeadAttention(layer.dim, len(kept), **pruned_sizes(layer, kept))
    copy_heads(layer, new, kept)
    return new.train(layer.training)


def pruned_sizes(layer: MultiHeadAttention, kept: Sequence[int]) -> dict[str, Any]:
    """The arguments of the constructor for a layer with some of the heads of this one, besides its width and their number."""
    if layer.slice_heads:
        raise ValueError("a layer with slice_heads gives each head its own slice of the input: no head can be removed")
    return {
        "context_dim": layer.context_dim,
        "value_dim": layer.value_dim,
        "out_dim": layer.out_dim,
        "head_dim": layer.head_dim,
        "key_value_heads": len(_used(layer, kept)),
        "bias": layer.input_biases()[0] is not None,
        "output_bias": layer.output.bias is not None,
        "dropout": layer.dropout,
        "beta": layer.beta,
    }


def copy_heads(layer: MultiHeadAttention, new: MultiHeadAttention, kept: Sequence[int]) -> None:
    """Give ``new`` the weights of these heads, in the dtype and on the device of ``layer``."""
    new.to(layer.output.weight)
    used = _used(layer, kept)
    chosen = (list(kept), used, used)
    with torch.no_grad():
        for old, into, heads in zip(layer.input_weights(), new.input_weights(), chosen, strict=True):
            into.copy_(_rows(old, heads, layer.head_dim))
        for old_bias, into_bias, heads in zip(layer.input_biases(), new.input_biases(), chosen, strict=True):
            if old_bias is not None and into_bias is not None:
                into_bias.copy_(_rows(old_bias, heads, layer.head_dim))
        new.output.weight.copy_(_rows(layer.output.weight.T, list(kept), layer.head_dim).T)
        if layer.output.bias is not None:
            new.output.bias.copy_(layer.output.bias)
    for old, into in zip(layer.parameters(), new.parameters(), strict=True):
        into.requires_grad_(old.requires_grad)


def _used(layer: MultiHeadAttention, kept: Sequence[int]) -> list[int]:
    """The heads of keys and values that the kept heads use. In uneven groups every head gets its own copy of them."""
    group = layer.heads // layer.key_value_heads
    shared = [head // group for head in kept]
    distinct = sorted(set(shared))
    even = all(shared.count(i) * len(distinct) == len(kept) for i in distinct)
    return distinct if even else shared


def _rows(weight: Tensor, heads: Sequence[int], width: int) -> Tensor:
    return weight.unflatten(0, (-1, width))[list(heads)].flatten(0, 1)
