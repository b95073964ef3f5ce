"""Layer normalization."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import TEXT, check_flag, check_floating, check_positive, describe


class LayerNorm(nn.Module):
    r"""Normalize the features of every token to mean 0 and variance 1, then scale and shift them.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \odot \gamma + \beta, \qquad
        \mu = \tfrac1d \sum_i x_i, \quad \sigma^2 = \tfrac1d \sum_i (x_i - \mu)^2

    Args:
        dim: d, or the shape of the last axes, which are normalized together.
        epsilon: ε.
        affine: whether there is a scale γ (``weight``, initially 1).
        bias: whether there is also a shift β (``bias``, initially 0).

    The parameters have the names of ``nn.LayerNorm``, so its state can be loaded.

    >>> from regard.layers import LayerNorm
    >>> LayerNorm(2, epsilon=0.0, affine=False)(torch.tensor([[1.0, 3.0], [0.0, 10.0]]))
    tensor([[-1.,  1.],
            [-1.,  1.]])
    """

    def __init__(
        self, dim: int | Sequence[int], *, epsilon: float = 1e-5, affine: bool = True, bias: bool = True
    ) -> None:
        check_flag("affine", affine)
        check_flag("bias", bias)
        super().__init__()
        if not isinstance(dim, int | Sequence) or isinstance(dim, TEXT):
            raise TypeError(f"dim must be a size, or sizes of at least one axis, got {describe(dim)}")
        self.shape = (dim,) if isinstance(dim, int) else tuple(dim)
        if not self.shape:
            raise ValueError(f"dim must be a size, or sizes of at least one axis, got {describe(dim)}")
        for size in self.shape:
            check_positive("dim", size)
        if isinstance(epsilon, bool) or not isinstance(epsilon, int | float):
            raise TypeError(f"epsilon must be a number of 0 or more, got {describe(epsilon)}")
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise ValueError(f"epsilon must be a finite number of 0 or more, got {epsilon}")
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(self.shape)) if affine else None
        self.bias = nn.Parameter(torch.zeros(self.shape)) if affine and bias else None

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        check_floating("x", x)
        if x.shape[-len(self.shape) :] != self.shape:
            raise ValueError(f"x has shape {tuple(x.shape)}, but its last axes must be {self.shape}")
        return F.layer_norm(x, self.shape, self.weight, self.bias, self.epsilon)

    def extra_repr(self) -> str:
        dim = self.shape[0] if len(self.shape) == 1 else self.shape
        return f"{dim}, epsilon={self.epsilon}, affine={self.weight is not None}, bias={self.bias is not None}"
