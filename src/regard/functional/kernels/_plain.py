"""One axis of a plane mixed by torch's own products, on a card that has no room for the kernels.

Tensors are read and written where the kernels would, as (items, heads, axis, other, width) with the strides they are
told: a stride of 0 is one value for all heads.
"""

import torch
from torch import Tensor


def as_plane(tensor: Tensor, axis: int, others: int, heads: int, strides: tuple[int, ...]) -> Tensor:
    shape = (tensor.shape[0], heads, axis, others, tensor.shape[3])
    return tensor.as_strided(shape, (*strides, tensor.stride(3)))


def mix(x: Tensor, matrix: Tensor, y: Tensor) -> None:
    """``y[m, o] = Σ_k a[m, k] x[k, o]`` for each item and head."""
    with torch.autocast(x.device.type, enabled=False):
        y.copy_(torch.einsum("hmk,bhkoe->bhmoe", matrix, x))


def matrix_gradient(x: Tensor, grad_y: Tensor) -> Tensor:
    """``Σ grad_y[m, o] x[k, o]`` over items, others and width, in float32, as (1, heads, outputs, inputs)."""
    with torch.autocast(x.device.type, enabled=False):
        return torch.einsum("bhmoe,bhkoe->hmk", grad_y.float(), x.float()).unsqueeze(0)
