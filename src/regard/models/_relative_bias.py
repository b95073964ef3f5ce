"""Relative positions as a bias of attention scores, for tokens of a grid with prefix tokens."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class RelativeBias(nn.Module):
    r"""Each head has a learned bias for each offset between key and query. Prefix tokens have none.

    .. math:: b_{h,q,k} = T_{h,\; \mathrm{row}_k - \mathrm{row}_q,\; \mathrm{column}_k - \mathrm{column}_q}

    Args:
        heads: number of heads.
        grid: rows and columns. For another grid the table is interpolated in proportion to its size.
        prefix: number of tokens before those of the grid; their bias is 0.

    >>> bias = RelativeBias(4, (3, 5), prefix=1)
    >>> bias((3, 5)).shape, bias((6, 5)).shape
    (torch.Size([1, 4, 16, 16]), torch.Size([1, 4, 31, 31]))
    """

    def __init__(self, heads: int, grid: tuple[int, int], *, prefix: int = 0) -> None:
        super().__init__()
        self.heads, self.grid, self.prefix = heads, grid, prefix
        self.table = nn.Parameter(torch.empty(heads, 2 * grid[0] - 1, 2 * grid[1] - 1))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, grid: tuple[int, int]) -> Float[Tensor, "1 heads tokens tokens"]:
        table: Tensor = self.table
        if grid != self.grid:
            sizes = [2 * n - 1 for n in grid]
            # Of one offset, the middle of the table: interpolation would take its first entry, the farthest offset.
            for axis, own in enumerate(self.grid):
                table = table.narrow(1 + axis, own - 1, 1) if grid[axis] == 1 else table
            wide = table.to(torch.promote_types(table.dtype, torch.float32))[None]
            table = F.interpolate(wide, sizes, mode="bicubic", align_corners=True)[0].to(table.dtype)
        rows, columns = (_offsets(n, table.device) for n in grid)
        # (heads, query row, key row, query column, key column)
        pairs = table[:, rows[:, :, None, None], columns[None, None]]
        bias = pairs.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return F.pad(bias, (self.prefix, 0, self.prefix, 0))[None]

    def extra_repr(self) -> str:
        return f"heads={self.heads}, grid={self.grid}, prefix={self.prefix}"


def _offsets(size: int, device: torch.device) -> Tensor:
    """The row of the table for each offset key − query, ``(queries, keys)``."""
    place = torch.arange(size, device=device)
    return place - place[:, None] + size - 1
