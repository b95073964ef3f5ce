"""Attention by position that decays with distance or follows a learned table, as a layer."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import DecayProfile, TableProfile, separable_attention, separable_weights
from regard.layers._grids import flat_tokens, like_input
from regard.support.checks import check_choice, check_dtype, check_flag, check_grid, check_positive

Side = Literal["both", "before", "after"]


class SeparableAttention(nn.Module):
    r"""Multi-head attention by position alone, with scores that are sums over the axes of a grid.

    .. math:: \mathrm{out} = \mathrm{concat}_h(A_h V_h)\, W_o + b_o, \qquad
              A_{h,qk} = \mathrm{softmax}_k\Bigl(\sum_a f_{h,a}(k_a - q_a)\Bigr)

    Without ``extent`` the scores decay, :math:`f(\delta) = -\lambda|\delta|`, with a learned rate per head and axis that
    starts at ALiBi's slopes :math:`2^{-8(h+1)/H}`. Such a layer takes grids of any size, and long axes cost time linear in
    their length. With ``extent`` every offset has a learned score.

    Args:
        dim: width of input and output.
        heads: the number of heads, which divides ``dim``.
        axes: 1 for sequences, 2 for images, 3 for volumes.
        side: which keys a query sees along every axis: ``both`` sides, only keys ``before`` it, or only keys ``after`` it.
            With one axis ``before`` is causal; with two it is a quadrant, not raster order.
        extent: the largest grid of any input, one size per axis, for learned tables.
        bias: whether the linear layers have a bias.

    >>> SeparableAttention(12, heads=4, axes=1, side="before")(torch.randn(2, 9, 12)).shape
    torch.Size([2, 9, 12])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        axes: int = 2,
        side: Side = "both",
        extent: Sequence[int] | None = None,
        bias: bool = True,
    ) -> None:
        check_flag("bias", bias)
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        check_positive("axes", axes)
        check_choice("side", side, ("both", "before", "after"))
        if dim % heads:
            raise ValueError(f"dim {dim} is not divisible by heads {heads}")
        self.dim, self.heads, self.axes, self.side, self.head_dim = dim, heads, axes, side, dim // heads
        self.extent = None if extent is None else check_grid(extent, "extent")
        if self.extent is not None and len(self.extent) != axes:
            raise ValueError(f"extent {self.extent} has {len(self.extent)} sizes, but axes is {axes}")
        if self.extent is None:
            self.log_rate = nn.Parameter(torch.empty(heads, axes))
        else:
            self.tables = nn.ParameterList([nn.Parameter(torch.empty(heads, 2 * n - 1)) for n in self.extent])
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.extent is None:
            slopes = 2.0 ** (-8.0 * torch.arange(1, self.heads + 1) / self.heads)
            self.log_rate.copy_(slopes.log()[:, None].expand_as(self.log_rate))
        else:
            for table in self.tables:
                nn.init.normal_(table, std=0.5)

    def profiles(self) -> list[DecayProfile | TableProfile]:
        """One profile per axis, in float32 or better."""
        if self.extent is None:
            rate = self.log_rate.to(torch.promote_types(self.log_rate.dtype, torch.float32)).exp()
            return [DecayProfile(axis, self.side) for axis in rate.unbind(1)]
        return [TableProfile(table, self.side) for table in self.tables]

    def weights(self, grid: Sequence[int]) -> Float[Tensor, "heads tokens tokens"]:
        """Every head's map on a grid. The forward pass never forms it."""
        return separable_weights(self.profiles(), grid)

    def forward(
        self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``(batch, *grid, dim)``, or ``(batch, tokens, dim)`` with ``grid``, in and out; optionally also the map."""
        check_flag("return_weights", return_weights)
        tokens, grid = flat_tokens(x, grid, self.axes, self.dim)
        check_dtype("x", x, self.output.weight)
        value = self.value(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        mixed = separable_attention(value, self.profiles(), grid)
        out = like_input(self.output(mixed.transpose(1, 2).flatten(2)), x, grid)
        return (out, self.weights(grid)[None]) if return_weights else out

    def extra_repr(self) -> str:
        kind = "decay" if self.extent is None else f"tables up to {self.extent}"
        return f"dim={self.dim}, heads={self.heads}, axes={self.axes}, side={self.side}, {kind}"
