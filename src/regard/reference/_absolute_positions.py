"""Absolute positions: one vector for each position in the sequence."""

import torch
from jaxtyping import Float
from torch import Tensor


def sinusoidal_positions(
    length: int, width: int, base: float = 10000.0, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "length width"]:
    r"""Sines and cosines of geometrically falling frequencies.

    .. math:: P_{t, 2k} = \sin(\omega_k t), \qquad P_{t, 2k+1} = \cos(\omega_k t), \qquad
        \omega_k = \mathrm{base}^{-2k/\mathrm{width}}

    The wavelengths :math:`2\pi/\omega_k` run from :math:`2\pi` up to, but not reaching, :math:`2\pi\,\mathrm{base}`.
    An odd width leaves out the last cosine.

    >>> sinusoidal_positions(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    table = torch.empty(length, width, dtype=torch.float64)
    t = torch.arange(length, dtype=torch.float64)
    for column in range(width):
        k = column // 2
        omega = base ** (-2 * k / width)
        table[:, column] = torch.sin(omega * t) if column % 2 == 0 else torch.cos(omega * t)
    return table.to(dtype or torch.get_default_dtype())


def one_hot_positions(
    length: int, width: int | None = None, *, dtype: torch.dtype | None = None
) -> Float[Tensor, "length width_"]:
    r"""Position t is the t-th unit vector. The width is ``length`` by default, and at least that.

    .. math:: P_{t, k} = 1 \text{ where } k = t, \text{ else } 0

    >>> one_hot_positions(2, 3)
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    width = length if width is None else width
    if width < length:
        raise ValueError(f"width is {width}, but {length} positions need a width of {length} or more")
    t, k = torch.arange(length)[:, None], torch.arange(width)[None, :]
    return (t == k).to(dtype or torch.get_default_dtype())


def learned_positions(table: Float[Tensor, "longest width"], length: int) -> Float[Tensor, "length width"]:
    r"""The first rows of a table whose entries are learned.

    .. math:: P_{t} = \mathrm{table}_t

    >>> learned_positions(torch.tensor([[5.0], [6.0], [7.0]]), 2)
    tensor([[5.],
            [6.]])
    """
    if length > table.shape[0]:
        raise ValueError(f"length is {length}, but table of shape {tuple(table.shape)} has {table.shape[0]} positions")
    return table[:length]
