"""The same passes by torch's products, for GPUs that the kernels do not fit and for second-order gradients.

Tensors are viewed like in the kernels, as (items, heads, axis, other, width) with given strides; a head stride of 0 means one
value for all heads.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.functional._axis import Targets, build_dtype, matrix_of


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


def axis_matrices(center: Tensor, sharpness: Tensor, grid: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """The axis matrices of heads with border "native", (heads, size, size) for each axis; differentiable."""
    build = build_dtype(center, sharpness)
    if sharpness.ndim == 1:
        sharpness = sharpness.unsqueeze(1).expand(-1, len(grid))
    center, sharpness = center.to(build), sharpness.to(build)
    targets = [
        Targets.of(torch.arange(n, device=center.device, dtype=build), c)
        for n, c in zip(grid, center.unbind(1), strict=True)
    ]
    made = zip(targets, sharpness.unbind(1), grid, strict=True)
    return [matrix_of(target, alpha, n, "native", (0, 0)).to(dtype) for target, alpha, n in made]


def plain_grid(value: Tensor, center: Tensor, sharpness: Tensor, grid: Sequence[int]) -> Tensor:
    """Gaussian attention over a grid, one product per axis; differentiable any number of times."""
    with torch.autocast(value.device.type, enabled=False):
        x = value.unflatten(2, tuple(grid)).expand(-1, center.shape[0], *[-1] * (len(grid) + 1))
        for axis, matrix in enumerate(axis_matrices(center, sharpness, grid, value.dtype)):
            moved = x.movedim(2 + axis, 2)
            mixed = torch.einsum("hmk,bhke->bhme", matrix, moved.flatten(3))
            x = mixed.unflatten(3, moved.shape[3:]).movedim(2, 2 + axis)
        return x.flatten(2, -2)


def aliases(*inputs: Tensor) -> tuple[Tensor, ...]:
    """The same tensors as new nodes of the autograd graph, so that the gradient by one input excludes paths through another
    input that depends on it."""
    return tuple(x.view_as(x) for x in inputs)


def plain_gradient(
    out: Tensor, inputs: tuple[Tensor, ...], needs: tuple[bool, ...], grad: Tensor
) -> list[Tensor | None]:
    wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(found) if need else None for need in needs]
