"""Gaussian heads: attention by place alone, as an explicit matrix of queries by keys."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from regard.reference._grid import BORDERS, all_pairs, border_source, check_grid
from regard.reference._softargmax import softargmax
from regard.support.checks import check_choice, check_floating, check_ndim, describe

Padding = Sequence[tuple[int, int]]


def gaussian_scores(
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads *axes_or_matrix"],
    grid: Sequence[int],
    *,
    queries: Sequence[Float[Tensor, "_"]] | None = None,
) -> Float[Tensor, "heads queries keys"]:
    r"""A bump around the place a head looks at, seen from the query.

    .. math:: s_{qk} = -(\delta - \Delta)^\top S\, (\delta - \Delta), \qquad \delta = k - q

    Args:
        center: Δ, where the head looks from the query, in the order of the grid's axes (row, column).
        sharpness: α with S = αI, ``(heads,)``; the diagonal of S, ``(heads, axes)``; or S, ``(heads, axes, axes)``.
        grid: the size of each axis; keys are row-major.
        queries: one 1-D tensor of coordinates per axis, row-major combinations of which are the queries; they may be
            fractions or lie outside. Default: the grid itself.

    >>> gaussian_scores(torch.tensor([[1.0]]), torch.tensor([2.0]), (3,))
    tensor([[[ -2.,  -0.,  -2.],
             [ -8.,  -2.,  -0.],
             [-18.,  -8.,  -2.]]])
    """
    check_gaussian(center, sharpness, grid, queries)
    return _scores(center, sharpness, [torch.arange(size) for size in grid], queries or _places(grid))


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
    r"""Attention with Gaussian scores. Returns the output and the weights A, which no value has a say in.

    .. math:: \mathrm{out} = A V, \qquad A = \mathrm{softmax}(s)\, F

    ``border="native"`` is the softmax over the keys that exist (F = I). For any other border the softmax runs over
    the padded coordinates −before … n − 1 + after of each axis, and the fold F brings the padded columns home:
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
    check_gaussian(center, sharpness, grid, queries)
    check_ndim("value", value, "batch heads tokens width")
    tokens = 1
    for size in grid:
        tokens *= size
    if value.shape[1:3] != (len(center), tokens):
        raise ValueError(
            f"value has shape {tuple(value.shape)} but must be (batch, heads, tokens, width) with heads = "
            f"{len(center)}, as in center, and tokens = {tokens}, as in grid {tuple(grid)}"
        )
    check_padding(border, padding, grid)

    padding = padding or [(0, 0)] * len(grid)
    padded = [torch.arange(-before, size + after) for size, (before, after) in zip(grid, padding, strict=True)]
    weights = softargmax(_scores(center, sharpness, padded, queries or _places(grid)))
    if border != "native":
        weights = weights @ fold(grid, padding, border).to(weights)
    weights = weights.to(value.dtype)
    return weights @ value, weights


def fold(grid: Sequence[int], padding: Padding, border: str) -> Float[Tensor, "padded_tokens tokens"]:
    """F: a one for the token that each padded token copies, in that token's column; a row of zeros if it copies none.

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


def _scores(center: Tensor, sharpness: Tensor, keys: Sequence[Tensor], queries: Sequence[Tensor]) -> Tensor:
    dtype = torch.promote_types(center.dtype, torch.float32)
    center, sharpness = center.to(dtype), sharpness.to(dtype)
    key, query = (all_pairs([x.to(center) for x in axes]) for axes in (keys, queries))
    distance = key[None, None, :, :] - query[None, :, None, :] - center[:, None, None, :]  # δ − Δ
    matrix = sharpness
    if sharpness.ndim == 1:
        matrix = sharpness[:, None, None] * torch.eye(center.shape[1]).to(center)
    elif sharpness.ndim == 2:
        matrix = torch.diag_embed(sharpness)
    return -torch.einsum("hqki,hij,hqkj->hqk", distance, matrix, distance)


def _places(grid: Sequence[int]) -> list[Tensor]:
    return [torch.arange(size) for size in grid]


def check_gaussian(center: Any, sharpness: Any, grid: Any, queries: Any) -> None:
    """Refuse what does not fit together, saying which argument and what would fit."""
    check_ndim("center", center, "heads axes")
    check_grid(grid)
    heads, axes = center.shape
    if axes != len(grid):
        raise ValueError(f"center has shape {tuple(center.shape)} but grid {tuple(grid)} has {len(grid)} axes")
    check_floating("sharpness", sharpness)
    fitting = ((heads,), (heads, axes), (heads, axes, axes))
    if tuple(sharpness.shape) not in fitting:
        raise ValueError(
            f"sharpness has shape {tuple(sharpness.shape)} but center of shape {tuple(center.shape)} needs "
            f"{fitting[0]}, {fitting[1]} or {fitting[2]}"
        )
    if sharpness.dtype != center.dtype:
        raise TypeError(f"sharpness is {sharpness.dtype} but center is {center.dtype}")
    if queries is None:
        return
    if not isinstance(queries, Sequence) or len(queries) != len(grid):
        raise ValueError(
            f"queries must be {len(grid)} 1-D tensors, one per axis of grid {tuple(grid)}, got {describe(queries)}"
        )
    for axis, coordinates in enumerate(queries):
        if not isinstance(coordinates, Tensor) or coordinates.ndim != 1:
            raise ValueError(f"queries[{axis}] must be a 1-D tensor of coordinates, got {describe(coordinates)}")


def check_padding(border: Any, padding: Any, grid: Sequence[int]) -> None:
    """``native`` has no padding, any other border has a pair of whole numbers for each axis."""
    check_choice("border", border, ("native", *BORDERS))
    if border == "native":
        if padding is not None:
            raise ValueError(f"padding must be None where border is 'native', got {padding!r}")
        return
    if not isinstance(padding, Sequence) or len(padding) != len(grid):
        raise ValueError(
            f"border={border!r} needs padding ((before, after), ...), a pair for each of the {len(grid)} axes of grid "
            f"{tuple(grid)}, got {padding!r}"
        )
    for pair in padding:
        if (
            not isinstance(pair, Sequence)
            or len(pair) != 2
            or any(isinstance(p, bool) or not isinstance(p, int) or p < 0 for p in pair)
        ):
            raise ValueError(f"padding must hold pairs (before, after) of whole numbers of 0 or more, got {pair!r}")
