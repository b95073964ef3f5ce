"""The maximum-likelihood Gaussian head, by Newton's method. The likelihood is concave, so the optimum is unique.

With d = key − query, the log-weight of a key is η·d − α‖d‖² − log Z(query), η = 2αΔ. So the likelihood needs only the
means of d and ‖d‖² under the maps, and Z factorizes over the axes.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

# A sharpness of 30 gives a neighbor the weight e⁻³⁰: a shift. A sharpness of 1e-4 / n² is uniform on an axis of n tokens.
LARGEST, SMALLEST = 30.0, 1e-4
# For a head that always looks at one border, the best center is infinitely far away; we stop at this many grid sizes.
REACH = 3.0


class _Bounds(NamedTuple):
    """Centers are at most ``reach`` away along each axis, and the sharpness is at least ``least``."""

    reach: Float[Tensor, " axes"]
    least: float


@dataclass(frozen=True)
class Fitted:
    center: Float[Tensor, "heads axes"]
    sharpness: Float[Tensor, " heads"]
    fit: Float[Tensor, " heads"]


def fit_gaussians(
    local: Float[Tensor, "batch heads tokens tokens"], grid: tuple[int, ...], causal: bool = False
) -> Fitted:
    """
    Args:
        local: float64 maps over the grid; rows sum to 1 (or to 0, then they do not count).
        grid: the size of each axis.
        causal: queries see keys up to their own position; one axis.
    """
    moments = _Moments(local, grid, causal)
    axes, heads = len(grid), local.shape[1]
    reach = REACH * torch.tensor(grid, dtype=local.dtype, device=local.device)
    bounds = _Bounds(reach, SMALLEST / max(grid) ** 2)
    alpha = (0.5 * axes / moments.variance.clamp_min(0.05)).clamp(bounds.least, LARGEST)
    theta = torch.cat([2 * alpha[:, None] * moments.mean, alpha[:, None]], -1)
    value, gradient, hessian = moments.likelihood(theta)
    active = torch.ones(heads, dtype=torch.bool, device=local.device)
    for _ in range(100):
        step = _newton_step(theta, gradient, hessian, bounds)
        scale = torch.ones(heads, 1, dtype=theta.dtype, device=theta.device)
        for _ in range(40):  # halve until the likelihood grows, head by head
            trial = _inside(theta + scale * step, bounds)
            trial_value, trial_gradient, trial_hessian = moments.likelihood(trial)
            worse = active & (trial_value < value)
            if not bool(worse.any()):
                break
            scale = torch.where(worse[:, None], scale / 2, scale)
        better = active & (trial_value >= value)
        gain = torch.where(better, trial_value - value, 0.0)
        theta = torch.where(better[:, None], trial, theta)
        value = torch.where(better, trial_value, value)
        gradient = torch.where(better[:, None], trial_gradient, gradient)
        hessian = torch.where(better[:, None, None], trial_hessian, hessian)
        active = active & (gain > 1e-13)
        if not bool(active.any()):
            break
    # Many Gaussians fit a sharp causal head that hardly sees past its center equally well: take the one where it looks.
    plain = torch.cat([2 * LARGEST * moments.mean.round(), torch.full_like(theta[:, -1:], LARGEST)], -1)
    plain_value, _, _ = moments.likelihood(plain)
    as_good = plain_value >= value - 1e-12
    theta, value = torch.where(as_good[:, None], plain, theta), torch.where(as_good, plain_value, value)
    known, gained = moments.uniform - moments.entropy, moments.uniform + value
    fit = torch.where(known > 1e-9, gained / known.clamp_min(1e-9), 1.0)
    return Fitted(theta[:, :-1] / (2 * theta[:, -1:]), theta[:, -1], fit.clamp(max=1.0))


class _Moments:
    """The sufficient statistics of the maps for the likelihood."""

    def __init__(self, local: Tensor, grid: tuple[int, ...], causal: bool) -> None:
        self.causal = causal
        count = (local.sum(-1) > 0).sum((0, 2)).clamp_min(1)  # rows that attend to something
        places = [torch.arange(n, dtype=local.dtype, device=local.device) for n in grid]
        means, squares, self.rows = [], [], []
        for axis, place in enumerate(places):
            # Attention between the positions of one axis, summed over the other axes: (heads, n, n).
            joint = local.sum(0).unflatten(-1, grid).unflatten(1, grid)
            keep = {1 + axis, 1 + len(grid) + axis}
            others = [i for i in range(1, joint.ndim) if i not in keep]
            pair = joint.sum(others) if others else joint
            offset = place[None, :] - place[:, None]
            means.append((pair * offset).sum((-2, -1)) / count)
            squares.append((pair * offset**2).sum((-2, -1)) / count)
            self.rows.append(pair.sum(-1) / count[:, None])  # the distribution of the queries along this axis
        self.mean = torch.stack(means, -1)
        self.square = torch.stack(squares, -1).sum(-1)
        self.variance = self.square - (self.mean**2).sum(-1)
        self.offsets = [place[None, :] - place[:, None] for place in places]
        self.entropy = torch.special.entr(local).sum((0, 2, 3)) / count
        self.uniform = torch.full_like(self.entropy, math.log(math.prod(grid)))
        if causal:
            self.uniform = (self.rows[0] * (places[0] + 1).log()).sum(-1)

    def likelihood(self, theta: Float[Tensor, "heads parameters"]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean log-likelihood per row, its gradient and its Hessian in (η, α), for each head."""
        heads, count = theta.shape
        alpha = theta[:, -1]
        value = (theta[:, :-1] * self.mean).sum(-1) - alpha * self.square
        gradient = torch.cat([self.mean, -self.square[:, None]], -1)
        hessian = theta.new_zeros(heads, count, count)
        for axis, (offset, rows) in enumerate(zip(self.offsets, self.rows, strict=True)):
            scores = theta[:, axis, None, None] * offset - alpha[:, None, None] * offset**2
            if self.causal:
                scores = scores.masked_fill(offset > 0, -math.inf)
            total = scores.logsumexp(-1)
            weights = (scores - total[..., None]).exp()
            features = torch.stack([offset, -(offset**2)])  # of η and of α
            means = torch.einsum("hqk,fqk->hqf", weights, features)
            second = torch.einsum("hqk,fqk,gqk->hqfg", weights, features, features)
            covariance = second - means[..., None] * means[..., None, :]
            value = value - (rows * total).sum(-1)
            place = [axis, count - 1]
            gradient[:, place] -= torch.einsum("hq,hqf->hf", rows, means)
            hessian[:, torch.tensor(place)[:, None], torch.tensor(place)] -= torch.einsum(
                "hq,hqfg->hfg", rows, covariance
            )
        return value, gradient, hessian


