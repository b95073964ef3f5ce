"""The kernels launched on a card that is not there: compiled for it, and refused where it has too little room.

``python absent_card.py ARCHITECTURE SHARED_BYTES CASES`` takes the cases as JSON and prints, for each, what was compiled
and what room it needs. Not run under Triton's interpreter, which compiles nothing.
"""

import json
import math
import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.errors import CompilationError
from triton.runtime import driver

from regard.data import Augmentation
from regard.data._fused import Drawn, fused_batch
from regard.functional import _wide_heads, kernels
from regard.functional.kernels import _plain

HEADS = 3


class Card:
    """As much of a driver as Triton asks for on the way to a launch; the launch itself does nothing."""

    def __init__(self, architecture, shared):
        self.target, self.shared = GPUTarget("cuda", architecture, 32), shared
        self.utils = self
        self.seen = []

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def get_current_stream(self, _):
        return 0

    def get_device_properties(self, _):
        return {"max_shared_mem": self.shared}

    def launcher_cls(self, source, metadata):
        self.seen.append({"kernel": source.fn.__name__, "shared": metadata.shared, "fits": False})
        return lambda *_: None

    def load_binary(self, *_):
        self.seen[-1]["fits"] = True
        return "module", "function", 0, 0, 1024

    def unload_module(self, _):
        pass


def attend(grid, width, dtype, value_heads=HEADS, outputs=None, learned="both"):
    """Forward and backward, as in eager use."""
    value = torch.zeros(2, value_heads, math.prod(grid), width, dtype=getattr(torch, dtype))
    learnable = [torch.zeros(HEADS, len(grid)), torch.zeros(HEADS, len(grid))]
    if outputs is not None:
        learnable = [torch.zeros(HEADS, m, k) for m, k in zip(outputs, grid, strict=True)]
    value.requires_grad_(learned != "heads")
    for tensor in learnable:
        tensor.requires_grad_(learned != "value")
    if outputs is None and kernels.is_small_plane(tuple(grid)):
        out = kernels.gaussian_plane(value, *learnable, tuple(grid))
    elif outputs is None:
        out = kernels.gaussian_grid(value, *learnable, tuple(grid))
    else:
        out = kernels.mix_plane(value, *learnable)
    out.sum().backward()


