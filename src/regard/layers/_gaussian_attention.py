"""Gaussian attention as a layer: heads that learn where to look and how sharply."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import GaussianPlan, gaussian_attention, gaussian_weights, plan_for
from regard.layers._composed import composed_convolution, fits_kernel
from regard.layers._gaussian_heads import Covariance, GaussianHeads, Init
from regard.layers._grids import flat_tokens, like_input
from regard.observation import heads_are_read, observe
from regard.support.checks import check_dtype, check_flag, check_positive, check_probability, is_transformed


class GaussianAttention(nn.Module):
    r"""Multi-head attention by position alone, at the cost of a convolution.

    .. math:: \mathrm{out} = \mathrm{concat}_h(A_h V_h)\, W_o + b_o, \qquad
              A_{h,qk} = \mathrm{softmax}_k\bigl(-\alpha_h \lVert (k-q) - \Delta_h \rVert^2\bigr)

    With sharp heads on K² distinct shifts this is exactly a K × K convolution. The layer takes grids of any size.

    Args:
        dim: width of the input.
        heads: the number of heads.
        axes, covariance, init, sharpness: see :class:`GaussianHeads`.
        out_dim: width of the output, ``dim`` by default.
        head_dim: width of each head's values, ``dim / heads`` by default.
        full_width: every head reads the whole input, and only the output layer differs between heads: the form
            :math:`\sum_h A_h X W_h`, with the weights of a convolution.
        dropout: drops attention weights in training, axis by axis (the same keep probability and mean as dropping them
            one by one; the pattern is shared by the batch).
        bias: whether the linear layers have a bias.

    >>> layer = GaussianAttention(12, heads=9, full_width=True, init="grid")
    >>> layer(torch.randn(2, 8, 5, 12)).shape
    torch.Size([2, 8, 5, 12])
    >>> layer(torch.randn(2, 12, 8, 5)).shape  # channels first, in the place of a convolution
    torch.Size([2, 12, 8, 5])
    >>> layer(torch.randn(2, 40, 12), grid=(8, 5)).shape
    torch.Size([2, 40, 12])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        axes: int = 2,
        out_dim: int | None = None,
        head_dim: int | None = None,
        full_width: bool = False,
        covariance: Covariance = "isotropic",
        init: Init = "normal",
        sharpness: float | None = None,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        check_flag("full_width", full_width)
        check_flag("bias", bias)
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        if out_dim is not None:
            check_positive("out_dim", out_dim)
        if head_dim is not None:
            check_positive("head_dim", head_dim)
        check_probability("dropout", dropout)
        if full_width and head_dim not in (None, dim):
            raise ValueError(f"head_dim is {head_dim}, but with full_width every head is as wide as dim, {dim}")
        if head_dim is None:
            if not full_width and dim % heads:
                raise ValueError(f"dim {dim} is not divisible by heads {heads}; pass head_dim, or full_width=True")
            head_dim = dim if full_width else dim // heads
        check_positive("head_dim", head_dim)
        self.dim, self.heads, self.axes, self.head_dim = dim, heads, axes, head_dim
        self.out_dim, self.full_width, self.dropout = out_dim or dim, full_width, dropout
        self.positions = GaussianHeads(heads, axes=axes, covariance=covariance, init=init, sharpness=sharpness)
        self.value = None if full_width else nn.Linear(dim, heads * head_dim, bias=bias)
        self.output = nn.Linear(heads * head_dim, self.out_dim, bias=bias)
        self.plan: str | GaussianPlan = "auto"

    @property
    def center(self) -> Float[Tensor, "heads axes"]:
        """Where each head looks from the query: key − query, in (row, column) order."""
        return self.positions.center

    @property
    def sharpness(self) -> Tensor:
        return self.positions.sharpness

    def freeze_plan(
        self, grid: Sequence[int], dtype: torch.dtype | None = None, *, slack: float = 0.0, tolerance: float = 0.0
    ) -> GaussianPlan:
        """Fix the cheapest exact method for each head, for its present center and sharpness on this grid, and for values of
        this dtype or a coarser one: float32 by default, or float64 where the layer has it.

        Use it for inference, or while heads move by at most ``slack``. ``layer.plan = "auto"`` undoes it. A layer with
        ``full_width`` whose heads are taps in this plan (:func:`regard.plan_for` explains when, and what ``tolerance``
        accepts) is computed as one convolution while center and sharpness need no gradient.
        """
        self.plan = plan_for(self.center, self.sharpness, grid, dtype, slack=slack, tolerance=tolerance)
        return self.plan

    def weights(self, grid: Sequence[int]) -> Float[Tensor, "heads tokens tokens"]:
        """The map of every head on a grid, ``(heads, queries, keys)``. The forward pass never forms it."""
        return gaussian_weights(self.center, self.sharpness, grid)

    def attend(self, value: Float[Tensor, "batch _ tokens _"], grid: tuple[int, ...]) -> Tensor:
        """The outputs of the heads, ``(batch, heads, tokens, head_dim)``, from their values (a single head is shared)."""
        dropout = self.dropout if self.training else 0.0

        def mix(dropout: float) -> Tensor:
            return gaussian_attention(value, self.center, self.sharpness, grid, plan=self.plan, dropout=dropout)

        return observe(
            self,
            lambda: mix(dropout),
            lambda: self.weights(grid).unsqueeze(0),
            value=value,
            kind="gaussian",
            grid=grid,
            clean=(lambda: mix(0.0)) if dropout else None,
        )

    def forward(
        self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``(batch, *grid, dim)`` or, channels first, ``(batch, dim, *grid)``; or ``(batch, tokens, dim)`` with ``grid``. The
        output has the layout of the input.

        With ``return_weights`` also the map ``(1, heads, tokens, tokens)``, which is the same for the whole batch.
        """
        check_flag("return_weights", return_weights)
        tokens, grid = flat_tokens(x, grid, self.axes, self.dim)
        check_dtype("x", x, self.output.weight)
        shifts = None if return_weights else self._shifts(tokens, grid)
        if shifts is not None:
            out = composed_convolution(tokens, grid, shifts, self.output.weight, self.output.bias)
            return like_input(out, x, grid)
        if self.value is None:
            value = tokens.unsqueeze(1)
        else:
            value = self.value(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        mixed = self.attend(value, grid)  # (batch, heads, tokens, head_dim)
        out = like_input(self.output(mixed.transpose(1, 2).flatten(2)), x, grid)
        return (out, self.weights(grid).unsqueeze(0)) if return_weights else out

    def _shifts(self, tokens: Tensor, grid: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
        """The heads' shifts if the frozen plan makes full-width heads taps and only the output is needed, else None."""
        plan, places = self.plan, self.positions
        if not self.full_width or not isinstance(plan, GaussianPlan) or plan.shifts is None or plan.grid != grid:
            return None
        if (
            heads_are_read()
            or is_transformed()
            or (self.dropout and self.training)
            or type(self.output) is not nn.Linear
        ):
            return None
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in places.parameters()):
            return None
        plan.check_value(tokens)
        if not torch.compiler.is_compiling():
            plan.check_holds(places.center, places.sharpness)
        return plan.shifts if fits_kernel(plan.shifts) else None

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, out_dim={self.out_dim}, "
            f"full_width={self.full_width}, dropout={self.dropout}"
        )
