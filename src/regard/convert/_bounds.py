"""The two parts of every error bound here: the distance of a Gaussian head from a shift, and the rounding error of sums."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import shift_leak
from regard.support.checks import is_functional, under_autocast


def sharpness_for(tolerance: float, axes: int) -> float:
    """The smallest α (to about one in a thousand) with rows at most ``tolerance`` from a shift in L1, on a grid of ``axes`` axes.

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

# All weights below e^−50 of the largest, even their sum, are far smaller than every rounding error here.
NEGLIGIBLE_SCORE = 50.0


class MapRow(NamedTuple):
    """One row of a map: its scores, and what the error of computing them depends on."""

    scores: Tensor  # s ≥ 0 of the weights e^−s / Z that are not negligible
    mean: float  # the weighted mean of Σ |terms| of the scores
    off: float  # the total weight of all keys but the nearest
    roundings: int  # number of roundings of a score, each relative to Σ |terms|
    build: float  # an upper bound on the unit roundoff of the dtype in which the row is built

    @classmethod
    def of(cls, scores: Tensor, parts: Tensor | None = None, roundings: int = 3, build: float = FLOAT32) -> "MapRow":
        """``parts`` is Σ |terms| of each score, for scores that are sums; by default a score is a single term."""
        scores = scores.flatten().double()
        best = scores.min()
        weights = (best - scores).softmax(0)
        mean = (weights * (scores - best if parts is None else parts.flatten())).sum().item()
        off = (weights.sum() - weights.max()).item()
        kept = scores - best
        return cls(kept[kept <= NEGLIGIBLE_SCORE], mean + 1e-15, off, roundings, build)

    @classmethod
    def along_axis(cls, center: float, alpha: float) -> "MapRow":
        """A head's row along one infinite axis: scores α·m(m + 2e), with m = key − nearest key, e = nearest key − target."""
        reach = math.ceil(math.sqrt(NEGLIGIBLE_SCORE / alpha)) + 2
        step = torch.arange(-reach, reach + 1, dtype=torch.float64)
        return cls.of(alpha * step * (step + 2 * (round(center) - center)))


class Arithmetic(NamedTuple):
    """How a device rounds: ``stored`` is the unit roundoff of the stored dtype, ``carried`` that of the accumulator of sums.

    ``lowered``: whether autocast rounds parameters to the stored dtype before each product.
    """

    dtype: torch.dtype
    stored: float
    carried: float
    lowered: bool

    def product(self, terms: int) -> float:
        r"""log(1 + relative error) of a sum of ``terms`` products, in any order, and of storing it.

        :math:`\gamma_n = nu/(1-nu)` covers n products and their sum, with or without fused multiply-adds. In half
        precision the sum is accumulated in float32 and rounded once more to be stored.
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
        """How many roundings a weighted sum over this row may have: one for each weight that is not far below a rounding.

        If one weight is almost 1, the others add little error: adding a term t to a sum s rounds by at most min(us, t), so
        that their total error is at most their total weight.
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
        """log(1 + relative error) of building a row, computing a weighted sum with it, and storing the result."""
        steps = self.matter(row) * self.carried
        return self.weights(row) + math.log1p(steps) + (self.cast if self.carried != self.stored else 0.0)

    def holds(self, *tensors: Tensor) -> bool:
        """Whether all these numbers are finite, also after autocast has rounded them: no bound applies to others."""
        return all(bool(tensor.detach().to(self.dtype).isfinite().all()) for tensor in tensors)

    def bound(self, logs: float, size: float) -> float:
        """The absolute error of a chain of such steps, where ``size`` is the sum of absolute terms."""
        if not size:
            return 0.0
        grown = math.exp(min(logs, 700.0)) * size
        if logs == math.inf or grown > torch.finfo(self.dtype).max:
            return math.inf  # an intermediate sum may overflow
        return math.expm1(logs) * size


def arithmetic(x: Tensor, *parameters: Tensor) -> Arithmetic:
    """The arithmetic of a layer with these parameters that is called with ``x``, under the active autocast and on the device
    of ``x``.

    Raises:
        ValueError: if the rounding is not specified: on devices other than the CPU (which follows IEEE), or if float32
            products may be computed in TF32 or bfloat16.
    """
    if is_functional(x):
        raise ValueError(f"x has no values: it is on {x.device}")
    if x.device.type != "cpu":
        raise ValueError(
            f"error_bound does not apply on {x.device}: the rounding of its tensor cores is not specified. Call it on the CPU "
            f"(layer.cpu() and x.cpu()); leak holds on every device"
        )
    dtype = torch.get_autocast_dtype("cpu") if under_autocast(x) else x.dtype
    if dtype == torch.float32 and _may_be_lowered():
        raise ValueError(
            "error_bound does not apply if float32 products may be computed in lower precision: call "
            "torch.set_float32_matmul_precision('highest'), and leave fp32_precision of torch.backends at 'none' or 'ieee'"
        )
    unit = torch.finfo(dtype).eps / 2
    # x may have autocast's dtype already: it is what the layer before returned.
    lowered = any(given.dtype != dtype for given in (x, *parameters))
    return Arithmetic(dtype, unit, min(unit, FLOAT32), lowered)


def _may_be_lowered() -> bool:
    """Whether products of float32 may be computed in TF32 or bfloat16, by either of torch's settings."""
    backends: Any = torch.backends
    places = (backends, backends.mkldnn, *(getattr(backends.mkldnn, name, None) for name in ("matmul", "conv")))
    if any(getattr(place, "fp32_precision", "none") not in ("none", "ieee") for place in places):
        return True
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # torch raises if both kinds of settings were used
        return True


def lost_below(dtype: torch.dtype) -> float:
    """The largest error of a number that underflows, as a factor or as a result.

    A factor or a result below the smallest normal number may become zero: the instructions of x86 for products in bfloat16
    do this always, those for float32 and float64 after ``torch.set_flush_denormal(True)``. Float16 is computed in float32,
    where its smallest numbers are normal, so that only rounding is lost: half of the smallest number.
    """
    info = torch.finfo(dtype)
    return info.tiny * info.eps / 2 if dtype is torch.float16 else info.tiny