def map_of(tokens, width, dtype, cells=128, **options):
    """The weights of a map, and its overview."""
    dtype = getattr(torch, dtype)
    query, key = torch.zeros(1, 4, tokens, width, dtype=dtype), torch.zeros(1, 2, tokens, width, dtype=dtype)
    everyone = torch.ones(1, tokens, dtype=torch.bool)
    given = kernels.ScoreTensors(
        query,
        key,
        torch.zeros(1, 4, tokens),
        width**-0.5,
        torch.zeros(1),
        None,
        options.get("right"),
        (everyone, everyone) if options.get("padded") else None,
        options.get("softcap", 0.0),
        torch.ones(1, 4) if options.get("sloped") else None,
    )
    cell = -(-tokens // cells)
    kernels.overview(given, (cell, cell), 4)
    kernels.packed_overview(given, (cell, cell), 4, key, query, (0, 1, 2, 3))
    for alone in (False, True):
        kernels.write_weights(given, key, query, dtype, alone)


def decay(side, size, width, dtype):
    """An average along one axis that decays, forward and backward."""
    value = torch.zeros(2, HEADS, size, width, dtype=getattr(torch, dtype), requires_grad=True)
    rate = torch.zeros(HEADS, requires_grad=True)
    kernels.decayed_average(value, rate, side, lambda value, rate: value * rate[:, None, None]).sum().backward()


def place(placed, width, dtype, prefix=0, causal=False):
    """Positions beside content, and what their gradients need."""
    placed = tuple(placed)
    tensors = [torch.zeros(1, HEADS, prefix + math.prod(placed), width, dtype=getattr(torch, dtype)) for _ in range(3)]
    heads = kernels.three_axes(torch.zeros(HEADS, len(placed)), torch.zeros(HEADS, len(placed), len(placed)), placed)
    keep = torch.ones(1, tensors[0].shape[2], dtype=torch.bool) if causal else None
    far = None if keep is None else torch.zeros(HEADS, dtype=torch.float64)
    carriers = kernels.Carriers.of(placed, prefix, causal, tensors[0].dtype)
    if tensors[0].dtype in kernels.PIECES:
        masks = (keep, keep, far)
        kernels.JoinColumns.apply(*tensors[:2], heads, *masks, carriers, prefix, 0.125, width + 16)
        kernels.PadColumns.apply(tensors[2], width + 16)
    for sums in (torch.zeros(1, HEADS, tensors[0].shape[2]), None)[: 1 + causal]:
        kernels.place_moments(tensors[0], tensors[0], tuple(tensors), sums, heads, keep, prefix, 0.125, causal)


def interpolate(wide, nodes, width, dtype, value_heads=HEADS):
    """Wide heads by way of a few nodes per axis, forward and backward."""
    value = torch.zeros(2, value_heads, math.prod(wide), width, dtype=getattr(torch, dtype), requires_grad=True)
    heads = [torch.zeros(HEADS, len(wide), requires_grad=True) for _ in range(2)]
    axes = tuple(
        _wide_heads.WideAxis(torch.arange(float(n)), n, m, "native", (0, 0)) for n, m in zip(wide, nodes, strict=True)
    )
    _wide_heads._ByKernels.apply(value, *heads, axes, _wide_heads._form(value, *heads, axes)).sum().backward()


def convert(converted, channels, dtype, stride=1):
    """One convolution's attention, forward and backward along its axes."""
    x = torch.zeros(2, 1, channels, converted, converted, dtype=getattr(torch, dtype))
    outputs = (converted - 1) // stride + 1
    matrix = torch.zeros(3, outputs, converted, dtype=x.dtype)
    y = x.new_zeros(channels, 3, 2, outputs, converted).permute(2, 1, 0, 3, 4)
    kernels.axis_taps(x.mT, matrix, y.mT)
    kernels.axis_taps(y.mT, matrix, x.mT, back=True)
    kernels.axis_taps(
        x.new_zeros(2, 3, channels, converted, converted),
        matrix,
        x.new_zeros(2, 1, channels, converted, outputs),
        bias=x.new_zeros(channels),
    )


def augment(images, dtype, **augmentation):
    """A batch of augmented images: bytes (n, channels, height, width)."""
    chosen, (count, channels, *_) = Augmentation(**augmentation), images
    pixels = torch.zeros(images, dtype=torch.uint8)
    column = torch.zeros(count, dtype=torch.long)
    drawn = Drawn(torch.zeros(count, 13, dtype=torch.int32), torch.zeros(count, 8))
    out = torch.zeros(images, dtype=getattr(torch, dtype))
    affine = torch.ones(channels, 1, 1), torch.ones(channels, 1, 1)
    fused_batch(pixels, column, column, drawn, chosen, affine, 10, out)


@triton.jit
def branches_of_unequal_shapes(target, SMALL: tl.constexpr, LARGE: tl.constexpr):
    if tl.program_id(0) == 0:
        i = tl.arange(0, SMALL)
        tl.store(target + i, i)
    else:
        i = tl.arange(0, LARGE)
        tl.store(target + i, i)


def refuses_what_does_not_compile():
    try:
        branches_of_unequal_shapes[2,](torch.zeros(64, dtype=torch.int32), SMALL=16, LARGE=64)
    except CompilationError:
        return True
    return False


def main():
    card = Card(int(sys.argv[1]), int(sys.argv[2]))
    driver.set_active(card)
    mix, matrix_gradient = _plain.mix, _plain.matrix_gradient

    def noted(function):
        def call(*tensors):
            card.seen.append({"kernel": "plain", "shared": 0, "fits": True})
            return function(*tensors)

        return call

    _plain.mix, _plain.matrix_gradient = noted(mix), noted(matrix_gradient)
    found = []
    for case in json.loads(sys.argv[3]):
        card.seen = []
        kinds = {
            "side": decay,
            "tokens": map_of,
            "placed": place,
            "wide": interpolate,
            "converted": convert,
            "images": augment,
        }
        next((run for name, run in kinds.items() if name in case), attend)(**case)
        found.append(card.seen)
    print(json.dumps({"launches": found, "refuses": refuses_what_does_not_compile()}))


if __name__ == "__main__":
    main()
