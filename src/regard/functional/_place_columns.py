"""Extra columns of queries and keys whose dot product is the position's score. Each entry is exact in the dtype."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.functional._place_moments import coordinates
from regard.functional.kernels import PIECES, Carriers, Heads, JoinColumns, PadColumns, three_axes, usable_for_places
from regard.support.checks import values_are_readable
from regard.support.tensor_cache import constant

# The score of a hidden key is lowered by this number plus twice the largest score of a position.
HIDDEN = 2.0**18


class JoinedColumns(NamedTuple):
    """The inputs of the fused kernel. ``heads`` and ``longest`` are reused by the gradients of positions, if known."""

    query: Tensor
    key: Tensor
    value: Tensor
    heads: Heads | None = None
    longest: Tensor | None = None  # squared norm of the longest key of each item, head and block of tokens


def joined(
    query: Tensor, key: Tensor, value: Tensor, center: Tensor, matrix: Tensor, keep: Tensor | None, seen: Tensor | None,
    grid: tuple[int, ...], prefix: int, beta: float, apart: bool, causal: bool = False,
) -> "JoinedColumns":  # fmt: skip
    """Queries and keys with position columns, and values, padded to the width that the fused kernel needs.

    Args:
        keep: True for keys that exist.
        seen: True for queries that see any key. The others attend to all keys, hidden or not: with only hidden keys, a row's
            logsumexp would be rounded at the size of a very large score, and the backward pass exponentiates that error.
        apart: whether gradients of positions are computed outside of the kernel.
        causal: as passed to the fused kernel; torch's choice of a kernel depends on it.
    """
    exact = torch.bfloat16 if products_are_rounded(query) else query.dtype
    carriers = Carriers.of(grid, prefix, keep is not None, exact)
    far = None
    if keep is not None:
        far = (HIDDEN + 2 * largest_score(center, matrix, grid)) / (beta * carriers.one)
        far = far.clamp_max(torch.finfo(exact).max / 2)
    step = 16 if query.is_cuda else 8  # cuDNN is faster with multiples of 16, other kernels need multiples of 8
    total = max(-(-(query.shape[-1] + carriers.columns) // step) * step, value.shape[-1])
    eager = not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0
    if apart and eager and value.shape[-1] == query.shape[-1] and usable_for_places(query, grid):
        rest = far, carriers, prefix, beta, total
        heads = three_axes(center, matrix, grid)
        wide_query, wide_key, longest = JoinColumns.apply(query, key, heads, seen, keep, *rest)
        narrow = values_stay_narrow(wide_query, wide_key, value, causal)
        wide_value = value if narrow else PadColumns.apply(value, total)
        return JoinedColumns(wide_query, wide_key, wide_value, heads, longest)
    ours, theirs = position_columns(center, matrix, grid, prefix, beta, exact)
    if exact is torch.float16 and values_are_readable(ours) and not (ours.isfinite().all() and theirs.isfinite().all()):
        raise ValueError(
            f"sharpness and center give scores on grid {grid} that float16 cannot hold with beta {beta}: "
            "use bfloat16 or float32"
        )
    sides = [[x, part.to(x.dtype).expand(x.shape[0], -1, -1, -1)] for x, part in ((query, ours), (key, theirs))]
    if far is not None and keep is not None and seen is not None:
        shape = (-1, query.shape[1], -1, -1)
        sides[0].append((carriers.one * seen[:, None, :, None]).to(query.dtype).expand(shape))
        lower = -far.to(key.dtype).reshape(1, -1, 1, 1)
        sides[1].append(torch.where(keep[:, None, :, None], torch.zeros_like(lower), lower))
    made = [torch.cat(parts, -1) for parts in sides] + [value]  # fused kernels need one width, a multiple of 8
    first, second, third = (F.pad(x, (0, total - x.shape[-1])) for x in made)
    return JoinedColumns(first, second, third)


def values_stay_narrow(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    """Whether torch chooses cuDNN's kernel, whose values may be narrower; other kernels need one width for all three."""
    if not query.is_cuda:
        return False
    return bool(torch._fused_sdp_choice(query, key, value, is_causal=causal) == SDPBackend.CUDNN_ATTENTION.value)


def products_are_rounded(query: Tensor) -> bool:
    """Whether float32 may be multiplied as TF32, which has as few digits as float16."""
    if query.dtype is not torch.float32 or not query.is_cuda or torch.compiler.is_compiling():
        return False
    return bool(torch.backends.cuda.matmul.fp32_precision == "tf32")


def largest_score(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Float[Tensor, " heads"]:
    """An upper bound on the absolute value of each head's position scores."""
    reach = constant([n - 1.0 for n in grid], center.device, center.dtype) + center.detach().abs()
    return torch.einsum("ha,hab,hb->h", reach, matrix.detach().abs(), reach)


def position_columns(
    center: Tensor, matrix: Tensor, grid: tuple[int, ...], prefix: int, beta: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "1 heads tokens columns"], Float[Tensor, "1 heads tokens columns"]]:
    """The position columns of queries and of keys, divided by β because the kernel multiplies scores by β.

    In half precision a coordinate is a sum of digits and a coefficient a sum of three pieces, all exact in the dtype; each
    digit is multiplied by each piece, in a column of its own.
    """
    place, heads = coordinates(grid, center), center.shape[0]
    target = place + center[:, None, :]  # (heads, tokens, axes)
    carriers, count = Carriers.of(grid, prefix, False, dtype), PIECES.get(dtype, 1)
    # S + Sᵀ instead of 2S: the same value, but the gradient is symmetric, like that of the score.
    both = torch.einsum("hab,htb->hta", matrix + matrix.mT, target)
    of_key = -torch.einsum("ta,hab,tb->ht", place, matrix, place)
    ones = torch.ones_like(of_key)
    ours: list[Tensor] = []
    theirs: list[Tensor] = []
    for a in range(len(grid)):
        coefficient = pieces(both[..., a] / (beta * carriers.axes[a]), dtype, count, carriers.step)
        for digit in carriers.digits_of(place[:, a], a):
            ours += coefficient
            theirs += copies((carriers.axes[a] * digit).expand(heads, -1), dtype, count, carriers.step)
    ours += copies(carriers.one * ones, dtype, count, carriers.step)
    theirs += pieces(of_key / (beta * carriers.one), dtype, count, carriers.step)
    if prefix:  # softmax ignores the term tᵀSt of a query, unless some keys have no position and lack it
        of_row = (torch.einsum("hab,htb->hta", matrix, target) * target).sum(-1)
        ours += pieces(of_row / (beta * carriers.one), dtype, count, carriers.step)
        theirs += copies(-carriers.one * ones, dtype, count, carriers.step)
    made = (torch.stack(columns, -1)[None] for columns in (ours, theirs))
    query, key = (F.pad(columns, (0, 0, prefix, 0)) for columns in made)
    return query, key


def pieces(x: Tensor, dtype: torch.dtype, count: int, step: float) -> list[Tensor]:
    """Numbers p₀, p₁, … of the dtype with x ≈ p₀ + p₁ / step + p₂ / step² + …; only p₀ carries the gradient."""
    found = [x.to(dtype)]
    rest = x.detach()
    for _ in range(count - 1):
        rest = (rest - found[-1].detach().to(rest.dtype)) * step
        found.append(rest.to(dtype))
    return found


def copies(x: Tensor, dtype: torch.dtype, count: int, step: float) -> list[Tensor]:
    """The factors for the pieces of a coefficient: x, x / step, x / step², …"""
    return [(x * step**-piece).to(dtype) for piece in range(count)]
