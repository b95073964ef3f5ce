"""Queries, keys and values from one packed weight: equal inputs share one product."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.layers._block_linear import BlockLinear, block_product

Projection = nn.Linear | BlockLinear

# Up to this many elements, copying a product takes less time than the host operations that the copy saves.
CHEAP_ON_CPU, CHEAP_ON_GPU = 1 << 13, 1 << 22


def packed_heads(
    layer: Projection, sources: Sequence[Tensor | None], sizes: Sequence[int], head_dim: int
) -> Sequence[Tensor]:
    """Queries, keys and values, each ``(batch, heads, tokens, head_dim)``; those whose source is None are left out.

    ``sizes`` are the numbers of rows of the packed weight (of each of its blocks) for queries, keys and values. The results
    are views of the products. If the linear layer was replaced by another module (a LoRA adapter, quantized weights), that
    module is called, and the unneeded part of its output is dropped.
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
    # One split instead of several narrows: the gradient of the whole weight is then one concatenation.
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
    """Split a product ``(batch, tokens, width)``, or ``(batch, tokens, heads, width)`` for blocks, into heads.

    If the width is split first, the backward pass is one concatenation in the product's layout. Splitting once by heads
    takes half as many operations but one more copy of the gradient, which is better for small products.
    """
    if product.ndim == 4:
        return [part.transpose(1, 2) for part in torch.split_with_sizes(product, sizes, -1)]
    batch, tokens, width = product.shape
    # Not -1 for the number of heads, which fails if there are no tokens.
    if not torch.compiler.is_compiling() and (not product.requires_grad or is_cheap_to_copy(product)):
        heads = product.view(batch, tokens, width // head_dim, head_dim).transpose(1, 2)
        return torch.split_with_sizes(heads, [size // head_dim for size in sizes], 1)
    parts = torch.split_with_sizes(product, sizes, -1)
    return [part.view(batch, tokens, part.shape[-1] // head_dim, head_dim).transpose(1, 2) for part in parts]


def is_cheap_to_copy(product: Tensor) -> bool:
    """Whether host operations take longer than a copy of the product or of its gradient."""
    return product.numel() <= (CHEAP_ON_CPU if product.is_cpu else CHEAP_ON_GPU)


def stacked_heads(product: Tensor, head_dim: int) -> Sequence[Tensor]:
    """Queries, keys and values of equal width, each contiguous, by one copy of the ``(batch, tokens, width)`` product. Used
    when the map is formed, because its products would otherwise copy each of the three."""
    batch, tokens, width = product.shape
    heads = product.view(batch, tokens, 3, width // (3 * head_dim), head_dim)
    return heads.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
