"""Content and place together on the stock fused kernel: Gaussian scores as a few more columns of queries and keys."""

import math
from collections.abc import Sequence

import torch
import torch.autograd.forward_ad as fwAD
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.functional._attention import attention
from regard.functional._call import resolve
from regard.functional._place_gradient import PlaceGradient
from regard.functional._place_moments import coordinates
from regard.functional.kernels import HALF_SCALE, PIECES, JoinColumns, three_axes, usable_for_places
from regard.support.checks import (
    check_flag,
    check_grid,
    check_ndim,
    check_tensor,
    describe,
    is_exporting,
    under_autocast,
)


def placed_attention(
    query: Float[Tensor, "batch heads tokens width"],
    key: Float[Tensor, "batch heads tokens width"],
    value: Float[Tensor, "batch heads tokens value_width"],
    center: Float[Tensor, "heads axes"],
    sharpness: Float[Tensor, "heads ..."],
    grid: Sequence[int],
    *,
    prefix: int = 0,
    beta: float | None = None,
    keep: Bool[Tensor, "batch tokens"] | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    r"""Attention by content and position, in memory linear in tokens.

    .. math:: s_{qk} = \beta\, q^\top k - (\delta - \Delta)^\top S\, (\delta - \Delta), \qquad \delta = k_{pos} - q_{pos}

    With t = q_pos + Δ the position's part is :math:`2 (S t)^\top k_{pos} - k_{pos}^\top S k_{pos} - t^\top S t`: products
    of something of the query and something of the key, so they are columns beside the content's, and the kernel that
    everyone has computes the sum. Class tokens before the grid have no position: their columns are zero, and the pair's
    score is its content alone. In half precision coordinates are counted from the grid's middle, where they are exact,
    and each coefficient is a sum of three numbers; gradients of center and sharpness are then taken beside the kernel, from
    scores made again in float32, for its own would be lost to rounding (with dropout, of which it alone knows what it
    dropped, they still are).

    Args:
        query, key, value: ``(batch, heads, prefix + tokens of the grid, width)``, the grid in row-major order.
        center, sharpness: as for :func:`regard.gaussian_attention`, the full matrix S included.
        grid: the size of each axis.
        prefix: how many tokens without a position come first.
        beta: of the content, ``1/√width`` by default; positive.
        keep: ``(batch, tokens)``, True = attend: keys that exist. A query that sees none gives zeros.
        causal: in the order of tokens, which on a grid is raster order.
        dropout: probability of dropping a weight.
        return_weights: also return the map, which then is formed.

    >>> q, k, v = (torch.randn(1, 2, 13, 4) for _ in range(3))                  # a class token and a 3 × 4 grid
    >>> placed_attention(q, k, v, torch.zeros(2, 2), torch.ones(2), (3, 4), prefix=1).shape
    torch.Size([1, 2, 13, 4])
    """
    check_flag("causal", causal)
    check_flag("return_weights", return_weights)
    tokens = check_placed(query, key, value, center, grid, prefix, beta, keep)
    call = resolve(center, sharpness, grid, None, "native", None)
    beta = max(query.shape[-1], 1) ** -0.5 if beta is None else float(beta)
    matrix = call.sharpness.double()
    if matrix.ndim < 3:
        matrix = torch.diag_embed(call.axis_sharpness.double())
    if return_weights:
        bias = F.pad(position_scores(call.center.double(), matrix, call.grid), (prefix, 0, prefix, 0))
        hidden = None if keep is None else keep[:, None, None, :].expand(-1, query.shape[1], tokens, -1)
        return attention(
            query, key, value, beta=beta, bias=bias[None].to(query.dtype), keep=hidden, causal=causal, dropout=dropout,
            return_weights=True,
        )  # fmt: skip
    if under_autocast(query):
        lowered = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(lowered) for x in (query, key, value))
    places = call.center.double(), matrix
    apart = has_own_gradient(query, dropout)
    fixed = (places[0].detach(), places[1].detach()) if apart else places
    wide = joined(query, key, value, *fixed, keep, call.grid, prefix, beta, apart)
    width = value.shape[-1]
    out = attention(*wide, beta=beta, causal=causal, dropout=dropout)[..., :width]
    if apart and any(x.requires_grad for x in places):
        content = [x[..., : y.shape[-1]] for x, y in zip(wide, (query, key, value), strict=True)]
        out = PlaceGradient.apply(out, *places, *content, keep, call.grid, prefix, beta, causal)
    if keep is None:
        return out
    seen = keep.cumsum(-1) > 0 if causal else keep.any(-1, keepdim=True).expand(-1, tokens)
    return out.masked_fill(~seen[:, None, :, None], 0.0)


