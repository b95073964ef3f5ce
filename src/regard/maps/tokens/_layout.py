"""How the tokens of a map lie on an image: prefix tokens (class, distillation, registers), then a grid, row by row.

Many models state it in attributes or in their configuration. If none does, the user must: 197 tokens may be a class
token and 14 × 14 patches, or 197 samples of a sound.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.maps._module_names import attribute
from regard.support.checks import TEXT, describe, is_iterable

# The number of prefix tokens of Hugging Face vision models, by model_type.
_PREFIX = {
    "beit": 1,
    "clip_vision_model": 1,
    "data2vec-vision": 1,
    "deit": 2,
    "dinov2": 1,
    "dinov2_with_registers": 1,
    "dinov3_vit": 1,
    "ijepa": 0,
    "siglip_vision_model": 0,
    "vit": 1,
    "vit_msn": 1,
}


@dataclass(frozen=True)
class Layout:
    """``prefix`` tokens, then ``grid`` tokens.

    >>> Layout((14, 14), 1).tokens
    197
    """

    grid: tuple[int, ...]
    prefix: int

    @property
    def tokens(self) -> int:
        return self.prefix + math.prod(self.grid)


def given_layout(tokens: int, grid: Any, prefix: Any, name: str, known: Layout | None = None) -> Layout:
    """The layout that a caller gave; an error if it does not fit the number of tokens.

    Without ``prefix`` the tokens that the grid leaves over come before it. As many as a row or a column of the grid are no
    class tokens or registers: they may be patches of a larger grid, or words. Then the caller must say it, or the model
    (``known``) if it states the same grid.

    >>> given_layout(5, (2, 2), None, "attn")
    Layout(grid=(2, 2), prefix=1)
    """
    check_grid(grid, prefix)
    sides = _sides(grid)
    found = tokens - math.prod(sides) if prefix is None else prefix
    layout = Layout(sides, found)
    if found < 0 or layout.tokens != tokens:
        raise ValueError(
            f"grid {sides} with prefix {prefix} makes {math.prod(sides) + max(prefix or 0, 0)} tokens, "
            f"but must make {tokens}, which {name!r} attends over"
        )
    if prefix is None and found >= max(2, min(sides)) and layout != known:
        raise ValueError(
            f"grid {sides} leaves {found} of the {tokens} tokens over which {name!r} attends: pass prefix={found} if they "
            "come before the grid, or another grid"
        )
    return layout


def check_grid(grid: Any, prefix: Any) -> None:
    """Raise an error unless both are valid or None."""
    if prefix is not None and (isinstance(prefix, bool) or not isinstance(prefix, int) or prefix < 0):
        raise ValueError(f"prefix must be the number of tokens before the grid's, 0 or more, got {describe(prefix)}")
    if grid is not None:
        _sides(grid)


def _sides(grid: Any) -> tuple[int, ...]:
    plain = is_iterable(grid) and not isinstance(grid, TEXT)
    sides = (grid,) if isinstance(grid, int) else tuple(grid) if plain else ()
    if not sides or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sides):
        raise ValueError(f"grid must be whole numbers of 1 or more, one per axis, as in (14, 14), got {describe(grid)}")
    return sides


def merged_rows(
    rows: Float[Tensor, "batch before inputs"], before: Layout | None, after: Layout | None
) -> Float[Tensor, "batch after inputs"] | None:
    """If squares of tokens were merged between two layers: for each new token, the mean of its square's rows; else None.

    >>> merged_rows(torch.eye(4)[None], Layout((2, 2), 0), Layout((1, 1), 0))
    tensor([[[0.2500, 0.2500, 0.2500, 0.2500]]])
    """
    if before is None or after is None or before.prefix != after.prefix or len(before.grid) != len(after.grid):
        return None
    if (
        any(fine % coarse for fine, coarse in zip(before.grid, after.grid, strict=True))
        or rows.shape[1] != before.tokens
    ):
        return None
    prefix, squares = rows[:, : before.prefix], rows[:, before.prefix :]
    sides = [side for fine, coarse in zip(before.grid, after.grid, strict=True) for side in (coarse, fine // coarse)]
    means = squares.unflatten(1, sides).mean(tuple(range(2, 2 + len(sides), 2)))
    return torch.cat((prefix, means.flatten(1, -2)), 1)


def inferred_layout(tokens: int, modules: list[nn.Module], patches: tuple[int, ...] | None) -> Layout | None:
    """The layout that one of the modules around the attention states; None if none does.

    Args:
        modules: innermost first.
        patches: the grid of patches into which an image was cut in this run.
    """
    for module in modules:
        for prefix, grid in _candidates(module, patches):
            if grid is not None and prefix + math.prod(grid) == tokens:
                return Layout(grid, prefix)
    return None


def states_layout(module: nn.Module) -> bool:
    """Whether a module states a layout at all. :func:`inferred_layout` can skip modules that do not."""
    return bool(_candidates(module, None))


def _candidates(module: nn.Module, patches: tuple[int, ...] | None) -> list[tuple[int, tuple[int, ...] | None]]:
    """The layouts that a module states, as (prefix, grid): with the patches of this run, and with its configured grid."""
    found: list[tuple[int, tuple[int, ...] | None]] = []
    # In timm and regard a module states its prefix tokens, and its patch embedding the grid for which it was built.
    for name in ("num_prefix_tokens", "prefix_tokens"):
        prefix = attribute(module, name)
        if isinstance(prefix, int) and not isinstance(prefix, bool):
            found += [(prefix, patches), (prefix, _grid_of(module))]
    config = attribute(module, "config")
    kind = getattr(config, "model_type", None)
    if kind in _PREFIX:
        prefix = _PREFIX[kind] + int(getattr(config, "num_register_tokens", 0) or 0)
        found += [(prefix, patches), (prefix, _configured(config))]
    return found


def _grid_of(module: nn.Module) -> tuple[int, ...] | None:
    """The grid that a module or its patch embedding states."""
    for holder in (getattr(module, "patch_embed", None), module):
        for name in ("grid_size", "grid"):
            grid = getattr(holder, name, None)
            if isinstance(grid, list | tuple) and grid and all(isinstance(n, int) for n in grid):
                return tuple(grid)
    return None


def _configured(config: Any) -> tuple[int, ...] | None:
    """The grid from the image size and the patch size of a Hugging Face configuration."""
    image, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if image is None or patch is None:
        return None
    images = (image, image) if isinstance(image, int) else tuple(image)
    sizes = (patch, patch) if isinstance(patch, int) else tuple(patch)
    return tuple(n // p for n, p in zip(images, sizes, strict=True))
