"""Products along one axis with the narrow matrices of wide heads, which are long on one side and short on the other."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from regard.support import huge_pages

# How many products are added up one after the other on a CPU: of a million, float32 would keep no more than four digits.
MOST_STEPS = 2**10

# ``matrix[h] @ x[b, h, i]`` for all b, h and i, where a single matrix serves all heads, and a single head of x all matrices.
Multiply = Callable[
    [Float[Tensor, "_ rows steps"], Float[Tensor, "batch _ before steps columns"]],
    Float[Tensor, "batch heads before rows columns"],
]


def by_torch(matrix: Tensor, x: Tensor) -> Tensor:
    """By plain operations, which autograd, compilers and transforms understand. Matrices of several heads are copied for each
    item."""
    if len(matrix) > 1:
        return torch.matmul(matrix.unsqueeze(1), x)
    items = x.flatten(0, 2)
    return torch.bmm(matrix.expand(len(items), -1, -1), items).unflatten(0, x.shape[:3])


def by_items(matrix: Tensor, x: Tensor) -> Tensor:
    """On a CPU, without derivatives: a copy of the matrices for each item would take longer than their products."""
    heads, rows, steps = matrix.shape
    if steps > MOST_STEPS:
        first, *others = zip(matrix.split(MOST_STEPS, 2), x.split(MOST_STEPS, 3), strict=True)
        total = by_items(*first)
        for part in others:
            total += by_items(*part)
        return total
    batch, given, before, _, columns = x.shape
    out = huge_pages.empty(batch, max(heads, given), before, rows, columns, like=x)
    if heads == 1:
        items = x.flatten(0, 2)
        torch.bmm(matrix.expand(len(items), -1, -1), items, out=out.flatten(0, 2))
    elif before == 1:
        for item, target in zip(x.expand(-1, heads, -1, -1, -1), out, strict=True):
            torch.bmm(matrix, item[:, 0], out=target[:, 0])
    else:
        for item, target in zip(x.expand(-1, heads, -1, -1, -1), out, strict=True):
            for own, each, result in zip(matrix, item, target, strict=True):
                torch.bmm(own.expand(before, -1, -1), each, out=result)
    return out
