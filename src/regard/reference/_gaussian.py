"""Gaussian heads: attention by position alone, as an explicit matrix of queries by keys."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.reference._grid import BORDERS, all_pairs, border_source
from regard.reference._softargmax import softargmax
from regard.support.checks import check_choice, check_gaussian_heads

Padding = Sequence[tuple[int, int]]


def gaussian_scores(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads *axes_or_matrix"],
    grid: Sequence[int],
    *,
    queries: Sequence[Float[Tensor, "_"]] | None = None,
) -> Float[Tensor, "heads queries keys"]:
    r"""Scores that fall with the squared distance from where the head looks.

    .. math:: s_{qk} = -(\delta - \Delta)^\top S\, (\delta - \Delta), \qquad \delta = k - q

    Args:
        center: Δ, where the head looks from the query, in the order of the grid's axes (row, column).
        sharpness: α with S = αI, ``(heads,)``; the diagonal of S, ``(heads, axes)``; or S, ``(heads, axes, axes)``.
        grid: the size of each axis; keys are row-major.
        queries: one 1-D tensor of coordinates per axis, whose combinations in row-major order are the queries; they may
            be fractional or outside. Default: the grid's own coordinates.

    >>> gaussian_scores(torch.tensor([[1.0]]), torch.tensor([2.0]), (3,))
    tensor([[[ -2.,  -0.,  -2.],
             [ -8.,  -2.,  -0.],
             [-18.,  -8.,  -2.]]])
    """
    check_gaussian_heads(center, sharpness, grid)
    keys = [torch.arange(size) for size in grid]
    return _scores(center, sharpness, queries or keys, keys)


def gaussian_attention(
    value: Float[Tensor, "batch heads tokens width"],
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads *axes_or_matrix"],
    grid: Sequence[int],
    *,
    queries: Sequence[Float[Tensor, "_"]] | None = None,
    border: str = "native",
    padding: Padding | None = None,
) -> tuple[Float[Tensor, "batch heads queries width"], Float[Tensor, "heads queries tokens"]]:
    r"""Attention with Gaussian scores. Returns the output and the weights A, which do not depend on the values.

    .. math:: \mathrm{out} = A V, \qquad A = \mathrm{softmax}(s)\, F

    ``border="native"`` is the softmax over the keys that exist (F = I). For any other border the softmax runs over
    the padded coordinates −before … n − 1 + after of each axis, and the fold F maps the padded columns back:
    ``"zeros"`` drops them; ``"reflect"``, ``"replicate"`` and ``"circular"`` add each to the coordinate it copies.

    Args:
        value: V, tokens row-major over ``grid``.
        center, sharpness, grid, queries: as in :func:`gaussian_scores`.
        border: ``"native"``, ``"zeros"``, ``"reflect"``, ``"replicate"`` or ``"circular"``.
        padding: ``((before, after), ...)`` per axis; for any border but the native one.

    The weights are computed in float32 or better and returned in the dtype of ``value``.

    >>> value = torch.tensor([10.0, 20.0, 30.0]).reshape(1, 1, 3, 1)
    >>> center, sharpness = torch.tensor([[1.0]]), torch.tensor([200.0])  # look one to the right, sharply
    >>> gaussian_attention(value, center, sharpness, (3,))[0].flatten()
    tensor([20., 30., 30.])
    >>> gaussian_attention(value, center, sharpness, (3,), border="zeros", padding=((1, 1),))[0].flatten()
    tensor([20., 30.,  0.])
    >>> gaussian_attention(value, center, sharpness, (3,), border="circular", padding=((1, 1),))[0].flatten()
    tensor([20., 30., 10.])
    """
    check_gaussian_heads(center, sharpness, grid)
    check_border(grid, border, padding)
    padding = padding or [(0, 0)] * len(grid)
    padded = [torch.arange(-before, size + after) for size, (before, after) in zip(grid, padding, strict=True)]
    queries = queries or [torch.arange(size) for size in grid]
    weights = softargmax(_scores(center, sharpness, queries, padded))
    if border != "native":
        weights = weights @ fold(grid, padding, border).to(weights)
    weights = weights.to(value.dtype)
    return weights @ value, weights


def fold(grid: Sequence[int], padding: Padding, border: str) -> Float[Tensor, "padded_tokens tokens"]:
    """F: row i has a one in the column of the token that padded token i copies, and is zero if it copies none.

    >>> fold((2,), ((1, 1),), "circular")
    tensor([[0., 1.],
            [1., 0.],
            [0., 1.],
            [1., 0.]])
    """
    matrix = torch.ones(1, 1)
    for size, (before, after) in zip(grid, padding, strict=True):
        source, copies = border_source(torch.arange(-before, size + after), size, border)
        axis = (source[:, None] == torch.arange(size)) & copies[:, None]
        matrix = torch.kron(matrix, axis.to(matrix))
    return matrix


def _scores(center: Tensor, sharpness: Tensor, queries: Sequence[Tensor], keys: Sequence[Tensor]) -> Tensor:
    if len(queries) != len(keys):
        raise ValueError(f"queries has {len(queries)} entries but the grid has {len(keys)} axes")
    dtype = torch.promote_types(center.dtype, torch.float32)
    center, sharpness = center.to(dtype), sharpness.to(dtype)
    query, key = (all_pairs([x.to(center) for x in axes]) for axes in (queries, keys))
    distance = key[None, None, :, :] - query[None, :, None, :] - center[:, None, None, :]  # δ − Δ
    matrix = sharpness
    if sharpness.ndim == 1:
        matrix = sharpness[:, None, None] * torch.eye(center.shape[1]).to(center)
    elif sharpness.ndim == 2:
        matrix = torch.diag_embed(sharpness)
    return -torch.einsum("hqki,hij,hqkj->hqk", distance, matrix, distance)


def check_border(grid: Sequence[int], border: str, padding: Padding | None) -> None:
    """``native`` takes no padding; every other border needs a pair (before, after) for each axis."""
    check_choice("border", border, ("native", *BORDERS))
    if border == "native" and padding is not None:
        raise ValueError(f"padding must be None if border is 'native', got {padding!r}")
    if border != "native" and (padding is None or len(padding) != len(grid) or min(map(min, padding)) < 0):
        raise ValueError(f"border={border!r} needs padding ((before, after), …), a pair per axis, got {padding!r}")
