"""Relative positional attention with learned embeddings, by position alone or together with content."""

import math
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import AxisBlocks, HeadGroup, attention, kronecker, mix
from regard.layers._grids import flat_tokens, like_input
from regard.observation import observe, unobserved
from regard.support.checks import check_dtype, check_flag, check_grid, check_positive, check_probability
from regard.support.long_rows import softmax


class RelativePositionalEmbedding(nn.Module):
    r"""A learned vector for every offset between key and query, one table per axis.

    .. math:: r_\delta = \bigl[\,E^{(1)}_{\delta_1};\ E^{(2)}_{\delta_2};\ \dots\bigr], \qquad \delta = k - q

    Args:
        width: width of :math:`r_\delta`, divided equally between the axes.
        extent: the largest grid, one size per axis. Offsets run from 1 − size to size − 1.

    >>> encoding = RelativePositionalEmbedding(8, (4, 5))
    >>> encoding.pairs((2, 3)).shape                    # r for every query and key of a 2 × 3 grid
    torch.Size([6, 6, 8])
    """

    def __init__(self, width: int, extent: Sequence[int]) -> None:
        super().__init__()
        check_positive("width", width)
        self.extent = check_grid(extent, "extent")
        if width % len(self.extent):
            raise ValueError(
                f"width (position_width) {width} is not divisible by the {len(self.extent)} axes of extent {self.extent}"
            )
        self.width = width
        part = width // len(self.extent)
        self.tables = nn.ParameterList([nn.Parameter(torch.empty(2 * size - 1, part)) for size in self.extent])
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in self.tables:
            nn.init.normal_(table)

    def check(self, grid: Sequence[int]) -> None:
        check_grid(grid)
        if len(grid) != len(self.extent) or any(n > size for n, size in zip(grid, self.extent, strict=True)):
            raise ValueError(
                f"grid {tuple(grid)} does not fit into extent {self.extent}: offsets beyond it have no vector"
            )

    def axis(self, axis: int, size: int) -> Float[Tensor, "queries keys part"]:
        """The axis' part of :math:`r_\\delta` for every pair of its coordinates."""
        return self.tables[axis][self.offsets(axis, size)]

    def offsets(self, axis: int, size: int) -> Tensor:
        """The row of the table for each offset key − query, (queries, keys)."""
        place = torch.arange(size, device=self.tables[axis].device)
        return place - place[:, None] + self.extent[axis] - 1

    def pairs(self, grid: Sequence[int]) -> Float[Tensor, "queries keys width"]:
        self.check(grid)
        axes, parts = len(grid), []
        for axis, size in enumerate(grid):
            shape = [1] * (2 * axes)
            shape[axis] = shape[axes + axis] = size
            part = self.axis(axis, size)
            parts.append(part.reshape(*shape, part.shape[-1]).expand(*grid, *grid, -1))
        tokens = math.prod(grid)
        return torch.cat(parts, -1).reshape(tokens, tokens, self.width)

    def extra_repr(self) -> str:
        return f"width={self.width}, extent={self.extent}"


