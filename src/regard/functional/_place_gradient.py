"""Gradients of center and sharpness, computed outside of the fused kernel."""

from typing import Any

import torch
from torch import Tensor

from regard.functional._place_moments import place_moments
from regard.functional.kernels import Heads


class PlaceGradient(torch.autograd.Function):
    """The identity on attention's output. Its backward pass computes the gradients of center and matrix from recomputed
    scores, and passes the output's gradient on to the fused kernel, which computes those of query, key and value."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, out: Tensor, center: Tensor, matrix: Tensor, query: Tensor, key: Tensor, value: Tensor,
        keep: Tensor | None, lse: Tensor | None, grid: tuple[int, ...], prefix: int, beta: float, causal: bool,
        heads: Heads | None, longest: Tensor | None,
    ) -> Tensor:  # fmt: skip
        ctx.save_for_backward(out, query, key, value, center, matrix, keep, lse)
        ctx.call, ctx.known = (grid, prefix, beta, causal), (heads, longest)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        out, query, key, value, center, matrix, keep, lse = ctx.saved_tensors
        inputs = (grad, out, query, key, value, center, matrix, keep, lse)
        grid, prefix, beta, causal = ctx.call
        if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0:
            from regard.functional._place_operator import place_moments as operator

            first, second = operator(*inputs, list(grid), prefix, beta, causal)
        else:
            first, second = place_moments(*inputs, grid, prefix, beta, causal, *ctx.known)
        by_center = ((matrix + matrix.mT) @ first.unsqueeze(-1)).squeeze(-1)
        return grad, by_center, -second, *(None,) * 11
