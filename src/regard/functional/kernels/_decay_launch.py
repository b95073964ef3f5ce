"""Decayed averages along one axis by the kernels of ``_decay``: launches, and their gradients."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels._decay import block_edges, block_sums
from regard.functional.kernels._limits import MOST_CHANNELS
from regard.functional.kernels._plain import aliases, plain_gradient
from regard.functional.kernels._setups import precision
from regard.functional.kernels._tensors import on_own_device

# Below this rate the quotient of the closed form approaches 0 / 0, and the first terms of its series are accurate.
SOFT = 1e-6


class SeenSides(NamedTuple):
    """Which keys a query sees besides itself: those to its left (before it), to its right, or both."""

    left: bool
    right: bool

    @property
    def exchanged(self) -> "SeenSides":
        return SeenSides(self.right, self.left)


class DecayedAverage(torch.autograd.Function):
    """Average ``(items, heads, tokens, width)`` along the tokens, with weights that fall by e^−λ per step."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: Tensor, rate: Tensor, sides: SeenSides, plain: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        x = x if x.stride(3) == 1 else x.contiguous()
        rate = rate.float().contiguous()
        scale = inverse_norm(rate, x.shape[2], sides)
        ctx.sides, ctx.plain = sides, plain
        ctx.save_for_backward(x, rate)
        out = torch.empty_like(x)
        sums(x, None, rate, scale, None, sides, 1.0, out, scale_out=True)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        x, rate = ctx.saved_tensors
        needs_x, needs_rate = ctx.needs_input_grad[:2]
        if torch.is_grad_enabled():
            inputs = aliases(x, rate)
            return *plain_gradient(ctx.plain(*inputs), inputs, (needs_x, needs_rate), grad), None, None
        grad = grad if grad.stride(3) == 1 else grad.contiguous()
        scale, slope = inverse_norm(rate, x.shape[2], ctx.sides), None
        if needs_rate:
            slope = inverse_norm_slope(rate, x.shape[2], ctx.sides)
        by_x = torch.empty_like(x)
        dots = sums(grad, None, rate, scale, slope, ctx.sides.exchanged, 1.0, by_x, factor=x if needs_rate else None)
        by_rate = None if dots is None else dots.view(x.shape[0], x.shape[1], -1).sum((0, 2))
        return by_x if needs_x else None, by_rate, None, None


Plain = Callable[[Tensor, Tensor], Tensor]
TRIED = (1, 3, 300, 40)  # shape of the test input: several blocks of tokens, and a partly filled block of channels
FAR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


def decayed_average(x: Tensor, rate: Tensor, sides: SeenSides, plain: Plain) -> Tensor:
    """Computed by the kernels if they agree with plain operations on this GPU (tested once), else by plain operations."""
    if not _agrees_on(x.device, x.dtype, sides, plain):
        return plain(x, rate)
    return DecayedAverage.apply(x, rate, sides, plain)


_tried: dict[tuple[torch.device, torch.dtype, SeenSides], bool] = {}


def _agrees_on(device: torch.device, dtype: torch.dtype, sides: SeenSides, plain: Plain) -> bool:
    case = device, dtype, sides
    if case not in _tried:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False  # the comparison synchronizes, which is not allowed while a CUDA graph is captured
        worst = difference(device, dtype, sides, plain)
        _tried[case] = worst <= FAR[dtype]
        if not _tried[case]:
            warnings.warn(
                f"the decay kernels have error {worst:.1e} on {device}: plain operations are used instead", stacklevel=4
            )
    return _tried[case]


def difference(device: torch.device, dtype: torch.dtype, sides: SeenSides, plain: Plain) -> float:
    """The largest relative difference between kernels and plain operations, over the output and both gradients."""
    count = functools.reduce(lambda a, b: a * b, TRIED)
    found = []
    for way in (lambda x, rate: DecayedAverage.apply(x, rate, sides, plain), plain):
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            x = torch.arange(count, device=device).sin().reshape(TRIED).to(dtype).requires_grad_()
            rate = torch.tensor([1e-4, 0.02, 1.5], device=device, requires_grad=True)
            out = way(x, rate)
            weighted = (out.float() * torch.arange(TRIED[3], device=device).cos()).sum()
            found.append([out.detach(), *torch.autograd.grad(weighted, (x, rate))])
    return max(float((a - b).double().norm() / b.double().norm()) for a, b in zip(*found, strict=True))


