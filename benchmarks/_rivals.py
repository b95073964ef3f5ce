"""What else mixes tokens by place on a GPU, grids of every size, and content with place: tables of benchmarks/gaussian.py.

Depthwise convolutions of 7×7, 17×17 and 31×31 (cuDNN), DCLS (whose nine taps move inside a 17×17 window, as our centers
do; from PyPI) and NATTEN's neighborhood attention where they are installed, a convolution by FFT, and FlexAttention with our
score. Only the last computes the same function as a Gaussian head; each takes the same values and gives gradients of all it
learns (FlexAttention of values alone). Convolutions are measured in both layouts of an image, and the faster one counts.
"""

import functools
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from _floor import TENSORS, device_milliseconds, graph_milliseconds
from _measure import Limit
from regard.functional import attention, gaussian_attention, placed_attention

HEADS, WIDTH, TOKENS = 9, 64, 131072
CHANNELS = HEADS * WIDTH
LAYOUTS = {"channels first": torch.contiguous_format, "channels last": torch.channels_last}
SIZES = [(32, 32), (64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024), (131072,), (1 << 20,), (16, 64, 64)]
Step = Callable[[], Any]
Steps = dict[str, Step]


def inputs(grid: tuple[int, ...], sharpness: float, device: str = "cuda") -> tuple[torch.Tensor, ...]:
    """Value, what comes from above, center and sharpness; on a GPU in bfloat16, about 131 k tokens in all, on a CPU one image in
    float32."""
    torch.manual_seed(0)
    tokens, cpu = math.prod(grid), device == "cpu"
    shape = (1 if cpu else max(1, TOKENS // tokens), HEADS, tokens, WIDTH)
    value = torch.randn(shape, device=device, dtype=torch.float32 if cpu else torch.bfloat16).requires_grad_()
    center = (2 * torch.randn(HEADS, len(grid), device=device)).requires_grad_()
    alpha = torch.full((HEADS,), sharpness, device=device).requires_grad_()
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


def rivals() -> dict[str, Callable[[int], Steps]]:
    """What there is here, the slowest last: from a grid's side to forward and backward passes, by the layout of an image."""
    found: dict[str, Callable[[int], Steps]] = {"ours": our_step}
    found |= {f"depthwise {size}×{size}": functools.partial(depthwise_steps, size) for size in (7, 17)}
    found["FFT 31×31"] = fft_steps
    if importlib.util.find_spec("DCLS") is not None:
        found["DCLS 17×17"] = dcls_steps
    if importlib.util.find_spec("natten") is not None:
        found["NATTEN 7×7"] = natten_step
    return found | {"depthwise 31×31": functools.partial(depthwise_steps, 31), "FlexAttention": flex_step}


def our_step(side: int) -> Steps:
    value, above, center, alpha = inputs((side, side), 0.5)
    wanted = (value, center, alpha)
    return {"": lambda: torch.autograd.grad(gaussian_attention(*wanted, (side, side)), wanted, above)}


def image_steps(side: int, forward: Callable[[torch.Tensor], torch.Tensor], *learned: torch.Tensor) -> Steps:
    """The same values as one image of all heads' channels, in both layouts."""
    value = inputs((side, side), 0.5)[0]
    image = value.detach().reshape(len(value), side, side, -1).permute(0, 3, 1, 2)

    def step(layout: torch.memory_format) -> Step:
        laid_out = image.contiguous(memory_format=layout).requires_grad_()
        upstream = torch.randn_like(laid_out)
        return lambda: torch.autograd.grad(forward(laid_out), (laid_out, *learned), upstream)

    return {name: step(layout) for name, layout in LAYOUTS.items()}


def depthwise_steps(size: int, side: int) -> Steps:
    weight = torch.randn(CHANNELS, 1, size, size, device="cuda", dtype=torch.bfloat16).requires_grad_()
    return image_steps(side, lambda x: F.conv2d(x, weight, padding=size // 2, groups=CHANNELS), weight)


def fft_steps(side: int) -> Steps:
    taps = torch.randn(CHANNELS, 31, 31, device="cuda").requires_grad_()
    return image_steps(side, lambda x: fft_convolution(x, taps), taps)


def dcls_steps(side: int) -> Steps:
    from DCLS.construct.modules import Dcls2d  # type: ignore[import-not-found]

    layer = Dcls2d(
        CHANNELS, CHANNELS, kernel_count=9, dilated_kernel_size=17, padding=8, groups=CHANNELS, version="gauss"
    ).to("cuda", torch.bfloat16)
    return image_steps(side, layer, *layer.parameters())


def natten_step(side: int) -> Steps:
    import natten  # type: ignore[import-not-found]

    shape = (max(1, TOKENS // side**2), side, side, HEADS, WIDTH)
    wanted = [torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
    above = torch.ones_like(wanted[0])
    return {"": lambda: torch.autograd.grad(natten.na2d(*wanted, kernel_size=7), wanted, above)}


def flex_step(side: int) -> Steps:
    """FlexAttention with the score, compiled, positions fixed: it has the gradient of values alone, for that of nine centers
    takes seconds."""
    from torch.nn.attention.flex_attention import flex_attention

    value, above, center, alpha = (x.detach() for x in inputs((side, side), 0.5))
    down, right = center.unbind(1)
    value.requires_grad_()
    zeros = torch.zeros_like(value)

    def score(
        content: torch.Tensor, b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor
    ) -> torch.Tensor:
        rows, columns = k // side - q // side - down[h], k % side - q % side - right[h]
        return content - alpha[h] * (rows * rows + columns * columns)

    attend = torch.compile(flex_attention, dynamic=False)
    return {"": lambda: torch.autograd.grad(attend(zeros, zeros, value, score_mod=score), value, above)}


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


def rival_rows(sides: Sequence[int], limit: Limit) -> list[dict[str, Any]]:
    """A row for each grid; one rival after the other, so that a time limit leaves out the slowest."""
    rows: list[dict[str, Any]] = [{"grid": f"{side}²"} for side in sides]
    for name, make in rivals().items():
        for side, row in zip(sides, rows, strict=True):
            if limit.allows(f"{name} at {side}²"):
                try:
                    found = {layout: time_and_memory(step, side) for layout, step in make(side).items()}
                    fastest = min(found, key=lambda layout: found[layout][0])
                    row[name], row[f"{name}, memory"] = found[fastest]
                    row |= {f"{name}, layout": fastest} if fastest else {}
                except Exception as error:
                    print(f"{name} does not run at {side}²: {type(error).__name__}: {str(error)[:120]}", flush=True)
                    row[name] = None
                torch.cuda.empty_cache()
        print(name, [row.get(name) for row in rows], flush=True)
    return rows


def time_and_memory(step: Step, side: int) -> tuple[float, float]:
    """Milliseconds of the device, forward and backward, and peak memory in value tensors."""
    taken = patient_milliseconds(step)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    size = max(1, TOKENS // side**2) * side**2 * CHANNELS * 2
    return round(taken, 3), round((torch.cuda.max_memory_allocated() - before) / size, 1)


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