def has_own_gradient(query: Tensor, dropout: float) -> bool:
    """Whether gradients of center and sharpness are taken beside the fused kernel, whose own lose them to rounding in half
    precision. Not with dropout, of which only the kernel knows what it dropped, nor for transforms."""
    if query.dtype not in PIECES or dropout or is_exporting():
        return False
    return torch.compiler.is_compiling() or (
        not torch._C._are_functorch_transforms_active() and fwAD._current_level < 0  # no forward gradients
    )


def joined(
    query: Tensor, key: Tensor, value: Tensor, center: Tensor, matrix: Tensor, keep: Tensor | None,
    grid: tuple[int, ...], prefix: int, beta: float, apart: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries, keys and values as wide as a fused kernel wants them, with their positions."""
    far = None
    if keep is not None:  # far below every score that a position can give, whatever it is
        far = (1e4 + 4 * largest_score(center, matrix, grid)) / beta
        far = far.clamp_max(torch.finfo(key.dtype).max / 8)
    count = PIECES.get(query.dtype, 1) * (len(grid) + 1 + (prefix > 0)) + (keep is not None)
    total = max(-(-(query.shape[-1] + count) // 8) * 8, value.shape[-1])
    eager = not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0
    if apart and eager and value.shape[-1] == query.shape[-1] and usable_for_places(query, grid):
        return JoinColumns.apply(query, key, value, three_axes(center, matrix, grid), keep, far, prefix, beta, total)
    ours, theirs = position_columns(center, matrix, grid, prefix, beta, query.dtype)
    sides = [[x, part.expand(len(x), -1, -1, -1)] for x, part in ((query, ours), (key, theirs))]
    if far is not None and keep is not None:
        column = torch.zeros_like(key[..., :1]).masked_fill(~keep[:, None, :, None], 1.0)
        sides[0].append(torch.ones_like(query[..., :1]))
        sides[1].append(column * -far.to(column.dtype).reshape(1, -1, 1, 1))
    made = [torch.cat(parts, -1) for parts in sides] + [value]  # fused kernels want one width, a multiple of 8
    wide_query, wide_key, wide_value = (F.pad(x, (0, total - x.shape[-1])) for x in made)
    return wide_query, wide_key, wide_value


def position_scores(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "heads tokens tokens"]:
    """The position's part of every score."""
    place = coordinates(grid, center)
    distance = place[None, None, :, :] - place[None, :, None, :] - center[:, None, None, :]
    return -torch.einsum("hqka,hab,hqkb->hqk", distance, matrix, distance)


def largest_score(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Float[Tensor, " heads"]:
    """At least as large as any of them, in absolute terms."""
    reach = torch.tensor([n - 1.0 for n in grid], device=center.device, dtype=center.dtype) + center.detach().abs()
    return torch.einsum("ha,hab,hb->h", reach, matrix.detach().abs(), reach)


def position_columns(
    center: Tensor, matrix: Tensor, grid: tuple[int, ...], prefix: int, beta: float, dtype: torch.dtype
) -> tuple[Float[Tensor, "1 heads tokens columns"], Float[Tensor, "1 heads tokens columns"]]:
    """What queries and keys have beside their content, divided by β where the kernel multiplies with it."""
    place, heads = coordinates(grid, center), center.shape[0]
    target = place + center[:, None, :]  # (heads, tokens, axes)
    toward = torch.einsum("hab,htb->hta", matrix, target)
    count = PIECES.get(dtype, 1)
    scale = HALF_SCALE if dtype == torch.float16 else 1.0
    # S + Sᵀ and not 2S: the same number, but a gradient that is symmetric, as the score's own is.
    both = torch.einsum("hab,htb->hta", matrix + matrix.mT, target)
    of_query = [both[..., a] / (beta * scale) for a in range(len(grid))]
    of_key = -torch.einsum("ta,hab,tb->ht", place, matrix, place) / (beta * scale)
    ones = torch.ones_like(of_key)
    ours, theirs = [], []
    for a, coefficient in enumerate(of_query):
        ours += pieces(coefficient, dtype, count)
        theirs += [(scale * place[:, a]).to(dtype).expand(heads, -1)] * count
    ours += [(scale * ones).to(dtype)] * count
    theirs += pieces(of_key, dtype, count)
    if prefix:  # the row's own term: without it a key with no position would not be weighed against the others
        ours += pieces((toward * target).sum(-1) / (beta * scale), dtype, count)
        theirs += [(-scale * ones).to(dtype)] * count
    made = (torch.stack(columns, -1)[None] for columns in (ours, theirs))
    query, key = (F.pad(columns, (0, 0, prefix, 0)) for columns in made)
    return query, key


def pieces(x: Tensor, dtype: torch.dtype, count: int) -> list[Tensor]:
    """Numbers of the dtype that add up to x; the first carries the gradient, which is the same for all of them."""
    found = [x.to(dtype)]
    rest = x.detach()
    for _ in range(count - 1):
        rest = rest - found[-1].detach().to(rest.dtype)
        found.append(rest.to(dtype))
    return found


def full_attention(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Gaussian attention with full matrices by this road, without content: for grids whose N×N map would not fit. On the
    CPU in float64, because sharp heads on large grids leave few digits of a float32 score."""
    heads, dtype = center.shape[0], value.dtype
    value = value.expand(-1, heads, -1, -1)
    if value.device.type == "cpu":
        value = value.double()
    empty = value[..., :0]
    out = placed_attention(empty, empty, value, center, sharpness, grid, beta=1.0)
    return out.to(dtype) if isinstance(out, Tensor) else out[0].to(dtype)


# From this many bytes of float64 maps on, full matrices take the fused kernel.
LARGE_MAPS = 2 << 30


def map_is_too_large(value: Tensor, heads: int, tokens: int) -> bool:
    return not is_exporting() and 8 * heads * tokens * tokens > LARGE_MAPS and value.is_floating_point()


def check_placed(
    query: Tensor, key: Tensor, value: Tensor, center: Tensor, grid: Sequence[int], prefix: int, beta: float | None,
    keep: Tensor | None,
) -> int:  # fmt: skip
    """Returns the number of tokens, those without a position included."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_ndim(name, x, "batch heads tokens width")
    for name, x in (("query", query), ("key", key)):
        if x.device != value.device:
            raise ValueError(f"{name} is on {x.device}, but must be on {value.device}, as value is")
    check_ndim("center", center, "heads axes")
    check_grid(grid)
    if isinstance(prefix, bool) or not isinstance(prefix, int) or prefix < 0:
        raise ValueError(f"prefix must be a whole number of 0 or more, got {describe(prefix)}")
    if beta is not None and (isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta < math.inf):
        raise ValueError(f"beta must be a positive number, got {describe(beta)}")
    tokens = prefix + math.prod(grid)
    if query.shape[2] != tokens or key.shape[2] != tokens:
        raise ValueError(
            f"query and key have {query.shape[2]} and {key.shape[2]} tokens, but prefix {prefix} and grid {tuple(grid)} "
            f"make {tokens}: x must have as many"
        )
    if query.shape[1] != center.shape[0] or key.shape[1] != center.shape[0]:
        raise ValueError(
            f"query and key have {query.shape[1]} and {key.shape[1]} heads but center has {center.shape[0]}"
        )
    if key.shape != query.shape:  # columns are added to both, and would not meet behind contents of other widths
        raise ValueError(f"key must have query's shape {tuple(query.shape)}, got {tuple(key.shape)}")
    if keep is not None:
        check_tensor("keep", keep)
        if keep.dtype is not torch.bool or tuple(keep.shape) != (query.shape[0], tokens):
            raise ValueError(
                f"keep must be a boolean tensor (batch, tokens) = {(query.shape[0], tokens)}, got {describe(keep)}"
            )
    return tokens
