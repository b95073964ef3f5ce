"""Moments of the scores' gradient, from which the gradients of center and sharpness follow."""

import math
from contextlib import suppress

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.functional import kernels
from regard.support.long_rows import softmax

# The most bytes that the intermediates of one chunk of queries may take.
CHUNK_BYTES = {"cpu": 1 << 25, "cuda": 1 << 30}

Moments = tuple[Float[Tensor, "heads axes"], Float[Tensor, "heads axes axes"]]


def coordinates(grid: tuple[int, ...], like: Tensor) -> Float[Tensor, "tokens axes"]:
    """Integer coordinates of all tokens in row-major order, counted from the middle of the grid."""
    sides = [torch.arange(n, device=like.device, dtype=like.dtype) - n // 2 for n in grid]
    return torch.stack([x.flatten() for x in torch.meshgrid(*sides, indexing="ij")], -1)


def place_moments(
    grad: Tensor, out: Tensor, query: Tensor, key: Tensor, value: Tensor, center: Tensor, matrix: Tensor,
    keep: Tensor | None, lse: Tensor | None, grid: tuple[int, ...], prefix: int, beta: float, causal: bool,
    heads: kernels.Heads | None = None, longest: Tensor | None = None,
) -> Moments:  # fmt: skip
    r"""Σ ds (δ − Δ) and Σ ds (δ − Δ)(δ − Δ)ᵀ over all pairs with a position; ds is the gradient of a pair's score.

    A fused kernel rounds ds to its dtype, so that a row of ds no longer sums to zero, and then multiplies it by absolute
    coordinates: the result is mostly rounding error. Here ds is recomputed in float32 and multiplied by distances.
    """
    fits = kernels.usable_for_moments(value, grid) and query.shape[3] <= kernels.WIDEST
    if fits and not torch.is_grad_enabled():
        found = kernels.three_axes(center, matrix, grid) if heads is None else heads
        with suppress(MemoryError):
            return kernels.place_moments(
                grad, out, (query, key, value), lse, found, keep, prefix, beta, causal, longest
            )  # fmt: skip
    return plain_moments(grad, query, key, value, center, matrix, keep, grid, prefix, beta, causal)


def plain_moments(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, center: Tensor, matrix: Tensor, keep: Tensor | None,
    grid: tuple[int, ...], prefix: int, beta: float, causal: bool,
) -> Moments:  # fmt: skip
    """The same by plain operations, in chunks of queries. Terms in a distance are polynomials of the key's coordinates, so
    they are products with a few columns (1, coordinates, their squares), which float64 computes accurately enough."""
    build = torch.promote_types(query.dtype, torch.float32)
    query, key, value, grad = (x.to(build) for x in (query, key, value, grad))
    place, tokens = coordinates(grid, center), prefix + math.prod(grid)
    squares = (place[:, :, None] * place[:, None, :]).flatten(1)
    powers = torch.cat([torch.ones_like(place[:, :1]), place, squares], -1)
    axes, first, second = place.shape[1], torch.zeros_like(center), torch.zeros_like(matrix)
    row = 8 * query.shape[0] * query.shape[1] * tokens * query.element_size()
    size = max(1, CHUNK_BYTES.get(query.device.type, CHUNK_BYTES["cuda"]) // max(row, 1))
    for start in range(prefix, tokens, size):
        rows = slice(start, min(start + size, tokens))
        targets = place[start - prefix : start - prefix + size] + center[:, None, :]  # (heads, rows, axes)
        both = targets @ (matrix + matrix.mT)
        own = (both * targets).sum(-1, keepdim=True) / 2
        bias = torch.cat([-own, both, -matrix.flatten(1)[:, None].expand(-1, len(targets[0]), -1)], -1) @ powers.mT
        scores = beta * (query[:, :, rows] @ key.mT) + F.pad(bias, (prefix, 0)).to(build)
        seen = _seen(keep, rows, tokens, causal, query.device)
        if seen is not None:
            scores = scores.masked_fill(~seen, torch.finfo(build).min)
        weights = softmax(scores)
        if seen is not None:
            weights = weights.masked_fill(~seen, 0.0)  # also zero in rows that see no key
        by_weights = grad[:, :, rows] @ value.mT
        by_scores = weights * (by_weights - (weights * by_weights).sum(-1, keepdim=True))
        sums = by_scores[..., prefix:].sum(0).to(powers.dtype) @ powers
        whole, linear, square = sums[..., :1], sums[..., 1 : 1 + axes], sums[..., 1 + axes :]
        away = linear - whole * targets
        first = first + away.sum(1)
        second = second + square.sum(1).unflatten(-1, (axes, axes)) - linear.mT @ targets - targets.mT @ away
    return first, second


def _seen(
    keep: Tensor | None, rows: slice, tokens: int, causal: bool, device: torch.device
) -> Bool[Tensor, "..."] | None:
    seen = None if keep is None else keep[:, None, None, :]
    if causal:
        place = torch.arange(tokens, device=device)
        before = place <= place[rows, None]
        seen = before if seen is None else seen & before
    return seen
