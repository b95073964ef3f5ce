"""Queries, keys and values from one packed weight: inputs that are the same share one product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers._block_linear import BlockLinear, block_product

Projection = nn.Linear | BlockLinear

# Elements of a product whose copy takes less time than the steps of the host that it saves.
CHEAP_ON_CPU, CHEAP_ON_GPU = 1 << 13, 1 << 22


def packed_heads(
    layer: Projection, sources: Sequence[Tensor | None], sizes: Sequence[int], head_dim: int
) -> Sequence[Tensor]:
    """Queries, keys and values, each ``(batch, heads, tokens, head_dim)``, leaving out those whose source is None.

    ``sizes`` are the rows of the packed weight (of each of its blocks) that belong to each. The results are views of
    the products. A layer that somebody put in the place of the linear one (a LoRA adapter, quantized weights) is called as
    it is, and what is not needed of its output is left out.
    """
    query, key, value = sources
    if query is key is value and query is not None:
        blocks = isinstance(layer, BlockLinear)
        product = block_product(query, layer.weight, layer.bias) if blocks else layer(query)
        return apart(product, sizes, head_dim)
    if type(layer) not in (nn.Linear, BlockLinear):
        return [apart(layer(x), sizes, head_dim)[place] for place, x in enumerate(sources) if x is not None]
    runs = [(query, sizes[:1])]
    runs += [(key, sizes[1:])] if key is value else [(key, sizes[1:2]), (value, sizes[2:])]
    # Split once, not narrowed for each: the gradient of the whole weight is then one concatenation.
    axis, lengths = layer.weight.ndim - 2, [sum(part) for _, part in runs]
    weights = torch.split_with_sizes(layer.weight, lengths, axis)
    biases = [None] * len(runs) if layer.bias is None else torch.split_with_sizes(layer.bias, lengths, axis)
    linear = F.linear if isinstance(layer, nn.Linear) else block_product
    heads: list[Tensor] = []
    for (source, part), weight, bias in zip(runs, weights, biases, strict=True):
        if source is not None:
            heads += apart(linear(source, weight, bias), part, head_dim)
    return heads


def apart(product: Tensor, sizes: Sequence[int], head_dim: int) -> Sequence[Tensor]:
    """The parts of a product as heads. ``(batch, tokens, width)``, or ``(batch, tokens, heads, width)`` of blocks.

    Splitting by width before by heads makes the backward pass one concatenation straight into the product's layout.
    Splitting once by heads takes half as many steps and one more copy of the gradient: better where that is small.
    """
    if product.ndim == 4:
        return [part.transpose(1, 2) for part in torch.split_with_sizes(product, sizes, -1)]
    batch, tokens, width = product.shape
    # Not -1 for the number of heads: there may be no tokens at all.
    if not torch.compiler.is_compiling() and (not product.requires_grad or is_cheap_to_copy(product)):
        heads = product.view(batch, tokens, width // head_dim, head_dim).transpose(1, 2)
        return torch.split_with_sizes(heads, [size // head_dim for size in sizes], 1)
    parts = torch.split_with_sizes(product, sizes, -1)
    return [part.view(batch, tokens, part.shape[-1] // head_dim, head_dim).transpose(1, 2) for part in parts]


def is_cheap_to_copy(product: Tensor) -> bool:
    """Whether the host's steps count for more than a copy of the product or of its gradient."""
    return product.numel() <= (CHEAP_ON_CPU if product.is_cpu else CHEAP_ON_GPU)


def stacked_heads(product: Tensor, head_dim: int) -> Sequence[Tensor]:
    """Queries, keys and values of equal width, each contiguous, by one copy of the ``(batch, tokens, width)`` product: for
    products of whole maps, which would copy each of them."""
    batch, tokens, width = product.shape
    heads = product.view(batch, tokens, 3, width // (3 * head_dim), head_dim)
    return heads.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
