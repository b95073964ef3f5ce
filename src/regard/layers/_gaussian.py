"""Gaussian attention as a layer: heads that learn where to look and how sharply."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.functional import GaussianPlan, attend, gaussian_weights, plan_for, resolve
from regard.layers._grids import flat_tokens, like_input
from regard.observation import observe
from regard.support.checks import check_choice, check_dtype, check_positive, check_probability, describe

Covariance = Literal["isotropic", "diagonal", "full"]
Init = Literal["normal", "grid"]


class GaussianHeads(nn.Module):
    r"""Where heads look and how sharply: a learned center and sharpness per head.

    The sharpness is kept positive by construction: isotropic and diagonal heads learn :math:`\log\alpha`, full ones a
    root R with :math:`S = R R^\top`.

    Args:
        heads: how many.
        axes: 1 for sequences, 2 for images, 3 for volumes.
        covariance: ``isotropic`` (one α per head), ``diagonal`` (one per axis) or ``full`` (a matrix S).
        init: ``normal`` draws centers with standard deviation 2; ``grid`` puts k^axes heads on a k × k grid of shifts, so
            that the layer starts as a convolution with a k × k kernel.
        sharpness: the α to start from; by default 0.5 for ``normal`` and 5 for ``grid``.

    >>> GaussianHeads(9, init="grid").center.detach()[:3]
    tensor([[-1., -1.],
            [-1.,  0.],
            [-1.,  1.]])
    """

    def __init__(
        self,
        heads: int,
        *,
        axes: int = 2,
        covariance: Covariance = "isotropic",
        init: Init = "normal",
        sharpness: float | None = None,
    ) -> None:
        super().__init__()
        check_positive("heads", heads)
        check_positive("axes", axes)
        check_choice("covariance", covariance, ("isotropic", "diagonal", "full"))
        check_choice("init", init, ("normal", "grid"))
        if sharpness is not None and (not isinstance(sharpness, int | float) or not 0 < sharpness < math.inf):
            raise ValueError(f"sharpness must be a positive number, got {describe(sharpness)}")
        self.heads, self.axes, self.covariance, self.init = heads, axes, covariance, init
        self.initial_sharpness = sharpness if sharpness is not None else (0.5 if init == "normal" else 5.0)
        self.center = nn.Parameter(torch.empty(heads, axes))
        if covariance == "full":
            self.root = nn.Parameter(torch.empty(heads, axes, axes))
        else:
            self.log_sharpness = nn.Parameter(torch.empty((heads,) if covariance == "isotropic" else (heads, axes)))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.init == "grid":
            self.center.copy_(shift_grid(self.heads, self.axes))
        else:
            self.center.normal_(0.0, 2.0)
        if self.covariance == "full":
            self.root.copy_(math.sqrt(self.initial_sharpness) * torch.eye(self.axes).expand_as(self.root))
        else:
            self.log_sharpness.fill_(math.log(self.initial_sharpness))

    @property
    def sharpness(self) -> Tensor:
        """α ``(heads,)`` or ``(heads, axes)``, or the matrices S ``(heads, axes, axes)``; in float32 or better.

        Products of the root are written out: autocast would lower a matrix product to half precision, and S would no
        longer be positive semi-definite.
        """
        if self.covariance != "full":
            return self.log_sharpness.to(torch.promote_types(self.log_sharpness.dtype, torch.float32)).exp()
        root = self.root.to(torch.promote_types(self.root.dtype, torch.float32))
        return (root.unsqueeze(-2) * root.unsqueeze(-3)).sum(-1)

    @torch.no_grad()
    def set(self, center: Tensor, sharpness: Tensor) -> None:
        """Put the heads where you want them. ``sharpness`` is positive and has the shape of :attr:`sharpness`."""
        current = self.sharpness
        if tuple(center.shape) != tuple(self.center.shape) or tuple(sharpness.shape) != tuple(current.shape):
            raise ValueError(
                f"center and sharpness must have shapes {tuple(self.center.shape)} and {tuple(current.shape)}, got "
                f"{describe(center)} and {describe(sharpness)}"
            )
        self.center.copy_(center)
        if self.covariance == "full":
            values, vectors = torch.linalg.eigh(sharpness.double())
            if bool((values < -1e-6 * values.abs().amax()).any()):
                raise ValueError("sharpness must be positive semi-definite matrices")
            self.root.copy_(vectors @ torch.diag_embed(values.clamp_min(0).sqrt()))
        else:
            if not bool((sharpness > 0).all()):
                raise ValueError(f"sharpness must be positive, got values down to {sharpness.min().item():g}")
            self.log_sharpness.copy_(sharpness.log())

    def extra_repr(self) -> str:
        return f"heads={self.heads}, axes={self.axes}, covariance={self.covariance}, init={self.init}"


def shift_grid(heads: int, axes: int) -> Float[Tensor, "heads axes"]:
    """All shifts of a k^axes kernel around its middle, in the order of the kernel's taps.

    >>> shift_grid(4, 2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    size = round(heads ** (1 / axes))
    if size**axes != heads:
        raise ValueError(
            f"init 'grid' puts heads on a grid of k^{axes} shifts, and heads={heads} is no such number; "
            f"{size**axes} would be"
        )
    steps = torch.arange(size, dtype=torch.get_default_dtype()) - (size - 1) // 2
    return torch.stack(torch.meshgrid(*[steps] * axes, indexing="ij"), -1).reshape(heads, axes)


class GaussianAttention(nn.Module):
    r"""Multi-head attention by position alone, at the price of a convolution.

    .. math:: \mathrm{out} = \mathrm{concat}_h(A_h V_h)\, W_o + b_o, \qquad
              A_{h,qk} = \mathrm{softmax}_k\bigl(-\alpha_h \lVert (k-q) - \Delta_h \rVert^2\bigr)

    With sharp heads on K² distinct shifts this is exactly a K × K convolution. No grid is fixed: any size at call time.

    Args:
        dim: width of the input.
        heads: the number of heads.
        axes, covariance, init, sharpness: see :class:`GaussianHeads`.
        out_dim: width of the output, ``dim`` by default.
        head_dim: width of each head's values, ``dim / heads`` by default.
        full_width: every head reads the whole input, and the output layer alone tells the heads apart: the
            :math:`\sum_h A_h X W_h` form, with the weights of a convolution.
        dropout: drops attention weights in training, axis by axis (the same keep probability and mean as dropping them
            one by one; the pattern is shared by the batch).
        bias: whether the linear layers have one.

    >>> layer = GaussianAttention(12, heads=9, full_width=True, init="grid")
    >>> layer(torch.randn(2, 8, 5, 12)).shape
    torch.Size([2, 8, 5, 12])
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
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        if out_dim is not None:
            check_positive("out_dim", out_dim)
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
        self, grid: Sequence[int], dtype: torch.dtype = torch.float32, *, slack: float = 0.0
    ) -> GaussianPlan:
        """From now on compute each head the cheapest exact way for its present center and sharpness, on this grid.

        For inference, or while heads move by at most ``slack``; ``layer.plan = "auto"`` goes back.
        """
        self.plan = plan_for(self.center, self.sharpness, grid, dtype, slack=slack)
        return self.plan

    def weights(self, grid: Sequence[int]) -> Float[Tensor, "heads tokens tokens"]:
        """Every head's map on a grid, ``(heads, queries, keys)``. The forward pass never forms it."""
        return gaussian_weights(self.center, self.sharpness, grid)

    def attend(self, value: Float[Tensor, "batch _ tokens _"], grid: tuple[int, ...]) -> Tensor:
        """Heads' outputs ``(batch, heads, tokens, head_dim)`` from their values (one head is shared by all)."""
        call = resolve(self.center, self.sharpness, grid, None, "native", None)
        out = attend(value, call, self.plan, self.dropout if self.training else 0.0)
        return observe(self, out, lambda: self.weights(grid).unsqueeze(0), value=value, kind="gaussian", grid=grid)

    def forward(
        self, x: Float[Tensor, "batch *tokens dim"], grid: Sequence[int] | None = None, *, return_weights: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """``(batch, *grid, dim)``, or ``(batch, tokens, dim)`` with ``grid``, in and out.

        With ``return_weights`` also the map ``(1, heads, tokens, tokens)``, which is the same for every item.
        """
        tokens, grid = flat_tokens(x, grid, self.axes, self.dim)
        check_dtype("x", x, self.output.weight)
        if self.value is None:
            value = tokens.unsqueeze(1)
        else:
            value = self.value(tokens).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        mixed = self.attend(value, grid)  # (batch, heads, tokens, head_dim)
        out = like_input(self.output(mixed.transpose(1, 2).flatten(2)), x, grid)
        return (out, self.weights(grid).unsqueeze(0)) if return_weights else out

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}, out_dim={self.out_dim}, "
            f"full_width={self.full_width}, dropout={self.dropout}"
        )
