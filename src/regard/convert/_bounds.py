"""How far a Gaussian head is from a shift, and how far rounding may carry a sum: the two parts of every bound here."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import shift_leak
from regard.support.checks import is_functional, under_autocast


def sharpness_for(tolerance: float, axes: int) -> float:
    """The smallest α (to about one in a thousand) whose rows are at most ``tolerance`` from a shift (L1), over that many axes.

    >>> shift_leak([sharpness_for(1e-6, 2)] * 2) <= 1e-6
    True
    """
    low, high = 0.0, max(1.0, 2 * (math.log(8 * axes) - math.log(tolerance)))
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if middle > 0.05 and shift_leak([middle] * axes) <= tolerance else (middle, high)
    return high


FLOAT32 = torch.finfo(torch.float32).eps / 2
FLOAT64 = torch.finfo(torch.float64).eps / 2

# Weights below e^−50 of the largest are far under every rounding here, all of them together.
NEGLIGIBLE_SCORE = 50.0


class MapRow(NamedTuple):
    """One row of a map: what its scores are, and how they are computed."""

    scores: Tensor  # s ≥ 0 of the weights e^−s / Z that matter
    mean: float  # the mean of what is added up to a score, in absolute terms, under the weights
    off: float  # the weight that is not the nearest key's
    roundings: int  # of a score, each relative to what is added up to it
    build: float  # the unit of the dtype that it is built in, at most

    @classmethod
    def of(cls, scores: Tensor, parts: Tensor | None = None, roundings: int = 3, build: float = FLOAT32) -> "MapRow":
        """``parts`` are the absolute terms of each score, where a score is a sum; by default it is none."""
        scores = scores.flatten().double()
        best = scores.min()
        weights = (best - scores).softmax(0)
        mean = (weights * (scores - best if parts is None else parts.flatten())).sum().item()
        off = (weights.sum() - weights.max()).item()
        kept = scores - best
        return cls(kept[kept <= NEGLIGIBLE_SCORE], mean + 1e-15, off, roundings, build)

    @classmethod
    def along_axis(cls, center: float, alpha: float) -> "MapRow":
        """Of a head along one endless axis: α·m(m + 2e) for steps m from the nearest key, which lies e from the target."""
        reach = math.ceil(math.sqrt(NEGLIGIBLE_SCORE / alpha)) + 2
        step = torch.arange(-reach, reach + 1, dtype=torch.float64)
        return cls.of(alpha * step * (step + 2 * (round(center) - center)))


class Arithmetic(NamedTuple):
    """How a device rounds: the unit of what is stored, and the unit that sums are carried in.

    ``lowered`` says that autocast rounds parameters to the stored dtype before each product.
    """

    dtype: torch.dtype
    stored: float
    carried: float
    lowered: bool

    def product(self, terms: int) -> float:
        r"""log(1 + relative error) of a sum of that many products, in any order, and of storing it.

        :math:`\gamma_n = nu/(1-nu)` covers n products and their sum, with or without fused multiply-adds. Half
        precision carries the sum in float32 and rounds once more to store it.
        """
        steps = terms * self.carried
        if steps >= 0.5:
            return math.inf
        return math.log1p(steps / (1 - steps)) + (self.cast if self.carried != self.stored else 0.0)

    @property
    def cast(self) -> float:
        """log(1 + relative error) of rounding a number to the stored dtype."""
        return math.log1p(self.stored)

    @property
    def parameter(self) -> float:
        return self.cast if self.lowered else 0.0

    def matter(self, row: MapRow) -> float:
        """How many roundings a weighted sum over this row may meet: one for each weight that is not far below a rounding.

        Next to a weight of almost 1 the others change little: adding a term t to a sum s rounds by at most min(us, t), so
        that all of them together cannot cost more than they are.
        """
        few = int((row.scores <= -math.log(self.carried) + 7).sum().item()) + 1
        return min(float(few), 2 + row.off / self.carried)

    def weights(self, row: MapRow) -> float:
        r"""log(1 + error in L1) of one row of a map, relative to the row's sum, which is 1.

        In the dtype that matrices are built in, with unit u, weights :math:`w_j = e^{-s_j}/Z`, the nearest key's score 0
        and its weight 1 − off:

        1. a score has a relative error of at most r roundings (``nearest_scores`` says why r = 3), so
           :math:`e^{-s}` moves by a factor of :math:`1 \pm r u s`, and the numerators in L1 by
           :math:`r u \sum_j w_j s_j`;
        2. exp is off by at most one unit in the last place, 2u, except exp(0) = 1: by 2u · off in L1;
        3. the normalizer Z is a sum of numbers that each moved by (1) and (2), and of as many roundings as
           :meth:`matter` counts;
        4. dividing, or multiplying by the reciprocal, is two roundings, and none where Z is 1.

        So the row moves by at most :math:`2 (r \sum w s + 2\,\mathrm{off}) + \mathrm{matter} + 2` units. Storing it in
        half precision is one rounding more, again at most of what is off where the rest is 1.
        """
        build = min(self.carried, row.build)
        moved = build * (2 * (row.roundings * row.mean + 2 * row.off) + min(self.matter(row) + 2, 4 * row.off / build))
        stored = min(self.stored, 4 * row.off + self.stored * row.off) if self.stored > build else 0.0
        return math.log1p(moved) + math.log1p(stored)

    def mix(self, row: MapRow) -> float:
        """log(1 + relative error) of building a row, of the weighted sum with it, and of storing that."""
        steps = self.matter(row) * self.carried
        return self.weights(row) + math.log1p(steps) + (self.cast if self.carried != self.stored else 0.0)

    def holds(self, *tensors: Tensor) -> bool:
        """Whether all these numbers are finite, also after autocast has rounded them: no bound applies to others."""
        return all(bool(tensor.detach().to(self.dtype).isfinite().all()) for tensor in tensors)

    def bound(self, logs: float, size: float) -> float:
        """The absolute error of a chain of such steps whose absolute terms add up to ``size``."""
        if not size:
            return 0.0
        grown = math.exp(min(logs, 700.0)) * size
        if logs == math.inf or grown > torch.finfo(self.dtype).max:
            return math.inf  # a sum on the way may overflow
        return math.expm1(logs) * size


def arithmetic(x: Tensor) -> Arithmetic:
    """The arithmetic of a layer that is called with ``x`` here and now: under this autocast, on this device.

    Raises:
        ValueError: where rounding is not known: off the CPU, whose sums are IEEE's, or where float32 products may be
            computed in TF32 or bfloat16.
    """
    if is_functional(x):
        raise ValueError(f"x has no values: it is on {x.device}")
    if x.device.type != "cpu":
        raise ValueError(
            f"error_bound does not apply on {x.device}: how its matrix units round is not specified. Call it on the CPU "
            f"(layer.cpu() and x.cpu()); leak holds on every device"
        )
    dtype = torch.get_autocast_dtype("cpu") if under_autocast(x) else x.dtype
    if dtype == torch.float32 and _may_be_lowered():
        raise ValueError(
            "error_bound does not apply where float32 products may be computed in less: call "
            "torch.set_float32_matmul_precision('highest'), and leave fp32_precision of torch.backends at 'none' or 'ieee'"
        )
    unit = torch.finfo(dtype).eps / 2
    return Arithmetic(dtype, unit, min(unit, FLOAT32), dtype != x.dtype)


def _may_be_lowered() -> bool:
    """Whether products of float32 may be computed in TF32 or bfloat16, by either of torch's settings."""
    backends: Any = torch.backends
    places = (backends, backends.mkldnn, *(getattr(backends.mkldnn, name, None) for name in ("matmul", "conv")))
    if any(getattr(place, "fp32_precision", "none") not in ("none", "ieee") for place in places):
        return True
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch refuses to say where both were used
        return True


def lost_below(dtype: torch.dtype) -> float:
    """What a number may lose to underflow when it is stored: half the smallest positive one."""
    info = torch.finfo(dtype)
    return info.tiny * info.eps / 2