def _newton_step(theta: Tensor, gradient: Tensor, hessian: Tensor, bounds: _Bounds) -> Tensor:
    """The Newton step −H⁻¹g, projected where it would leave the bounds."""
    count = theta.shape[1]
    eta, alpha = theta[:, :-1], theta[:, -1]
    farthest = 2 * alpha[:, None] * bounds.reach
    # Steps that would leave the bounds are halved, so a center comes near its bound without ever reaching it.
    tied = (eta.abs() >= farthest * (1 - 1e-4)) & (eta * gradient[:, :-1] > 0)
    # Search directions: each axis, and α; a center at its bound moves only with α.
    eye = torch.eye(count, dtype=theta.dtype, device=theta.device)
    free = torch.cat([~tied, torch.ones_like(tied[:, :1])], -1)
    basis = eye * free[:, None, :]
    basis[:, :-1, -1] = torch.where(tied, eta.sign() * 2 * bounds.reach, 0.0)
    gradient = torch.einsum("hpf,hp->hf", basis, gradient)
    slope = gradient[:, -1]
    held = ((alpha <= bounds.least) & (slope < 0)) | ((alpha >= LARGEST) & (slope > 0))
    free[:, -1] = ~held
    both = free[:, :, None] & free[:, None, :]
    curvature = torch.where(both, -(basis.mT @ hessian @ basis), eye)
    ridge = 1e-9 * curvature.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-9)
    step = torch.linalg.solve(curvature + ridge[:, None, None] * eye, gradient * free)
    step = torch.einsum("hpf,hf->hp", basis, step)
    # A curvature near zero (a head that is nearly a shift) would give huge steps.
    limit = 4 * alpha[:, None] + 1
    return step * (limit / step.abs().amax(-1, keepdim=True).clamp_min(1e-30)).clamp(max=1.0)


def _inside(theta: Tensor, bounds: _Bounds) -> Tensor:
    alpha = theta[:, -1:].clamp(bounds.least, LARGEST)
    farthest = 2 * alpha * bounds.reach
    return torch.cat([theta[:, :-1].clamp(-farthest, farthest), alpha], -1)
