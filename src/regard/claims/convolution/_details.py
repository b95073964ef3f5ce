"""Padding, dilation and stride."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import convert, functional, reference
from regard.claims._claim import Evidence, holds
from regard.claims._pictures import matrices
from regard.claims._shifts import SHARP, shifts
from regard.claims._trials import Comparison, full, trials
from regard.functional import Border


@holds("a6-padding", "question 1 (e.1)", says="replicate", mutant=("the padding values are zeros", "zeros"))
def padding(values: str) -> Evidence:
    r"""Attention over the pixels that exist equals, in the sharp limit, the convolution with $\lfloor K/2 \rfloor$
    and $\lfloor (K-1)/2 \rfloor$ pixels of padding before and after each axis, so that the size stays, and the
    *nearest* pixel as the padding value; with other values the padding must be among the keys.

    One output per pixel means that sizes must stay: $K - 1$ pixels of padding in all. A head whose pixel is outside
    the image still has weights that sum to one, and they go to the nearest pixel: replicate padding. Zero padding
    would need a head that attends to nothing. Padded pixels that are keys can have any value: for zeros, reflect,
    replicate and circular padding of any size `conv_to_attention` attends to the padded coordinates and is within its
    bound. Without padding ("valid") the two agree where the window is inside.
    """
    found = Comparison()
    for trial in trials(8):
        kernel, size = trial.size(2, 4), 6
        weight, image = trial.normal(1, 1, kernel, kernel), trial.normal(1, 1, size, size)
        center = torch.tensor(shifts(kernel)).double()
        value = image.reshape(1, 1, size * size, 1).expand(1, len(center), -1, -1)
        heads = functional.gaussian_attention(value, center, full(SHARP, len(center)), (size, size))
        out = torch.einsum("bhnd,h->bn", heads, weight.flatten()).reshape(1, 1, size, size)
        pads = [(kernel // 2, (kernel - 1) // 2)] * 2
        convolved = reference.convolution(image, weight, padding=pads, padding_mode=values)
        error = float((out - convolved).abs().max())
        found.same(out, convolved, f"K = {kernel}, {values}: off by {error:.2g} at the border")
        for mode in ("zeros", "reflect", "replicate", "circular"):
            for pad in range(3):
                conv = nn.Conv2d(1, 1, kernel, padding=pad, padding_mode=mode).double()
                attention = convert.conv_to_attention(conv, tolerance=1e-7)
                off = float((attention(image) - conv(image)).detach().abs().max())
                found.true(off <= attention.error_bound(image), f"{mode}, {pad} pixels: beyond the bound")
    borders: tuple[Border, ...] = ("native", "zeros", "circular")
    seen: dict[str, Tensor] = {border: _shift_map(4, border) for border in borders}
    return found.evidence("paddings", draw=matrices("A head that looks one to the right, 4 pixels", seen))


def _shift_map(size: int, border: Border) -> Tensor:
    pads = None if border == "native" else [(1, 1)]
    center = torch.ones(1, 1).double()
    return functional.gaussian_weights(center, full(SHARP, 1), (size,), border=border, padding=pads)[0]


@holds(
    "a6-dilation",
    "question 1 (e.2)",
    says=lambda shift, dilation: shift * dilation,
    mutant=("heads stay at the shifts of the undilated kernel", lambda shift, dilation: shift),
)
def dilation(place: Callable[[int, int], int]) -> Evidence:
    r"""Yes: $K^2$ heads express a convolution with any dilation $D$, by looking at $D \, \delta$ instead of $\delta$,
    as long as those places are inside the image.

    Nothing in the construction needs neighboring shifts: $\Delta$ can be any vector. The number of heads stays $K^2$,
    and one layer can even have a dilation of its own for each head. Only the image size limits it: a shift that
    leaves the image from every query never finds its pixel. The check compares sharp heads with dilated convolutions
    inside the image, and `conv_to_attention` everywhere.
    """
    found = Comparison()
    for trial in trials(8):
        kernel, step = 1 + trial.size(1, 2), 1 + trial.size(1, 2)
        size = step * (kernel - 1) + 4
        weight, image = trial.normal(1, 1, kernel, kernel), trial.normal(1, 1, size, size)
        center = torch.tensor([[place(a, step), place(b, step)] for a, b in shifts(kernel)]).double()
        value = image.reshape(1, 1, size * size, 1).expand(1, len(center), -1, -1)
        heads = functional.gaussian_attention(value, center, full(SHARP, len(center)), (size, size))
        out = torch.einsum("bhnd,h->bn", heads, weight.flatten()).reshape(size, size)
        convolved = reference.convolution(image, weight, dilation=step)[0, 0]
        before = step * (kernel // 2)
        inside = slice(before, before + len(convolved))
        found.same(out[inside, inside], convolved, f"K = {kernel}, dilation {step}")
        conv = nn.Conv2d(1, 1, kernel, dilation=step, padding=trial.size(0, 2)).double()
        attention = convert.conv_to_attention(conv, tolerance=1e-7)
        off = float((attention(image) - conv(image)).detach().abs().max())
        found.true(off <= attention.error_bound(image), "beyond the bound")
    return found.evidence("kernels")


class Stride(NamedTuple):
    """Where the queries are, for an image of so many pixels and a stride; and how the heads' shifts are scaled."""

    queries: Callable[[int, int], Tensor]


@holds(
    "a6-stride",
    "question 1 (e.3)",
    says=Stride(lambda size, stride: torch.arange(0, size, stride).double()),
    mutant=(
        "self-attention with a query at every pixel does it",
        Stride(lambda size, stride: torch.arange(size).double()),
    ),
)
def stride(where: Stride) -> Evidence:
    r"""Self-attention by itself has one output per pixel and cannot skip any; with queries at every $s$-th pixel (or
    the other outputs thrown away) it is the convolution with stride $s$.

    A strided convolution keeps every $s$-th output of the plain convolution. Attention computes each query's output
    separately, so the other outputs need not be computed: only the *queries* are subsampled, and every key stays.
    That is attention from a coarser grid to a finer one, no longer self-attention in the strict sense. (A following
    layer can learn to ignore outputs, but the layer itself cannot omit them.)
    """
    found = Comparison()
    for trial in trials(8):
        kernel, step = 1 + 2 * trial.size(0, 1), 1 + trial.size(1, 2)
        size = 7 + trial.size(0, 3)
        weight, image = trial.normal(1, 1, kernel, kernel), trial.normal(1, 1, size, size)
        center = torch.tensor(shifts(kernel)).double()
        value = image.reshape(1, 1, size * size, 1).expand(1, len(center), -1, -1)
        at = where.queries(size, step)
        heads = functional.gaussian_attention(value, center, full(SHARP, len(center)), (size, size), queries=[at, at])
        out = torch.einsum("bhnd,h->bn", heads, weight.flatten()).reshape(len(at), len(at))
        pads = [(kernel // 2, (kernel - 1) // 2)] * 2
        convolved = reference.convolution(image, weight, stride=step, padding=pads, padding_mode="replicate")[0, 0]
        found.same(
            out,
            convolved,
            f"stride {step}: {len(convolved)}×{len(convolved)} outputs of the convolution, {len(out)}×{len(out)} of attention",
        )
        conv = nn.Conv2d(1, 1, kernel, stride=step, padding=kernel // 2).double()
        attention = convert.conv_to_attention(conv, tolerance=1e-7)
        off = float((attention(image) - conv(image)).detach().abs().max())
        found.true(off <= attention.error_bound(image), "beyond the bound")
    return found.evidence("kernels")
