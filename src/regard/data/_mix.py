"""Mixup and cutmix: two images become one, and their labels become weights over the classes."""

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data._augment import Augmentation, box
from regard.data._random import random_coin, random_order, random_uniform
from regard.support.checks import check_floating, check_ndim, check_tensor, describe

_KNOTS = 4096


def mixup(
    images: Float[Tensor, "n channels height width"],
    others: Float[Tensor, "n channels height width"],
    weight: Float[Tensor, "n"],
) -> Float[Tensor, "n channels height width"]:
    """``weight · images + (1 − weight) · others``, with one weight per image.

    >>> from regard.data import mixup
    >>> mixup(torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.tensor([0.25]))
    tensor([[[[0.2500, 0.2500]]]])
    """
    _check_pair(images, others)
    check_floating("weight", weight)
    if weight.shape != images.shape[:1]:
        raise ValueError(f"weight must be (n,), one for each of {len(images)} images, got {describe(weight)}")
    return torch.lerp(others, images, weight[:, None, None, None])


def cutmix(
    images: Float[Tensor, "n channels height width"],
    others: Float[Tensor, "n channels height width"],
    where: Bool[Tensor, "n height width"],
) -> Float[Tensor, "n channels height width"]:
    """``others`` where the mask is True, ``images`` elsewhere.

    >>> from regard.data import cutmix
    >>> cutmix(torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2), torch.tensor([[[True, False]]]))
    tensor([[[[0., 1.]]]])
    """
    _check_pair(images, others)
    check_tensor("where", where)
    if where.dtype is not torch.bool or where.shape != images[:, 0].shape:
        raise ValueError(f"where must be (n, height, width) of images {tuple(images.shape)}, got {describe(where)}")
    return torch.where(where[:, None], others, images)


def _check_pair(images: Tensor, others: Tensor) -> None:
    check_ndim("images", images, "n channels height width")
    check_ndim("others", others, "n channels height width")
    if others.shape != images.shape:
        raise ValueError(f"others has shape {tuple(others.shape)} but images has {tuple(images.shape)}")
    if others.dtype != images.dtype:
        raise TypeError(f"others has dtype {others.dtype} but images has {images.dtype}")


def partners(count: int, seed: int, epoch: int, device: torch.device | str | None = None) -> Int[Tensor, "count"]:
    """The partner with which each sample is mixed in an epoch: a permutation of all samples, independent of the batch
    size and the number of processes.

    >>> from regard.data import partners
    >>> partners(4, seed=0, epoch=0).sort().values
    tensor([0, 1, 2, 3])
    """
    return random_order(count, seed, epoch, "partner", device=device)


class MixDraws(NamedTuple):
    """How each sample is mixed with its partner: averaged with the weight ``blend``, or cut by a rectangle."""

    use_cutmix: Bool[Tensor, "n"]
    low: Int[Tensor, "n 2"]
    high: Int[Tensor, "n 2"]
    blend: Float[Tensor, "n"]


def draw_mix(
    index: Int[Tensor, "n"], augmentation: Augmentation, seed: int, epoch: int, height: int, width: int
) -> MixDraws:
    """The draws of these samples. On a CPU, powers round differently at the end of a tensor, so only draws for the same
    ``index`` tensor are bitwise equal."""
    use_cutmix = torch.full_like(index, augmentation.cutmix > 0, dtype=torch.bool)
    if augmentation.mixup and augmentation.cutmix:
        use_cutmix = random_coin(index, seed, epoch, "mixup or cutmix")
    low = high = index.new_zeros(len(index), 2)
    if augmentation.cutmix:
        low, high = _draw_box(index, augmentation.cutmix, seed, epoch, height, width)
    blend = torch.ones(len(index), device=index.device)
    if augmentation.mixup:
        blend = beta_quantile(random_uniform(index, seed, epoch, "mixup"), augmentation.mixup)
    return MixDraws(use_cutmix, low, high, blend)


def mix(
    images: Float[Tensor, "n channels height width"],
    others: Float[Tensor, "n channels height width"],
    draws: MixDraws,
    augmentation: Augmentation,
) -> tuple[Float[Tensor, "n channels height width"], Float[Tensor, "n"]]:
    """Mixup or cutmix, as set in ``augmentation``. Also returns the weight of each image itself."""
    height, width = images.shape[2:]
    mixed = images
    if augmentation.cutmix:
        mixed = cutmix(mixed, others, box(draws.low, draws.high, height, width) & draws.use_cutmix[:, None, None])
    if augmentation.mixup:
        mixed = mixup(mixed, others, blend_weight(draws))
    return mixed, own_weight(draws, augmentation, height, width)


