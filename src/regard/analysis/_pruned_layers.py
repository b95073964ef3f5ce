"""Pruning regard's own layers: the weights of removed heads are deleted."""

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from regard.layers import (
    BlockLinear,
    GatedPositionalAttention,
    GaussianAttention,
    GaussianHeads,
    MultiHeadAttention,
    RelativeAttention,
)
from regard.support.module_checks import is_unmodified, replaced_method

Positional = GaussianAttention | RelativeAttention | GatedPositionalAttention
OwnLayer = MultiHeadAttention | Positional
_PROJECTIONS = ("qkv", "query", "key", "value", "position", "output")


def heads_of_layer(module: nn.Module) -> int:
    """The number of heads of a layer that can be pruned."""
    return int(module.num_heads if isinstance(module, nn.MultiheadAttention) else module.heads)  # type: ignore[arg-type]


def why_unknown(layer: nn.Module, base: type[nn.Module]) -> str | None:
    """Why no head of this ``base`` can be removed, if so: its class, or a part of it, computes what is not known here."""
    if replaced_method(layer, base, "forward"):
        return f"is a {type(layer).__name__}, which replaces forward, so its computation is unknown"
    if isinstance(layer, MultiHeadAttention) and layer.slice_heads:
        return "has slice_heads, which gives each head its own slice of the input"
    parts = dict(layer.named_children()) if base is not nn.MultiheadAttention else {}
    for name in _PROJECTIONS:
        part = parts.get(name)
        if part is not None and not (type(part) is nn.Linear and is_unmodified(part)):
            return f"has a {name} that is no plain nn.Linear ({type(part).__name__})"
    return None


def prune_layer(layer: OwnLayer, kept: Sequence[int]) -> None:
    """Remove the other heads, in place.

    >>> from regard.layers import GaussianAttention
    >>> layer = GaussianAttention(12, 3, axes=1)
    >>> prune_layer(layer, [0, 2])
    >>> layer.center.shape, layer(torch.randn(1, 5, 12)).shape
    (torch.Size([2, 1]), torch.Size([1, 5, 12]))
    """
    for name, part in list(layer._modules.items()):
        setattr(layer, name, copy.deepcopy(part))  # another layer may use the same part
    if isinstance(layer, MultiHeadAttention):
        _prune_multi_head(layer, list(kept))
    else:
        _prune_positional(layer, list(kept))


def _prune_multi_head(layer: MultiHeadAttention, heads: list[int]) -> None:
    """Key and value heads that no query head uses are removed, too."""
    used = _used_heads(layer, heads)
    if layer.packed:
        keys, values = layer.heads, layer.heads + layer.key_value_heads
        units = [*heads, *(keys + head for head in used), *(values + head for head in used)]
        _keep_rows(layer.qkv, units, layer.head_dim)
    else:
        for linear, some in ((layer.query, heads), (layer.key, used), (layer.value, used)):
            _keep_rows(linear, some, layer.head_dim)
    _keep_columns(layer.output, heads, layer.head_dim)
    layer.heads, layer.key_value_heads = len(heads), len(used)


def _prune_positional(layer: Positional, heads: list[int]) -> None:
    before, layer.heads = layer.heads, len(heads)
    _keep_columns(layer.output, heads, layer.head_dim)
    if isinstance(layer, GaussianAttention | GatedPositionalAttention):
        _keep_positions(layer.positions, heads)
    if isinstance(layer, GaussianAttention) and not isinstance(layer.plan, str):
        layer.plan = "auto"  # a frozen plan is for the original heads
    if isinstance(layer, GatedPositionalAttention):
        layer.gate = _part(layer.gate, heads)
    if isinstance(layer, RelativeAttention):
        _keep_rows(layer.position, heads, layer.head_dim if layer.content else 1)
    if isinstance(layer, GatedPositionalAttention) or (isinstance(layer, RelativeAttention) and layer.content):
        every = [before * part + head for part in range(3) for head in heads]
        _keep_rows(layer.qkv, every, layer.head_dim)
    elif layer.value is not None:
        _keep_rows(layer.value, heads, layer.head_dim)
    if isinstance(layer, RelativeAttention) and layer.content:
        layer.u, layer.v = _part(layer.u, heads), _part(layer.v, heads)


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


def _keep_rows(linear: nn.Linear | BlockLinear, heads: list[int], width: int) -> None:
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


def _used_heads(layer: MultiHeadAttention, kept: Sequence[int]) -> list[int]:
    """The heads of keys and values that the kept heads use. In uneven groups every head gets its own copy of them."""
    group = layer.heads // layer.key_value_heads
    shared = [head // group for head in kept]
    distinct = sorted(set(shared))
    even = all(shared.count(i) * len(distinct) == len(kept) for i in distinct)
    return distinct if even else shared


def _rows(weight: Tensor, heads: Sequence[int], width: int) -> Tensor:
    return weight.unflatten(0, (-1, width))[list(heads)].flatten(0, 1)
