"""Profiles: how a head scores offsets along one axis of a grid. If scores are sums over axes, attention factorizes."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.functional import kernels
from regard.functional._axis import Targets, build_dtype, check_sharpness, matrix_of
from regard.support.checks import check_choice, check_floating, describe, under_autocast, values_are_readable
from regard.support.long_rows import softmax

Side = Literal["both", "before", "after"]

CHUNK = 64  # outputs of a scan per matrix product

# e^−λ is zero in every dtype from here on. A scan multiplies rates by lengths, and a larger rate could become infinite.
FASTEST = 2.0**12


class GaussianProfile(NamedTuple):
    r"""A bump around an offset: :math:`f(\delta) = -\alpha (\delta - \Delta)^2`, with δ = key − query.

    Attributes:
        center: Δ, ``(heads,)``.
        sharpness: α ≥ 0, ``(heads,)``.
    """

    center: Float[Tensor, " heads"]
    sharpness: Float[Tensor, " heads"]

    @property
    def heads(self) -> int:
        return self.center.shape[0]

    def check(self, name: str, size: int) -> None:
        check_vector(f"{name}.center", self.center)
        check_vector(f"{name}.sharpness", self.sharpness)
        if self.center.shape != self.sharpness.shape:
            raise ValueError(
                f"{name}.center has {self.center.shape[0]} heads but {name}.sharpness has {self.sharpness.shape[0]}"
            )
        check_sharpness(self.sharpness, f"{name}.sharpness")
        check_one_device(f"{name}.center", self.center, f"{name}.sharpness", self.sharpness)
        if values_are_readable(self.center) and not bool(self.center.isfinite().all()):
            raise ValueError(f"{name}.center must be finite, but holds NaN or infinite values")

    def matrix(self, size: int, *like: Tensor) -> Float[Tensor, "heads outputs inputs"]:
        """The weights along an axis of this size, in float32 or better, and in no coarser dtype than that of ``like``."""
        build = build_dtype(self.center, self.sharpness, *like)
        center = self.center.to(build)
        targets = Targets.of(torch.arange(size, device=center.device, dtype=build), center)
        return matrix_of(targets, self.sharpness.to(build), size, "native", (0, 0))


class DecayProfile(NamedTuple):
    r"""Exponential decay with distance: :math:`f(\delta) = -\lambda |\delta|`, on both sides or on one.

    With one axis and ``side="before"`` this is causal attention with ALiBi's bias. On a plane the distance is the L1
    distance, and one-sided axes restrict a head to a quadrant (keys above *and* to the left), not to raster order.

    Attributes:
        rate: λ ≥ 0, ``(heads,)``.
        side: which keys a query sees: ``both`` sides, only keys ``before`` it (itself included), or only keys ``after`` it.
    """

    rate: Float[Tensor, " heads"]
    side: Side = "both"

    @property
    def heads(self) -> int:
        return self.rate.shape[0]

    def check(self, name: str, size: int) -> None:
        check_vector(f"{name}.rate", self.rate)
        check_choice(f"{name}.side", self.side, get_args(Side))
        if values_are_readable(self.rate) and not bool(((self.rate >= 0) & self.rate.isfinite()).all()):
            raise ValueError(
                f"{name}.rate must be finite and 0 or more, but its values go from {self.rate.min().item():g} to "
                f"{self.rate.max().item():g}"
            )

    def matrix(self, size: int, *like: Tensor) -> Float[Tensor, "heads outputs inputs"]:
        """As :meth:`GaussianProfile.matrix`."""
        rate = self.rate.to(build_dtype(self.rate, *like))
        offset = offsets(size, rate)
        return softmax(one_sided(-rate[:, None, None] * offset.abs(), offset, self.side))

    def scan(self, x: Float[Tensor, "batch heads size width"]) -> Float[Tensor, "batch heads size width"]:
        r"""The same average in time linear in the axis.

        Decayed sums of what lies before are a recurrence, :math:`s_q = v_q + e^{-\lambda} s_{q-1}`, and so are those of
        what lies after. Only non-negative multiples of −λ are ever exponentiated, so nothing can overflow, however long
        the axis or fast the decay; the normalizer is the same sum over ones. On a GPU kernels do this, block by block.
        Under autocast the result has autocast's dtype, like a matrix product, but sums are not rounded to it: in float16 those
        of a long axis would overflow.
        """
        if under_autocast(x):
            lowered = kernels.as_autocast(x)
            with torch.autocast(x.device.type, enabled=False):
                return self.scan(lowered)
        rate = self.rate.to(build_dtype(self.rate, x)).clamp_max(FASTEST)
        if rate.dtype == torch.float32 and kernels.usable_for_scans(x):
            return kernels.decayed_average(x, rate, self.side, lambda x, rate: self._replace(rate=rate).plain_scan(x))
        return self.plain_scan(x)

    def plain_scan(self, x: Float[Tensor, "batch heads size width"]) -> Float[Tensor, "batch heads size width"]:
        """The same average in plain tensor operations."""
        rate = self.rate.to(build_dtype(self.rate, x)).clamp_max(FASTEST)
        values, ones = x.to(rate.dtype), rate.new_ones(1, rate.shape[0], x.shape[2], 1)
        total, norm = self._sums(values, rate), self._sums(ones, rate)
        return (total / norm).to(x.dtype)

    def _sums(self, x: Tensor, rate: Tensor) -> Tensor:
        before = decayed_sums(x, rate) if self.side != "after" else None
        after = decayed_sums(x.flip(2), rate).flip(2) if self.side != "before" else None
        if before is None or after is None:
            return before if before is not None else after  # type: ignore[return-value]
        return before + after - x


class TableProfile(NamedTuple):
    r"""A learned score for every offset: :math:`f(\delta) = t_\delta`.

    Attributes:
        scores: ``(heads, 2 · extent − 1)`` for offsets 1 − extent … extent − 1, for axes of up to ``extent`` tokens; −∞ hides
            an offset, and a query that sees nothing gives zeros.
        side: as for :class:`DecayProfile`.
    """

    scores: Float[Tensor, "heads offsets"]
    side: Side = "both"

    @property
    def heads(self) -> int:
        return self.scores.shape[0]

    def check(self, name: str, size: int) -> None:
        check_floating(f"{name}.scores", self.scores)
        check_choice(f"{name}.side", self.side, get_args(Side))
        if self.scores.ndim != 2 or not self.scores.shape[1] % 2:
            raise ValueError(f"{name}.scores must be (heads, 2 · extent − 1), got {describe(self.scores)}")
        if size > (self.scores.shape[1] + 1) // 2:
            raise ValueError(
                f"{name}.scores has shape {tuple(self.scores.shape)}, which reaches offsets of "
                f"{(self.scores.shape[1] - 1) // 2}, but its axis has {size} tokens"
            )
        if values_are_readable(self.scores) and not bool((self.scores < math.inf).all()):
            raise ValueError(f"{name}.scores must be finite, or −∞ to hide an offset, but holds NaN or +∞")

    def matrix(self, size: int, *like: Tensor) -> Float[Tensor, "heads outputs inputs"]:
        """As :meth:`GaussianProfile.matrix`."""
        scores = self.scores.to(build_dtype(self.scores, *like))
        offset = offsets(size, scores)
        index = offset.long() + (scores.shape[1] - 1) // 2
        found = one_sided(scores[:, index], offset, self.side)
        empty = (found == -math.inf).all(-1, keepdim=True)
        return softmax(found.masked_fill(empty, 0.0)).masked_fill(empty, 0.0)


Profile = GaussianProfile | DecayProfile | TableProfile


def offsets(size: int, like: Tensor) -> Float[Tensor, "queries keys"]:
    """key − query."""
    place = torch.arange(size, device=like.device, dtype=like.dtype)
    return place - place[:, None]


def one_sided(scores: Tensor, offset: Tensor, side: Side) -> Tensor:
    if side == "both":
        return scores
    return scores.masked_fill(offset > 0 if side == "before" else offset < 0, -math.inf)


def decayed_sums(
    x: Float[Tensor, "batch heads size width"], rate: Float[Tensor, " heads"]
) -> Float[Tensor, "batch heads size width"]:
    r"""The sums :math:`s_q = \sum_{k \le q} e^{-\lambda (q - k)} x_k`: one product inside each chunk, and between chunks a
    recursive call on the last sum of each chunk, with the decay of a whole chunk.

    >>> decayed_sums(torch.ones(1, 1, 4, 1), torch.tensor([math.log(2.0)])).flatten()
    tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    size = x.shape[2]
    # Sizes may be symbols, of which a compiler can follow these forms, but not min() and rounding up by negation.
    chunk = CHUNK if size > CHUNK else size
    chunks = (size + CHUNK - 1) // CHUNK if size > CHUNK else 1
    padded = F.pad(x, (0, 0, 0, chunks * chunk - size)) if chunks * chunk != size else x
    place = torch.arange(chunk, device=x.device, dtype=rate.dtype)
    away = place[:, None] - place
    decay = (-rate[:, None, None] * away.clamp_min(0)).exp().masked_fill(away < 0, 0.0)  # (heads, chunk, chunk)
    inside = decay.unsqueeze(1) @ padded.unflatten(2, (chunks, chunk))  # (batch, heads, chunks, chunk, width)
    if chunks > 1:
        ends = decayed_sums(inside[..., -1, :], rate * chunk)
        carried = F.pad(ends[:, :, :-1], (0, 0, 1, 0))  # the sum of all earlier chunks
        fading = (-rate[:, None] * (place + 1)).exp()[:, None, :, None]
        inside = inside + fading * carried.unsqueeze(3)
    return inside.flatten(2, 3)[:, :, :size]


def check_vector(name: str, x: object) -> None:
    check_floating(name, x)
    if isinstance(x, Tensor) and x.ndim != 1:
        raise ValueError(f"{name} must be (heads,), got {describe(x)}")


def check_one_device(name: str, x: Tensor, other: str, y: Tensor) -> None:
    if x.device != y.device:
        raise ValueError(f"{name} is on {x.device} but must be on {y.device}, as {other} is")
