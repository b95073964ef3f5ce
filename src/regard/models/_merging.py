"""Merging tokens: squares of 2×2 become one token of twice the width."""

from collections.abc import Sequence

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import LayerNorm
from regard.support.checks import check_positive, describe

Grid = tuple[int, int]


class TokenMerging(nn.Module):
    r"""Each square of 2×2 tokens becomes one token of twice the width.

    .. math:: z_{r,c} = W \operatorname{norm}(x_{2r,2c}, x_{2r,2c+1}, x_{2r+1,2c}, x_{2r+1,2c+1})

    Args:
        dim: width of the input tokens. The output tokens have the width ``2 · dim``.

    >>> from regard.models._merging import TokenMerging
    >>> TokenMerging(8)(torch.randn(2, 6 * 4, 8), (6, 4)).shape
    torch.Size([2, 6, 16])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        check_positive("dim", dim)
        self.norm = LayerNorm(4 * dim)
        self.reduction = nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x: Float[Tensor, "batch tokens dim"], grid: Grid) -> Float[Tensor, "batch merged wide"]:
        """``grid`` is the rows and columns of the input tokens, both even."""
        rows, columns = grid
        if rows % 2 or columns % 2 or rows * columns != x.shape[1]:
            raise ValueError(f"x has {x.shape[1]} tokens, which cannot be merged in squares of 2×2 on grid {grid}")
        squares = rearrange(x, "b (r p c q) d -> b (r c) (p q d)", p=2, q=2, c=columns // 2)
        return self.reduction(self.norm(squares))


def checked_merge(merge: Sequence[int], depth: int) -> tuple[int, ...]:
    """Check the numbers of the blocks before which :class:`ImageEncoder` merges tokens.

    >>> checked_merge([2, 4], depth=6)
    (2, 4)
    """
    if not isinstance(merge, list | tuple):
        raise TypeError(f"merge must be the numbers of blocks, such as (2,), got {describe(merge)}")
    for number in merge:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < depth:
            raise ValueError(f"merge must be numbers of blocks, from 0 to {depth - 1}, got {describe(merge)}")
    if list(merge) != sorted(set(merge)):
        raise ValueError(f"merge must name each block once, in order, got {describe(merge)}")
    return tuple(merge)


def grids_of_blocks(grid: Grid, depth: int, merge: Sequence[int]) -> list[Grid]:
    """Rows and columns that each block sees.

    >>> grids_of_blocks((16, 8), 3, (1,))
    [(16, 8), (8, 4), (8, 4)]
    """
    grids = []
    for number in range(depth):
        if number in merge:
            grid = grid[0] // 2, grid[1] // 2
        grids.append(grid)
    return grids