class RelativeAttention(nn.Module):
    r"""Attention with scores that depend on the offset between query and key.

    With content, the four terms of the relative encoding, with β = 1/√head_dim (by position alone β = 1):

    .. math:: s_{qk} = \beta\bigl(x_q^\top W_q^\top W_k x_k + x_q^\top W_q^\top \widetilde W r_\delta
              + u^\top W_k x_k + v^\top \widetilde W r_\delta\bigr)

    computed by the fused kernel, with the terms with :math:`r_\delta` as its bias. By position alone, only the last term
    remains. It is a sum over the axes, so the softmax factorizes exactly, as for a Gaussian head, and the layer costs
    O(tokens · (rows + columns)).

    Args:
        dim: width of input and output.
        heads: the number of heads.
        extent: the largest grid of any input, one size per axis.
        content: whether the scores also depend on content.
        full_width: by position alone every head may read the whole input (see :class:`GaussianAttention`).
        position_width: width of :math:`r_\delta`, ``dim`` by default.
        dropout: probability of dropping attention weights in training.
        bias: whether the linear layers have a bias.

    >>> RelativeAttention(12, heads=3, extent=(8, 8))(torch.randn(2, 5, 6, 12)).shape
    torch.Size([2, 5, 6, 12])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        extent: Sequence[int],
        *,
        content: bool = True,
        full_width: bool = False,
        position_width: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        check_flag("content", content)
        check_flag("full_width", full_width)
        check_flag("bias", bias)
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        check_probability("dropout", dropout)
        if full_width and content:
            raise ValueError(
                f"full_width is {full_width}, which reads the whole input in every head, but content is {content}: "
                "full_width needs content=False"
            )
        if not full_width and dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}")
        self.dim, self.heads, self.content, self.full_width, self.dropout = dim, heads, content, full_width, dropout
        self.head_dim = dim if full_width else dim // heads
        if position_width is not None:
            check_positive("position_width", position_width)
        self.encoding = RelativePositionalEmbedding(position_width or dim, extent)
        self.axes = len(self.encoding.extent)
        width = self.encoding.width
        if content:
            self.qkv = nn.Linear(dim, 3 * dim, bias=bias)
            self.position = nn.Linear(width, dim, bias=False)  # W̃
            self.u = nn.Parameter(torch.zeros(heads, self.head_dim))
            self.v = nn.Parameter(torch.zeros(heads, self.head_dim))
        else:
            self.value = None if full_width else nn.Linear(dim, dim, bias=bias)
            self.position = nn.Linear(width, heads, bias=False)  # v⊤W̃, one row per head
        self.output = nn.Linear(heads * self.head_dim, dim, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``(batch, *grid, dim)``, or ``(batch, tokens, dim)`` with ``grid``; optionally also the map."""
        check_flag("return_weights", return_weights)
        tokens, grid = flat_tokens(x, grid, self.axes, self.dim)
        check_dtype("x", x, self.output.weight)
        self.encoding.check(grid)
        dropout = self.dropout if self.training else 0.0
        if self.content:
            query, key, value = self.qkv(tokens).unflatten(-1, (3, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
            bias = self.position_scores(query, grid) * self.head_dim**-0.5
            attended = attention(
                query + self.u[:, None].to(query.dtype),
                key,
                value,
                bias=bias,
                dropout=dropout,
                return_weights=return_weights,
            )
            mixed, weights = attended if isinstance(attended, tuple) else (attended, None)
        else:
            if self.value is None:
                value = tokens.unsqueeze(1)
            else:
                value = self.value(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            mixed = observe(
                self,
                lambda: self.mix(value, grid, dropout),
                lambda: self.weights(grid)[None],
                value=value,
                kind="relative",
                grid=grid,
                clean=(lambda: self.mix(value, grid, 0.0)) if dropout else None,
            )
            weights = self.weights(grid)[None] if return_weights else None
        out = like_input(self.output(mixed.transpose(1, 2).flatten(2)), x, grid)
        return out if weights is None else (out, weights)

    def position_scores(self, query: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "batch heads queries keys"]:
        """(q + v)⊤ W̃ r_δ for every pair, from one product per axis and offset."""
        batch, heads, tokens, _ = query.shape
        query = query + self.v[:, None].to(query.dtype)
        parts = self.position.weight.split(self.encoding.width // self.axes, 1)
        axes, by_axis = self.axes, []
        for axis, size in enumerate(grid):
            place = torch.arange(size, device=query.device)
            extent = self.encoding.extent[axis]
            # The offsets that occur, 1 − size … size − 1: (offsets, heads, head_dim).
            table = self.encoding.tables[axis][extent - size : extent + size - 1] @ parts[axis].mT
            table = table.unflatten(-1, (heads, self.head_dim)).to(query.dtype)
            by_offset = torch.einsum("bhnd,ohd->bhno", query, table).unflatten(2, grid)
            index = (place - place[:, None] + size - 1).reshape(*[1] * (2 + axis), size, *[1] * (axes - 1 - axis), size)
            index = index.expand(batch, heads, *grid, size)
            by_key = by_offset.gather(-1, index)
            by_axis.append(by_key.reshape(batch, heads, tokens, *[1] * axis, size, *[1] * (axes - 1 - axis)))
        return reduce(torch.add, by_axis).reshape(batch, heads, tokens, tokens)

    def axis_matrices(self, grid: tuple[int, ...]) -> list[Float[Tensor, "heads _ _"]]:
        """By position alone: the softmax of each axis' scores, whose Kronecker product is the map."""
        parts = self.position.weight.split(self.encoding.width // self.axes, 1)
        # Compute one score per offset, then look it up for each pair: 2·size − 1 products instead of size².
        scores = [table @ part.mT for table, part in zip(self.encoding.tables, parts, strict=True)]
        return [
            softmax(scores[axis][self.encoding.offsets(axis, size)].permute(2, 0, 1)) for axis, size in enumerate(grid)
        ]

    def mix(self, value: Tensor, grid: tuple[int, ...], dropout: float) -> Tensor:
        matrices = [matrix.unsqueeze(1) for matrix in self.axis_matrices(grid)]
        if dropout:
            matrices = [torch.dropout(m, 1 - (1 - dropout) ** (1 / self.axes), True) for m in matrices]
        axes = tuple(AxisBlocks.whole(size, size, self.heads) for size in grid)
        return mix(value, [HeadGroup(tuple(range(self.heads)), axes)], [matrices])

    def weights(self, grid: tuple[int, ...]) -> Float[Tensor, "heads queries keys"]:
        """By position alone: the map of every head."""
        return kronecker(unobserved(self.axis_matrices, grid))

    def extra_repr(self) -> str:
        return f"dim={self.dim}, heads={self.heads}, content={self.content}, full_width={self.full_width}"