def inverse_norm(rate: Tensor, n: int, sides: SeenSides) -> Tensor:
    """1 / Σ_k e^{−λ|q − k|}, (heads, tokens), in closed form: m keys on one side sum to (1 − e^{−λ m}) / (1 − e^{−λ})."""
    rate = rate if rate.ndim == 2 else rate[:, None]
    place = torch.arange(n, device=rate.device, dtype=rate.dtype)
    soft = rate < SOFT
    safe = rate.masked_fill(soft, 1.0)
    below = torch.expm1(-safe)
    total: Tensor | None = None
    for wanted, keys in ((sides.left, place + 1), (sides.right, n - place)):
        if wanted:
            one = torch.where(soft, keys * torch.exp(-rate * (keys - 1) / 2), torch.expm1(-safe * keys) / below)
            total = one if total is None else total + one
    assert total is not None
    return (total - 1 if sides.left and sides.right else total).reciprocal()


def inverse_norm_slope(rate: Tensor, n: int, sides: SeenSides) -> Tensor:
    """The derivative of :func:`inverse_norm` by λ. In float64, because the quotient rule's terms cancel for small λ."""
    with torch.enable_grad():
        spread = rate.detach().double()[:, None].expand(-1, n).requires_grad_()
        (slope,) = torch.autograd.grad(inverse_norm(spread, n, sides).sum(), spread)
    return slope.float()


@on_own_device
def sums(
    x: Tensor, z: Tensor | None, rate: Tensor, scale: Tensor | None, slope: Tensor | None, sides: SeenSides, step: float,
    out: Tensor, *, out_z: Tensor | None = None, scale_out: bool = False, factor: Tensor | None = None,
) -> Tensor | None:  # fmt: skip
    """Write the sums of x into ``out``. ``scale`` (heads, tokens) multiplies x, or the sums with ``scale_out``. Z is written
    to ``out_z``; with ``factor``, Σ Z · factor is returned instead, as one partial sum per program."""
    items, heads, n, width = x.shape
    block = 64 if x.dtype == torch.float32 else 128
    blocks, channels = -(-n // block), min(MOST_CHANNELS, max(16, 1 << (width - 1).bit_length()))
    has_z = z is not None or slope is not None
    grid = (blocks * items * heads, -(-width // channels))
    # The kernels do not access arguments whose flag is off, so any tensor can take their place.
    z, scaled_by, slope, multiplier = (x if given is None else given for given in (z, scale, slope, factor))
    edges = [x] * 4
    common = {"LEFT": sides.left, "RIGHT": sides.right, "HAS_Z": has_z, "T": block, "E": channels}
    common["SCALED"] = scale is not None and not scale_out
    if blocks > 1:
        made = x.new_empty(2, 2, items, heads, blocks, width, dtype=torch.float32)
        block_edges[grid](
            x, z, rate, scaled_by, slope, *made.flatten(0, 1).unbind(), heads, n, width, blocks, step, *x.stride()[:3],
            **common,
        )  # fmt: skip
        edges = passed_on(made, rate, sides, step * block, has_z)
    dots = x.new_empty(items * heads * blocks * grid[1], dtype=torch.float32)
    block_sums[grid](
        x, z, rate, scaled_by, slope, *edges, out, out if out_z is None else out_z, multiplier, dots,
        heads, n, width, blocks, step, *x.stride()[:3], *out.stride()[:3], *multiplier.stride()[:3],
        **common, SCALE_OUT=scale_out, DOTS=factor is not None, PRECISION=precision(x.dtype),
    )  # fmt: skip
    return None if factor is None else dots


def passed_on(made: Tensor, rate: Tensor, sides: SeenSides, step: float, has_z: bool) -> list[Tensor]:
    """The sums that reach each block from the left and from the right: decayed sums of the edges ``made``,
    (2, 2, items, heads, blocks, width)."""
    passed = torch.empty_like(made)
    for own, target, wanted in zip(
        made, passed, (SeenSides(sides.left, False), SeenSides(False, sides.right)), strict=True
    ):
        if any(wanted):
            sums(own[0], own[1] if has_z else None, rate, None, None, wanted, step, target[0], out_z=target[1])
    return list(passed.flatten(0, 1).unbind())
