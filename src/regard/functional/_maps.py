"""The weight matrices of Gaussian heads: whole axis matrices, bands of them, or the full N×N map."""

import functools
import math
import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.functional._axis import Border, Targets, build_dtype, fold, matrix_of, nearest_scores
from regard.functional._call import GaussianCall
from regard.functional._mix import AxisBlocks, HeadGroup
from regard.support.checks import describe
from regard.support.long_rows import softmax
from regard.support.tensor_cache import constant


def matrices_for(
    call: GaussianCall, group: HeadGroup, dtype: torch.dtype, dropout: float = 0.0
) -> list[Float[Tensor, "_ _ _ _"]]:
    """One ``(heads, blocks, block, window)`` tensor per axis that the group mixes along.

    Dropout stays separable: each axis matrix drops entries with probability 1 − (1 − p)^(1/axes) and is rescaled, so
    that a weight of the whole map, a product of one entry per axis, is kept with probability 1 − p and has its mean.
    """
    center, sharpness = call.center, call.axis_sharpness if not call.is_full else call.sharpness
    # For a full matrix, no single key is nearest to the target, so large scores cancel for targets far outside the grid:
    # float64 keeps enough digits.
    build = torch.float64 if call.is_full else build_dtype(center, sharpness, torch.empty((), dtype=dtype))
    if group.heads != tuple(range(call.heads)):
        index = constant(group.heads, center.device)
        center, sharpness = center.index_select(0, index), sharpness.index_select(0, index)
    center, sharpness = center.to(build), sharpness.to(build)
    targets = [Targets.of(coordinate.to(build), center[:, axis]) for axis, coordinate in enumerate(call.coordinates)]
    if call.is_full:
        whole = full_matrix(targets, sharpness, call.grid, call.border, call.padding).unsqueeze(1)
        return [F.dropout(whole, dropout) if dropout else whole]
    flat = len(group.axes) == 1 and len(call.grid) > 1
    axes = [AxisBlocks.whole(o, n, 1) for o, n in zip(call.outputs, call.grid, strict=True)] if flat else group.axes
    matrices = [
        matrix_of(target, alpha, axis.inputs, call.border, padding).unsqueeze(1)
        if axis.is_whole
        else band_matrix(target, alpha, axis, padding)
        for target, alpha, axis, padding in zip(targets, sharpness.unbind(-1), axes, call.padding, strict=True)
    ]
    if dropout:
        matrices = [F.dropout(matrix, 1 - (1 - dropout) ** (1 / len(matrices))) for matrix in matrices]
    if not flat:
        return matrices
    return [kronecker([matrix[:, 0] for matrix in matrices]).unsqueeze(1)]


def kronecker(matrices: Sequence[Float[Tensor, "heads _ _"]]) -> Float[Tensor, "heads outputs inputs"]:
    """Each head's N×N map, the Kronecker product of its axis matrices (tokens in row-major order)."""
    wanted = "matrices must be (heads, outputs, inputs) for each axis, with as many heads"
    if not isinstance(matrices, Sequence) or not all(map(torch.is_tensor, matrices)):
        raise TypeError(f"{wanted}, got {describe(matrices)}")
    if not matrices or any(matrix.ndim != 3 or matrix.shape[0] != matrices[0].shape[0] for matrix in matrices):
        raise ValueError(f"{wanted}, got [{', '.join(map(describe, matrices))}]")
    whole, *rest = matrices
    for matrix in rest:
        whole = (whole[:, :, None, :, None] * matrix[:, None, :, None, :]).flatten(3, 4).flatten(1, 2)
    return whole


def band_matrix(
    targets: Targets, sharpness: Float[Tensor, " heads"], axis: AxisBlocks, padding: tuple[int, int] = (0, 0)
) -> Float[Tensor, "heads matrices block window"]:
    """Only the blocks of an axis matrix whose weights are not negligible, and of equal ones only the first."""
    own = axis.own_blocks
    blocked = targets.blocked(len(axis.numbers), axis.block)
    if len(own) < len(axis.numbers):
        index = constant(own, sharpness.device)
        blocked = Targets(*(part.index_select(1, index) for part in blocked))
    device, dtype = sharpness.device, sharpness.dtype
    before, after = padding
    low, high = -before, axis.inputs - 1 + after
    starts = constant(tuple(tuple(each[k] for k in own) for each in axis.starts), device, dtype)
    columns = starts.unsqueeze(-1) + torch.arange(axis.window, device=device, dtype=dtype)
    scores = nearest_scores(blocked, sharpness, columns.unsqueeze(2), low, high)
    if not (before or after):
        return softmax(scores)
    # Padding has no value but takes part in the softmax, so its terms are added to the normalizer.
    reach = torch.arange(-axis.window, axis.window + 1, device=device, dtype=dtype)
    around = blocked.whole.clamp(low, high).unsqueeze(-1) + reach
    everything = nearest_scores(blocked, sharpness, around, low, high)
    everything = everything.masked_fill((around < low) | (around > high), -math.inf)
    return scores.exp() / everything.exp().sum(-1, keepdim=True)


def full_matrix(
    targets: Sequence[Targets],
    sharpness: Float[Tensor, "heads axes axes"],
    grid: tuple[int, ...],
    border: Border,
    padding: Sequence[tuple[int, int]],
) -> Float[Tensor, "heads outputs inputs"]:
    """The N×N map of heads with a full sharpness matrix S. Scores are relative to that of the key nearest to the target."""
    axes = len(grid)
    steps, shifts = [], []
    for axis, (target, n, (before, after)) in enumerate(zip(targets, grid, padding, strict=True)):
        coordinate = torch.arange(-before, n + after, device=sharpness.device, dtype=sharpness.dtype)
        nearest = target.whole.clamp(-before, n - 1 + after)
        step = coordinate - nearest.unsqueeze(-1)  # (heads, outputs, inputs)
        steps.append(
            step.reshape(step.shape[0], *_spread(step.shape[1], axis, axes), *_spread(step.shape[2], axis, axes))
        )
        shift = nearest - target.whole - target.fraction
        shifts.append(shift.reshape(shift.shape[0], *_spread(shift.shape[1], axis, axes), *[1] * axes))
    # (m + e)ᵀS(m + e) − eᵀSe = Σ_ab S_ab (m_a (m_b + e_b) + e_a m_b), with m = key − nearest key and e = nearest key −
    # target. Without the constant eᵀSe, no large terms cancel.
    alpha = sharpness.reshape(*sharpness.shape, *[1] * (2 * axes))
    pairs = [(a, b) for a in range(axes) for b in range(axes)]
    terms = [alpha[:, a, b] * (steps[a] * (steps[b] + shifts[b]) + shifts[a] * steps[b]) for a, b in pairs]
    weights = softmax((-functools.reduce(operator.add, terms)).flatten(1 + axes))
    padded = [n + before + after for n, (before, after) in zip(grid, padding, strict=True)]
    weights = weights.unflatten(-1, padded)
    for axis, (n, (before, _)) in enumerate(zip(grid, padding, strict=True)):
        moved = weights.movedim(1 + axes + axis, -1)
        lead = moved.shape[:-1]
        folded = fold(moved.reshape(lead[0], -1, moved.shape[-1]), n, border, before)
        weights = folded.reshape(*lead, n).movedim(-1, 1 + axes + axis)
    return weights.flatten(1 + axes).flatten(1, axes)


def _spread(size: int, axis: int, axes: int) -> list[int]:
    return [1] * axis + [size] + [1] * (axes - 1 - axis)
