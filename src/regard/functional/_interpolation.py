"""Interpolation between a few keys: the weights of a wide head along an axis change so slowly from key to key that those at a
few points, the *nodes*, determine all others.

Along one axis the weight of key j for one query is f(j)/Z with f(x) = exp(−α((x − t)² − (c − t)²)), where t is the target and
c the key nearest to it. The polynomial through the values of f at r Chebyshev nodes x₁ … x_r is Σ_m f(x_m) ℓ_m(x), so the axis
matrix is a product of two narrow ones,

    A[o, j] ≈ Σ_m G[o, m] · ℓ_m(j),       G[o, m] = f_o(x_m) / Σ_j Σ_m f_o(x_m) ℓ_m(j),

of which the second is the same for all heads. :func:`nodes_needed` finds how many nodes keep every row of weights as close to
the exact one as rounding would.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.functional._axis import Border, fold
from regard.support.tensor_cache import TensorCache

# Entries of a basis that is kept: those of more are made again for each call, which takes less time than their use.
KEPT_NUMBERS = 2**20
AT_ONCE = {"cpu": 2**19, "cuda": 2**24}  # how many entries are made together
FARTHEST = 1024  # how many lengths of an axis a target may lie outside: derivatives by sharpness grow with the distance


class NodeBasis(NamedTuple):
    """The interpolation of one axis. Its scale keeps numbers near one: it cancels where weights are normalized.

    Attributes:
        places: ``(3, nodes)``, the coordinates of the nodes, as integers and fractions, because their sum would be rounded; and
            the sum of each ℓ_m over all keys, padding included.
        polynomials: ``(nodes, inputs)``, ℓ_m at each input, with what lies on padding added to the input that it copies.
    """

    places: Float[Tensor, "3 nodes"]
    polynomials: Float[Tensor, "nodes inputs"]

    @property
    def whole(self) -> Float[Tensor, " nodes"]:
        return self.places[0]

    @property
    def fraction(self) -> Float[Tensor, " nodes"]:
        return self.places[1]

    @property
    def sums(self) -> Float[Tensor, " nodes"]:
        return self.places[2]


def node_basis(
    count: int, size: int, border: Border, padding: tuple[int, int], dtype: torch.dtype, build: torch.dtype,
    device: torch.device,
) -> NodeBasis:  # fmt: skip
    """The basis with this many nodes, its polynomials in ``dtype``, its nodes and sums in ``build``.

    >>> basis = node_basis(3, 5, "native", (0, 0), torch.float64, torch.float64, torch.device("cpu"))
    >>> line = 2 * (basis.whole + basis.fraction) + 1             # a polynomial is reproduced from its values at the nodes
    >>> line @ basis.polynomials / (basis.sums.sum() / 5)
    tensor([1.0000, 3.0000, 5.0000, 7.0000, 9.0000], dtype=torch.float64)
    """

    key = (count, size, border, padding, dtype, device)
    if count * size > KEPT_NUMBERS:
        places, polynomials = _made(*key)
        return NodeBasis(places.to(build), polynomials)
    places = _CACHE.get((*key, build), device, lambda: _made(*key)[0].to(build))
    polynomials = _CACHE.get(key, device, lambda: _made(*key)[1])
    return NodeBasis(places, polynomials)


_CACHE = TensorCache(128)


def _made(
    count: int, size: int, border: Border, padding: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Places in float64, and the polynomials."""
    low, keys = -padding[0], size + sum(padding)
    if count == keys:  # the nodes are the keys
        nodes = torch.arange(count, dtype=torch.float64, device=device)
        rounded = torch.eye(count, dtype=dtype, device=device)
    else:
        nodes, rounded = _rounded_polynomials(count, keys, count / size, dtype, device)
    # Those of the right half are the mirror image of those of the left half.
    whole, left = nodes.round(), count // 2
    fraction = nodes - whole
    whole[count - left :] = keys - 1 - whole[:left].flip(0)
    fraction[count - left :] = -fraction[:left].flip(0)
    # The sums are those of the rounded polynomials, so that rounding does not change the sum of a row of weights.
    places = torch.stack([whole + low, fraction, rounded.sum(1, dtype=torch.float64)])
    return places, fold(rounded.double()[None], size, border, padding[0])[0].to(dtype) if any(padding) else rounded


def _rounded_polynomials(
    count: int, keys: int, scale: float, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, " nodes"], Float[Tensor, "nodes keys"]]:
    r"""Chebyshev nodes on 0 … keys − 1, and the polynomials that are one at one of them and zero at the others, at all integers
    there, scaled and rounded: :math:`\ell_m(x) = \frac{w_m}{x - x_m} / \sum_k \frac{w_k}{x - x_k}` with
    :math:`w_m = (-1)^m \sin \varphi_m`.

    Near an end nodes are so dense that distances from there are kept exact. The other half is the mirror image.
    """
    angles = (2 * torch.arange(count, dtype=torch.float64, device=device) + 1) * (math.pi / (2 * count))
    nodes = (keys - 1) * (angles / 2).sin() ** 2
    factors = angles.sin()
    factors[1::2] *= -1
    polynomials = torch.empty(count, keys, dtype=dtype, device=device)
    half, step = (keys + 1) // 2, max(1, AT_ONCE.get(device.type, AT_ONCE["cuda"]) // count)
    for start in range(0, half, step):
        stop = min(start + step, half)
        x = torch.arange(start, stop, dtype=torch.float64, device=device)
        apart = x - nodes[:, None]
        terms = factors[:, None] / torch.where(apart == 0, 1e-300, apart)  # at a node, nothing but its own term matters
        found = (terms * (scale / terms.sum(0))).to(dtype)
        polynomials[:, start:stop] = found
        polynomials[:, keys - stop : keys - start] = found.flip(0, 1)
    return nodes, polynomials


