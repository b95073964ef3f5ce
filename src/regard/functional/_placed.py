"""Attention by content and position on torch's fused kernel: Gaussian scores become extra columns of queries and keys."""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.functional._attention import are_shown, attention, causal_keep
from regard.functional._call import resolve
from regard.functional._place_columns import joined, largest_score, products_are_rounded
from regard.functional._place_gradient import PlaceGradient
from regard.functional._place_moments import coordinates
from regard.functional.kernels import PIECES
from regard.observation import observe
from regard.support.checks import (
    check_flag,
    check_grid,
    check_ndim,
    check_probability,
    check_tensor,
    describe,
    is_exporting,
    is_tracing,
    is_transformed,
    under_autocast,
    values_are_readable,
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

    With t = q_pos + Δ the position's part is :math:`2 (S t)^\top k_{pos} - k_{pos}^\top S k_{pos} - t^\top S t`. Each term
    is a product of a function of the query and a function of the key. So the position adds a few columns to queries and
    keys, and an ordinary fused kernel computes the sum. Class tokens before the grid have no position: their columns are
    zero, and their scores are content only.

    Precision: in half precision, coordinates are integers counted from the grid's center, in digits that the dtype holds,
    and each coefficient is a sum of three numbers. The gradients of center and sharpness that come through the fused kernel
    would be lost to rounding in half precision, where float32 is multiplied as TF32, and in float32 on axes longer than 32.
    There they are computed outside of the kernel, from recomputed scores. (Not with dropout, because only the kernel knows
    what it dropped, nor in ``torch.func``'s transforms, nor on short axes in TF32 under a compiler.) The fused kernel
    accumulates in float32, in which a score on an axis of length n is accurate to about S n² 2⁻²⁴. Where this is worse
    than the rounding of the dtype, a CPU computes in float64 (not in exported programs). On other devices, sharp heads on
    long axes lose digits, and float16 gives NaN where S n² / (4 β) exceeds 10⁷.

    Args:
        query, key, value: ``(batch, heads, prefix + tokens of the grid, width)``, the grid in row-major order.
        center, sharpness: as for :func:`regard.gaussian_attention`, the full matrix S included.
        grid: the size of each axis.
        prefix: how many tokens without a position come first.
        beta: inverse temperature of the content, ``1/√width`` by default; positive.
        keep: ``(batch, tokens)``, True = attend to this key. A query that sees no key gives zeros.
        causal: a token sees itself and earlier tokens, which on a grid is raster order.
        dropout: probability of dropping a weight.
        return_weights: also return the map, which is then formed.

    >>> q, k, v = (torch.randn(1, 2, 13, 4) for _ in range(3))                  # a class token and a 3 × 4 grid
    >>> placed_attention(q, k, v, torch.zeros(2, 2), torch.ones(2), (3, 4), prefix=1).shape
    torch.Size([1, 2, 13, 4])
    """
    check_flag("causal", causal)
    check_flag("return_weights", return_weights)
    check_probability("dropout", dropout)
    tokens = check_placed(query, key, value, center, grid, prefix, beta, keep)
    call = resolve(center, sharpness, grid, None, "native", None)
    beta = max(query.shape[-1], 1) ** -0.5 if beta is None else float(beta)
    matrix = call.sharpness.double()
    if matrix.ndim < 3:
        matrix = torch.diag_embed(call.axis_sharpness.double())
    autocast = under_autocast(query)
    if autocast:
        lowered = torch.get_autocast_dtype(query.device.type)
        query, key, value = (x.to(lowered) for x in (query, key, value))
    if return_weights:
        scores = F.pad(position_scores(call.center.double(), matrix, call.grid), (prefix, 0, prefix, 0))
        with torch.autocast(query.device.type, enabled=False) if autocast else nullcontext():
            return with_weights(query, key, value, scores, beta, keep, causal, dropout)
    seen = None
    if keep is not None:
        # Hidden keys are lowered by a number that their content must not exceed, and a weight of 0 times ∞ would be NaN.
        key, value = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (key, value))
        seen = keep.cumsum(-1) > 0 if causal else keep.any(-1, keepdim=True).expand(-1, tokens)
    if seen is not None and are_shown(~seen):
        # The kernel also gives weights to rows that see no key; their output, and here their map, is set to zero afterwards.
        again: Callable[..., Any] = functools.partial(
            placed_attention, query, key, value, center, sharpness, grid,
            prefix=prefix, beta=beta, keep=keep, causal=causal,
        )  # fmt: skip
        return observe(
            None, lambda: again(dropout=dropout), lambda: again(return_weights=True)[1],
            value=value, kind="placed", grid=call.grid, prefix=prefix, clean=again if dropout else None,
        )  # fmt: skip
    dtype, places = value.dtype, (call.center.double(), matrix)
    if needs_float64(query, *places, call.grid):
        query, key, value = (x.double() for x in (query, key, value))
    out = by_columns(query, key, value, places, keep, seen, call.grid, prefix, beta, causal, dropout).to(dtype)
    return out if seen is None else out.masked_fill(~seen[:, None, :, None], 0.0)


def by_columns(
    query: Tensor, key: Tensor, value: Tensor, places: tuple[Tensor, Tensor], keep: Tensor | None, seen: Tensor | None,
    grid: tuple[int, ...], prefix: int, beta: float, causal: bool, dropout: float,
) -> Tensor:  # fmt: skip
    """The output from the fused kernel. ``places``: centers and sharpness matrices; ``seen``: which queries see a key."""
    apart = has_own_gradient(query, dropout, grid)
    center, matrix = (x.detach() for x in places) if apart else places
    wide = joined(query, key, value, center, matrix, keep, seen, grid, prefix, beta, apart, causal)
    whole = attention(wide.query, wide.key, wide.value, beta=beta, causal=causal, dropout=dropout)
    out = whole[..., : value.shape[-1]]
    if not apart or not any(x.requires_grad for x in places):
        return out
    content = [x[..., : y.shape[-1]] for x, y in zip(wide[:3], (query, key, value), strict=True)]
    known = keep, known_sums(whole, query.shape[2])
    made: Tensor = PlaceGradient.apply(
        out, *places, *content, *known, grid, prefix, beta, causal, wide.heads, wide.longest
    )  # fmt: skip
    return made


def with_weights(
    query: Tensor, key: Tensor, value: Tensor, scores: Tensor, beta: float, keep: Tensor | None, causal: bool,
    dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output and the map, computed in float32 or better: in half precision, rounding would exceed the differences
    between scores of distant positions.

    Scores are taken relative to the best that a query sees, which no weight depends on: those of a center far outside the
    grid are large numbers, whose differences float32 would lose.
    """
    wide, scores = torch.promote_types(query.dtype, torch.float32), scores[None]
    hidden = None if keep is None else keep[:, None, None, :].expand(-1, *query.shape[1:3], -1)
    seen = causal_keep(query.shape[2], key.shape[2], query.device) if causal else None
    if hidden is not None:
        seen = hidden if seen is None else hidden & seen
    best = (scores if seen is None else scores.masked_fill(~seen, -math.inf)).detach().amax(-1, keepdim=True)
    bias = (scores - best.masked_fill(best == -math.inf, 0.0)).to(wide)
    out, weights = attention(
        query.to(wide), key.to(wide), value.to(wide), beta=beta, bias=bias, keep=hidden, causal=causal, dropout=dropout,
        return_weights=True,
    )  # fmt: skip
    return out.to(value.dtype), weights.to(value.dtype)


# Up to this score of the farthest pair, float32 sums of scores add at most a fifth to the dtype's own error (measured on
# planes of up to 32 × 32 and axes of up to 2000 tokens).
LARGEST_SCORE = {torch.float32: 2.0**4, torch.float16: 2.0**14, torch.bfloat16: 2.0**17}

# The sharpness that is assumed where values cannot be read.
SHARP = 10.0


def needs_float64(query: Tensor, center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> bool:
    """Whether float32 sums, of terms as large as the farthest pair's score, would be less accurate than the dtype. Only on
    the CPU, where float64 takes about twice as long; exported programs keep their dtype."""
    limit = LARGEST_SCORE.get(query.dtype)
    if limit is None or query.device.type != "cpu" or is_exporting() or is_tracing():
        return False
    if values_are_readable(center) and values_are_readable(matrix):
        return not bool((largest_score(center, matrix, grid) <= limit).all())
    return SHARP * sum((size - 1) ** 2 for size in grid) > limit


# From this axis length on, float32 sums of scores lose too much of sharpness' gradients: at length 64, a third was lost.
LONG_AXIS = 33


def has_own_gradient(query: Tensor, dropout: float, grid: tuple[int, ...]) -> bool:
    """Whether gradients of center and sharpness are computed outside of the fused kernel, where they are lost to rounding:
    in half precision, in TF32 and in float32 on long axes. Not with dropout, because only the kernel knows what it dropped,
    nor under transforms."""
    is_long = query.dtype is torch.float32 and max(grid) >= LONG_AXIS
    if dropout or is_exporting() or not (query.dtype in PIECES or is_long or products_are_rounded(query)):
        return False
    return not is_transformed()


def known_sums(out: Tensor, tokens: int) -> Float[Tensor, "batch heads tokens"] | None:
    """The logsumexp of each row, which the fused kernel saves for its own backward pass. None if it saved none, while
    compiling, or if hooks act on saved tensors, as in activation checkpointing."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0 or out.grad_fn is None:
        return None
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return None
    found = getattr(out.grad_fn, "_saved_logsumexp", None)
    if not isinstance(found, Tensor) or found.numel() < out.shape[0] * out.shape[1] * tokens:
        return None
    return found.detach().float().reshape(*out.shape[:2], -1)[..., :tokens]


def position_scores(center: Tensor, matrix: Tensor, grid: tuple[int, ...]) -> Float[Tensor, "heads tokens tokens"]:
    """−(δ − Δ)ᵀ S (δ − Δ) for all pairs of tokens of the grid."""
    place = coordinates(grid, center)
    distance = place[None, None, :, :] - place[None, :, None, :] - center[:, None, None, :]
    return -torch.einsum("hqka,hab,hqkb->hqk", distance, matrix, distance)


def full_attention(value: Tensor, center: Tensor, sharpness: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Gaussian attention with full sharpness matrices by :func:`placed_attention`, with content of width 0, for grids whose
    N×N map is too large."""
    value = value.expand(-1, center.shape[0], -1, -1)
    empty = value[..., :0]
    out = placed_attention(empty, empty, value, center, sharpness, grid, beta=1.0)
    return out if isinstance(out, Tensor) else out[0]


# Above this size of the float64 maps in bytes, heads with full matrices take the fused kernel.
LARGE_MAPS = 2 << 30


def map_is_too_large(value: Tensor, heads: int, tokens: int) -> bool:
    return not is_exporting() and 8 * heads * tokens * tokens > LARGE_MAPS and value.is_floating_point()


def check_placed(
    query: Tensor, key: Tensor, value: Tensor, center: Tensor, grid: Sequence[int], prefix: int, beta: float | None,
    keep: Tensor | None,
) -> int:  # fmt: skip
    """Check the arguments. Returns the number of tokens, including those without a position."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_ndim(name, x, "batch heads tokens width")
    for name, x in (("query", query), ("key", key)):
        if x.device != value.device:
            raise ValueError(f"{name} is on {x.device}, but must be on {value.device} like value")
        if x.dtype != value.dtype and not under_autocast(query):
            raise TypeError(f"{name} is {x.dtype}, but must be {value.dtype} like value")
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
            f"need {tokens}"
        )
    if query.shape[1] != center.shape[0] or key.shape[1] != center.shape[0]:
        raise ValueError(
            f"query and key have {query.shape[1]} and {key.shape[1]} heads but center has {center.shape[0]}"
        )
    if key.shape != query.shape:  # position columns follow the content: both must have the same width
        raise ValueError(f"key must have query's shape {tuple(query.shape)}, got {tuple(key.shape)}")
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(
            f"value must be (batch, heads, tokens, width) starting with {tuple(key.shape[:3])} like key, got {tuple(value.shape)}"
        )
    if keep is not None:
        check_tensor("keep", keep)
        if keep.dtype is not torch.bool or tuple(keep.shape) != (query.shape[0], tokens):
            raise ValueError(
                f"keep must be a boolean tensor (batch, tokens) = {(query.shape[0], tokens)}, got {describe(keep)}"
            )
    return tokens