def blend_weight(draws: MixDraws) -> Float[Tensor, "n"]:
    """The weight of an image in mixup: 1 if it gets cutmix instead."""
    return torch.where(draws.use_cutmix, torch.ones_like(draws.blend), draws.blend)


def own_weight(draws: MixDraws, augmentation: Augmentation, height: int, width: int) -> Float[Tensor, "n"]:
    """The weight of each image's own class."""
    weight = torch.zeros_like(draws.blend)
    if augmentation.cutmix:
        area = (draws.high - draws.low).prod(-1)
        weight = torch.where(draws.use_cutmix, 1 - area / (height * width), weight)
    if augmentation.mixup:
        weight = torch.where(draws.use_cutmix, weight, draws.blend)
    return weight


def label_weights(
    labels: Int[Tensor, "n"], others: Int[Tensor, "n"], weight: Float[Tensor, "n"], classes: int
) -> Float[Tensor, "n classes"]:
    """``weight`` for an image's own class and the rest for the other's class. Rows sum to 1, as cross-entropy expects.

    >>> from regard.data import label_weights
    >>> label_weights(torch.tensor([0]), torch.tensor([2]), torch.tensor([0.75]), 3)
    tensor([[0.7500, 0.0000, 0.2500]])
    """
    weights = torch.zeros(len(labels), classes, device=labels.device)
    weights.scatter_add_(1, labels[:, None], weight[:, None])
    return weights.scatter_add_(1, others[:, None], 1 - weight[:, None])


def _draw_box(index: Tensor, alpha: float, seed: int, epoch: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """A rectangle with the image's aspect ratio around a uniform center, clipped at the edges. Before clipping it
    covers the share 1 − λ of the area, with λ from Beta(α, α)."""
    share = (1 - beta_quantile(random_uniform(index, seed, epoch, "cutmix"), alpha)).sqrt()
    low, high = [], []
    for axis, size in (("rows", height), ("columns", width)):
        side = (share * size).long()
        first = (random_uniform(index, seed, epoch, f"cutmix {axis}") * size).long() - side // 2
        low.append(first.clamp(min=0))
        high.append((first + side).clamp(max=size))
    return torch.stack(low, -1), torch.stack(high, -1)


def beta_quantile(p: Float[Tensor, "*shape"], alpha: float) -> Float[Tensor, "*shape"]:
    r"""The quantile function of Beta(α, α): it turns uniform draws into Beta draws.

    With x = sin²θ the density is :math:`(\sin\theta\cos\theta)^{2\alpha-1}`. u = θ^{2α} is nearly linear in p near 0,
    even for a singular density (α < ½), and is interpolated in a table.

    >>> from regard.data import beta_quantile
    >>> beta_quantile(torch.tensor([0.25, 0.5, 0.75]), 1.0)
    tensor([0.2500, 0.5000, 0.7500])
    """
    if not 0 < alpha < math.inf:
        raise ValueError(f"alpha must be positive and finite, got {alpha}")
    table = _beta_table(float(alpha), p.device)
    # Symmetric about ½, so the table covers only the lower half.
    at = 2 * torch.minimum(p, 1 - p) * _KNOTS
    left = at.long().clamp(max=_KNOTS - 1)
    u = torch.lerp(table[left], table[left + 1], at - left)
    lower = (math.pi / 4 * u ** (1 / (2 * alpha))).sin().square()
    return torch.where(p <= 0.5, lower, 1 - lower)


@lru_cache(maxsize=16)
def _beta_table(alpha: float, device: torch.device) -> Float[Tensor, "knots"]:
    """u = (4θ/π)^{2α} ∈ [0, 1] at evenly spaced probabilities 0 … ½."""
    # Integrated over s, θ = (π/4) s^power, where the integrand is bounded for every α.
    power = max(1.0, 1 / (2 * alpha))
    s = torch.linspace(0, 1, 16 * _KNOTS + 1, dtype=torch.float64)
    # (sin θ cos θ)^{2α−1} dθ/ds, with sin θ cos θ = θ sinc(2θ/π)
    density = torch.sinc(s**power / 2) ** (2 * alpha - 1) * s ** (2 * alpha * power - 1)
    cumulative = torch.cat((torch.zeros(1, dtype=torch.float64), torch.cumulative_trapezoid(density, s)))
    cumulative = cumulative / cumulative[-1]
    wanted = torch.linspace(0, 1, _KNOTS + 1, dtype=torch.float64)
    right = torch.searchsorted(cumulative, wanted).clamp(1, len(s) - 1)
    span = cumulative[right] - cumulative[right - 1]
    at = torch.lerp(s[right - 1], s[right], (wanted - cumulative[right - 1]) / span)
    return (at ** (2 * alpha * power)).float().to(device)
