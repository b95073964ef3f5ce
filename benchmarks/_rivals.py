"""What else mixes tokens by place on a GPU, grids of every size, and content with place: tables of benchmarks/gaussian.py.

Depthwise convolutions of 7×7, 17×17 and 31×31 (cuDNN), DCLS (whose nine taps move inside a 17×17 window, as our centers
do; from PyPI), a convolution by FFT, and NATTEN's neighborhood attention where it is installed. None computes the same
function as a Gaussian head; each takes the same values and gives gradients of all it learns.
"""

import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from _floor import TENSORS, device_milliseconds, graph_milliseconds
from regard.functional import attention, gaussian_attention, placed_attention

HEADS, WIDTH, TOKENS = 9, 64, 131072
SIZES = [(32, 32), (64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024), (131072,), (1 << 20,), (16, 64, 64)]
Step = Callable[[], Any]


def inputs(grid: tuple[int, ...], sharpness: float) -> tuple[torch.Tensor, ...]:
    """Value, what comes from above, center and sharpness; bfloat16, about 131 k tokens in all."""
    torch.manual_seed(0)
    tokens = math.prod(grid)
    shape = (max(1, TOKENS // tokens), HEADS, tokens, WIDTH)
    value = torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_()
    center = (2 * torch.randn(HEADS, len(grid), device="cuda")).requires_grad_()
    alpha = torch.full((HEADS,), sharpness, device="cuda").requires_grad_()
    return value, torch.randn_like(value), center, alpha


class Nothing(torch.autograd.Function):
    """Allocates an output and gradients, and computes nothing: what torch itself needs to call a function and its backward
    pass from Python."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, center: torch.Tensor, alpha: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(value, center, alpha)
        return torch.empty_like(value)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors)


def eager_milliseconds(step: Step, calls: int = 100, runs: int = 5) -> float:
    """Of one call among many that follow each other without waiting for the device: the median of some runs."""
    found = []
    for run in range(runs + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls if run else 5):  # first a few, to warm up
            step()
        torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - begin) / calls)
    return statistics.median(found[1:])


def size_row(grid: tuple[int, ...], sharpness: float, bandwidth: float) -> dict[str, Any]:
    """Our time on the device, the same called 100 times from Python, and memory, beside the floors: the bytes that must be
    moved, and the time that torch takes to call a function that computes nothing."""
    value, above, center, alpha = inputs(grid, sharpness)
    wanted = value, center, alpha

    def step() -> None:
        torch.autograd.grad(gaussian_attention(value, center, alpha, grid), wanted, above)

    device = graph_milliseconds(step)
    eager = eager_milliseconds(step)
    nothing = eager_milliseconds(lambda: torch.autograd.grad(Nothing.apply(*wanted), wanted, above))
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / (value.numel() * value.element_size())
    floor = 1e3 * TENSORS * value.numel() * value.element_size() / bandwidth
    return {
        "grid": "×".join(map(str, grid)), "sharpness": sharpness, "floor": round(floor, 4), "device": round(device, 4),
        "device / floor": round(device / floor, 2), "eager": round(eager, 4), "eager / device": round(eager / device, 2),
        "torch alone": round(nothing, 4), "peak / value": round(peak, 2),
    }  # fmt: skip


def rival_steps(side: int) -> dict[str, Step]:
    value, above, center, alpha = inputs((side, side), 0.5)
    batch, channels = value.shape[0], HEADS * WIDTH
    image = value.detach().reshape(batch, side, side, channels).permute(0, 3, 1, 2).requires_grad_()
    upstream = torch.randn_like(image)

    def grads(forward: Step, *wanted: torch.Tensor) -> Step:
        return lambda: torch.autograd.grad(forward(), wanted, upstream)

    steps: dict[str, Step] = {
        "ours": lambda: torch.autograd.grad(
            gaussian_attention(value, center, alpha, (side, side)), (value, center, alpha), above
        )
    }
    for size in (7, 17, 31):
        weight = torch.randn(channels, 1, size, size, device="cuda", dtype=torch.bfloat16).requires_grad_()
        steps[f"depthwise {size}×{size}"] = grads(
            lambda weight=weight, size=size: F.conv2d(image, weight, padding=size // 2, groups=channels), image, weight
        )
    taps = torch.randn(channels, 31, 31, device="cuda").requires_grad_()
    steps["FFT 31×31"] = grads(lambda: fft_convolution(image, taps), image, taps)
    if importlib.util.find_spec("DCLS") is not None:
        from DCLS.construct.modules import Dcls2d  # type: ignore[import-not-found]

        layer = Dcls2d(
            channels, channels, kernel_count=9, dilated_kernel_size=17, padding=8, groups=channels, version="gauss"
        ).to("cuda", torch.bfloat16)
        steps["DCLS 17×17"] = grads(lambda: layer(image), image, *layer.parameters())
    if importlib.util.find_spec("natten") is not None:
        import natten  # type: ignore[import-not-found]

        flat = [torch.randn(batch, side, side, HEADS, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        query, key, other = (x.requires_grad_() for x in flat)
        steps["NATTEN 7×7"] = lambda: torch.autograd.grad(
            natten.na2d(query, key, other, kernel_size=7), (query, key, other), torch.ones_like(query)
        )
    return steps


def fft_convolution(image: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Each channel with its own kernel; zero padding."""
    size, reach = image.shape[-1], taps.shape[-1]
    shape = (size + reach - 1,) * 2
    spectrum = torch.fft.rfft2(image.float(), s=shape) * torch.fft.rfft2(taps, s=shape)
    middle = reach // 2
    full = torch.fft.irfft2(spectrum, s=shape)
    return full[..., middle : middle + size, middle : middle + size].to(image.dtype)


def patient_milliseconds(step: Step) -> float:
    """The median of five calls; of one that takes more than half a second, that one alone after another has warmed up."""
    step()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    once = 1e3 * (time.perf_counter() - begin)
    return once if once > 500 else device_milliseconds(step, repeats=5)


def rival_row(side: int) -> dict[str, Any]:
    """Milliseconds of the device, forward and backward, and peak memory in value tensors."""
    row: dict[str, Any] = {"grid": f"{side}²"}
    size = max(1, TOKENS // side**2) * side**2 * HEADS * WIDTH * 2
    for name, step in rival_steps(side).items():
        try:
            row[name] = round(patient_milliseconds(step), 3)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            row[f"{name}, memory"] = round((torch.cuda.max_memory_allocated() - before) / size, 1)
        except Exception as error:
            print(f"{name} does not run at {side}²: {type(error).__name__}: {str(error)[:120]}", flush=True)
            row[name] = None
    return row


def placed_row(side: int) -> dict[str, Any]:
    """Content with a full covariance beside content alone, both on the fused kernel."""
    batch, tokens = max(1, TOKENS // side**2), side * side
    torch.manual_seed(0)
    query, key, value, above = (
        torch.randn(batch, HEADS, tokens, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(4)
    )
    center = torch.randn(HEADS, 2, device="cuda")
    root = torch.randn(HEADS, 2, 2, device="cuda")
    sharpness = 0.1 * root @ root.mT + 0.05 * torch.eye(2, device="cuda")
    wanted = [x.requires_grad_() for x in (query, key, value, center, sharpness)]

    def placed() -> None:
        torch.autograd.grad(placed_attention(*wanted, (side, side)), wanted, above)

    def flash() -> None:
        torch.autograd.grad(attention(query, key, value), wanted[:3], above)

    ours, theirs = device_milliseconds(placed, 5), device_milliseconds(flash, 5)
    return {"grid": f"{side}²", "placed": round(ours, 3), "flash": round(theirs, 3), "ratio": round(ours / theirs, 2)}


def placed_errors(side: int = 64) -> list[dict[str, Any]]:
    """Relative errors in bfloat16 against float64 on the same inputs: output, and gradients of center and S."""
    rows = []
    for strength in (0.01, 0.1, 1.0, 10.0):
        torch.manual_seed(0)
        query, key, value, above = (
            torch.randn(1, 4, side * side, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(4)
        )
        center, matrix = torch.randn(4, 2, device="cuda"), strength * torch.eye(2, device="cuda").repeat(4, 1, 1)
        results = []
        for exact in (False, True):
            places = [x.double() if exact else x for x in (center, matrix)]
            places = [x.detach().requires_grad_() for x in places]
            contents = [x.double() if exact else x for x in (query, key, value)]
            out = placed_attention(*contents, *places, (side, side), return_weights=exact)
            out = out[0] if isinstance(out, tuple) else out
            plain = attention(*contents)
            grads = torch.autograd.grad(out, places, above.to(out.dtype))
            results.append([x.detach().double() for x in (out, plain, *grads)])
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(*results, strict=True)]
        names = ("output", "content alone", "center's gradient", "S's gradient")
        rows.append({"S": strength, **{name: float(f"{error:.2g}") for name, error in zip(names, errors, strict=True)}})
    return rows
