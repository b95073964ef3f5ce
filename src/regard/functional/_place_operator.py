"""``place_moments`` as a custom operator of torch, which compilers and dispatch modes (such as FLOP counters) can see."""

import torch
from torch import Tensor

from regard.functional import _place_moments


@torch.library.custom_op("regard::place_moments", mutates_args=())
def place_moments(
    grad: Tensor, out: Tensor, query: Tensor, key: Tensor, value: Tensor, center: Tensor, matrix: Tensor,
    keep: Tensor | None, lse: Tensor | None, grid: list[int], prefix: int, beta: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    first, second = _place_moments.place_moments(
        grad, out, query, key, value, center, matrix, keep, lse, tuple(grid), prefix, beta, causal
    )
    return first.clone(), second.clone()  # results of a custom operator must not share memory


@place_moments.register_fake
def _(
    grad: Tensor, out: Tensor, query: Tensor, key: Tensor, value: Tensor, center: Tensor, matrix: Tensor,
    keep: Tensor | None, lse: Tensor | None, grid: list[int], prefix: int, beta: float, causal: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(center), torch.empty_like(matrix)
