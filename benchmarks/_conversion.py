"""Convolutions and the attention that they convert to, forward and backward, time and memory: a table of benchmarks/gaussian.py.

In float32, and on a GPU in bfloat16, too. Float32 is float32 throughout: a GPU's convolution would else be computed in TF32,
and the attention's products not. ``ratio`` is called from Python, ``device ratio`` leaves the host out.
"""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch

from _floor import graph_milliseconds
from _measure import Limit, milliseconds, ratios, side_by_side
from regard import conv_to_attention

CONVERTED: dict[str, dict[str, Any]] = {"zeros": {}, "reflect": {"padding_mode": "reflect"}, "stride 2": {"stride": 2}}
KINDS = ("conv", "attention", "taps")


def conversion_steps(
    channels: int, side: int, device: str, case: str, dtype: torch.dtype = torch.float32
) -> dict[str, Callable[[], None]]:
    conv = torch.nn.Conv2d(channels, channels, 3, padding=1, device=device, dtype=dtype, **CONVERTED[case])
    items = 8 if device == "cpu" else 128
    x = torch.randn(items, channels, side, side, device=device, dtype=dtype, requires_grad=True)
    above = torch.randn_like(conv(x))

    def step(layer: torch.nn.Module) -> Callable[[], None]:
        inputs = [x, *layer.parameters()]
        return lambda: [torch.autograd.grad(layer(x), inputs, above)].clear()

    layers = (conv, conv_to_attention(conv, plan="attention"), conv_to_attention(conv, plan="taps"))
    return {kind: step(layer) for kind, layer in zip(KINDS, layers, strict=True)}


def conversion(options: Namespace, limit: Limit, peak: Callable[[int, str, str], int | None]) -> list[dict[str, Any]]:
    """``peak``: bytes of a workload, as gaussian.py measures them."""
    allowed, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    on_cpu = options.device == "cpu"
    rows = []
    for dtype in (torch.float32,) if on_cpu else (torch.bfloat16, torch.float32):
        for channels, side in ((64, 32), (256, 8 if on_cpu else 16)):
            for case in CONVERTED:
                name = f"{channels}→{channels}, 3×3 on {side}², {case}" + ("" if on_cpu else f", {str(dtype)[6:]}")
                if limit.allows(name):
                    steps = conversion_steps(channels, side, options.device, case, dtype)
                    rows.append({"layer": name, **conversion_row(steps, options)})
                    for kind in KINDS:
                        found = peak(side, f"{kind}:{channels}:{case}:{str(dtype)[6:]}", options.device)
                        rows[-1][f"{kind} MiB"] = round((found or 0) / 2**20, 1)
    torch.backends.cudnn.allow_tf32 = allowed
    return rows


def conversion_row(steps: dict[str, Callable[[], None]], options: Namespace) -> dict[str, Any]:
    times = side_by_side(steps, rounds=options.rounds, device=options.device, patience=options.patience)
    longer = ratios(times, "conv")
    row: dict[str, Any] = {
        **milliseconds(times), "ratio": round(longer["attention"], 2), "taps ratio": round(longer["taps"], 2)
    }  # fmt: skip
    if options.device != "cpu":
        device = {kind: graph_milliseconds(step) for kind, step in steps.items()}
        row["device ratio"] = round(device["attention"] / device["conv"], 2)
        row["device taps ratio"] = round(device["taps"] / device["conv"], 2)
    return row
