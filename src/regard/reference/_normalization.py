"""Layer normalization: the features of each token, centered and scaled to variance 1."""

import torch
from jaxtyping import Float
from torch import Tensor


def layer_norm(
    x: Float[Tensor, "*any width"],
    weight: Float[Tensor, "width"] | None = None,
    bias: Float[Tensor, "width"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*any width"]:
    r"""Normalize along the last axis.

    .. math:: y = \frac{x - \mu}{\sqrt{\sigma^2 + \varepsilon}} \odot \mathrm{weight} + \mathrm{bias}, \qquad
        \mu = \frac1d \sum_i x_i, \quad \sigma^2 = \frac1d \sum_i (x_i - \mu)^2

    >>> layer_norm(torch.tensor([1.0, 3.0]), eps=0.0)
    tensor([-1.,  1.])
    """
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).square().mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(variance + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