def nodes_needed(
    alpha: Float[Tensor, "..."], first: Float[Tensor, "..."], last: Float[Tensor, "..."], low: Float[Tensor, "..."],
    high: Float[Tensor, "..."], tolerance: float,
) -> Int[Tensor, "..."]:  # fmt: skip
    r"""How many nodes keep the rows of all targets from ``first`` to ``last`` within ``tolerance`` of the exact ones, in L1; all
    keys, ``low`` to ``high``, if fewer nodes may not be enough. Every argument is float64, and may hold many axes at once.

    f is analytic, so on the interval its interpolant at r nodes is off by at most :math:`4 M \rho^{1-r} / (\rho - 1)`, for every
    :math:`\rho > 1`, where M bounds f on the ellipse around the interval whose semi-axes are
    :math:`a, b = (\rho \pm 1/\rho)/2` half intervals. With S = α · (half interval)², target t and nearest key c (in half
    intervals from the middle), the largest exponent there is

    .. math:: \max_{|u| \le 1} -S \bigl((a^2 + b^2) u^2 - 2 a t u + t^2 - b^2 - (c - t)^2\bigr).

    For a target inside it is largest at the middle. Outside, the exponent is convex in t, so it is largest at one end. With Z a
    lower bound of the sum of f over all n keys, and q = n · error / Z, a normalized row is off by at most 2q / (1 − q).

    >>> alpha, first, last = (torch.tensor(x, dtype=torch.float64) for x in (1e-4, 0.0, 255.0))
    >>> nodes_needed(alpha, first, last, first, last, 2.0**-9)   # 256 keys, a standard deviation of 71 keys, bfloat16
    tensor(12)
    """
    keys = high - low + 1
    middle, half = (low + high) / 2, ((high - low) / 2).clamp_min(0.5)
    ends = [(first - middle) / half, (last - middle) / half]
    nearest = torch.maximum(ends[0], -ends[1]).clamp_min(0)
    farthest = torch.maximum(-ends[0], ends[1])
    beyond = ((farthest - 1) * half).clamp_min(0)
    growth = torch.linspace(-4.6, 2.2, 60, dtype=torch.float64, device="cpu").exp()  # log ρ of some ellipses
    a, b = growth.cosh(), growth.sinh()
    squares = a * a + b * b
    inside = nearest.clamp_max(1)
    # (t, t² − (c − t)²): a target inside is within half a step of a key; for one outside, t − c = t − 1.
    places = [(inside, inside**2 - (0.5 / half) ** 2)]
    places += [(target, 2 * target - 1) for target in (nearest.clamp_min(1), farthest.clamp_min(1))]
    lowest = torch.zeros_like(growth)  # at the nearest key itself the exponent is zero
    for target, own in places:
        u = (a / squares * target.unsqueeze(-1)).clamp_max(1)
        lowest = torch.minimum(lowest, u * (squares * u - 2 * a * target.unsqueeze(-1)) - b * b + own.unsqueeze(-1))
    exponent = -(alpha * half * half).unsqueeze(-1) * lowest
    share = tolerance / (2 + tolerance)  # q, from 2q / (1 − q) = tolerance
    wanted = (share * _least_sum(alpha, beyond, keys) / keys).log().unsqueeze(-1)
    needed = (1 + (exponent + (4 / growth.expm1()).log() - wanted) / growth).amin(-1)
    # A comparison with NaN, which extreme sharpness gives, is false.
    pays = (needed < keys - 1) & (beyond <= FARTHEST * keys) & (keys >= 4)
    return torch.where(pays, needed.ceil().clamp_min(1), keys).long()


def _least_sum(alpha: Tensor, beyond: Tensor, keys: Tensor) -> Tensor:
    """A lower bound of the sum of f over n keys for a target up to D outside.

    The i-th nearest key is at most i away from a target inside, so the sum is at least Σ_{i<n} exp(−α i (i + 2D)). These summands
    fall, so it is at least the integral from 0 to n, √(π/4α) (erfcx(√α D) − exp(−α n (n + 2D)) erfcx(√α (n + D))). It is also at
    least n exp(−α n (n + 2D)), and at least one, the first summand.
    """
    root, fall = alpha.sqrt(), (-alpha * keys * (keys + 2 * beyond)).exp()
    last = torch.special.erfcx(root * (keys + beyond))
    integral = (math.pi**0.5 / 2) / root * (torch.special.erfcx(root * beyond) - fall * last)
    # Where the sum falls but little, the integral is a difference of nearly equal numbers.
    return torch.where(fall < 0.99, integral, keys * fall).clamp_min(1)
