"""The largest of 2×2 tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.support.checks import is_exporting

Grid = tuple[int, int]


def largest_of_squares(x: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch fewer dim"]:
    """Max pooling of tokens on a grid: of each square of 2×2 tokens the largest value of each feature. A last row or column
    without a partner is left out.

    The compiler of torch turns the gradient of ``max_pool2d`` into atomic additions to a float32 image in another memory
    layout. Squares do not overlap, so compiled code selects instead.

    >>> largest_of_squares(torch.tensor([[[1.0], [2.0], [4.0], [3.0]]]), (2, 2))
    tensor([[[4.]]])
    """
    rows, columns = grid
    if torch.compiler.is_compiling() and not is_exporting() and rows % 2 == columns % 2 == 0:
        squares = x.reshape(-1, rows // 2, 2, columns // 2, 2, x.shape[2])
        return LargestOfFour.apply(squares).flatten(1, 2)
    image = x.unflatten(1, grid).permute(0, 3, 1, 2)  # channels last in memory
    return F.max_pool2d(image, 2).permute(0, 2, 3, 1).flatten(1, 2)


class LargestOfFour(torch.autograd.Function):
    """The largest entry along axes 2 and 4, of two entries each. Like ``max_pool2d``'s, its gradient goes to the first of
    equal entries, and what is not a number is the largest."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        best = x[:, :, 0, :, 0]
        place = torch.zeros_like(best, dtype=torch.int8)
        for at in (1, 2, 3):
            other = x[:, :, at // 2, :, at % 2]
            better = (other > best) | other.isnan()
            best, place = torch.where(better, other, best), torch.where(better, at, place)
        ctx.save_for_backward(place)
        return best

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (place,) = ctx.saved_tensors
        every = torch.arange(4, device=grad.device, dtype=torch.int8).view(2, 1, 2, 1)
        return torch.where(place[:, :, None, :, None] == every, grad[:, :, None, :, None], 0)
