"""How close Gaussian attention on a GPU comes to the limit of its memory bandwidth.

The forward and backward pass must at least read the values, write the outputs, read the gradient of the outputs and the
values again, and write the gradient of the values: five tensors. The time for that at the measured copy bandwidth of the
device is the floor.

Times are device times: each candidate is captured into a CUDA graph and replayed, so they contain no host work. ``eager``
is an ordinary call, which includes host work where that takes longer.
"""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from regard.layers import GaussianAttention

TENSORS = 5


def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes read plus bytes written per second, by a large copy on the device."""
    source = torch.randint(0, 255, (size,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * size / (1e-3 * device_milliseconds(lambda: target.copy_(source)))


def device_milliseconds(call: Callable[[], Any], repeats: int = 20) -> float:
    """The median of event-timed calls, one after the other."""
    for _ in range(3):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)


def graph_milliseconds(call: Callable[[], Any]) -> float:
    """Of the work that a call leaves to the device alone."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return device_milliseconds(graph.replay)


def floor_row(
    grid: str, value_bytes: int, candidates: Mapping[str, Callable[[], Any] | None], bandwidth: float
) -> dict[str, Any]:
    floor = 1e3 * TENSORS * value_bytes / bandwidth
    row: dict[str, Any] = {"grid": grid, "floor": round(floor, 4)}
    for name in ("ours", "flash", "depthwise"):
        call = candidates[name]
        row[name] = None if call is None else round(graph_milliseconds(call), 4)
    ours = candidates["ours"]
    row["ours, eager"] = None if ours is None else round(device_milliseconds(ours), 4)
    row["ours / floor"] = round(row["ours"] / floor, 2)
    row["flash / ours"] = round(row["flash"] / row["ours"], 1)
    return row


def full_width_row(dim: int = 384, side: int = 16, batch: int = 512, heads: int = 9) -> dict[str, Any]:
    """A layer of full-width heads beside a 3×3 convolution with as many weights: forward and backward, bfloat16."""
    torch.backends.cudnn.benchmark = True
    x = torch.randn(batch, side * side, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn_like(x)
    layer = GaussianAttention(dim, heads, full_width=True, init="grid").cuda().bfloat16()
    layer.positions.float()
    conv = nn.Conv2d(dim, dim, 3, padding=1).cuda().bfloat16().to(memory_format=torch.channels_last)
    image = x.detach().unflatten(1, (side, side)).permute(0, 3, 1, 2).requires_grad_()
    above = upstream.unflatten(1, (side, side)).permute(0, 3, 1, 2)
    layer_inputs, conv_inputs = [x, *layer.parameters()], [image, *conv.parameters()]
    ours = graph_milliseconds(lambda: torch.autograd.grad(layer(x, (side, side)), layer_inputs, upstream))
    theirs = graph_milliseconds(lambda: torch.autograd.grad(conv(image), conv_inputs, above))
    return {
        "layer": f"{heads} heads × {dim} on {side}², batch {batch}",
        "attention": round(ours, 3),
        "convolution": round(theirs, 3),
        "ratio": round(ours / theirs, 2),
    }
