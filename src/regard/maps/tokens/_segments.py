"""Segments of a sequence with text and images: which tokens are text, and which are the patches of an image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._module_names import attribute
from regard.support.checks import TEXT, describe, is_iterable

Grid = tuple[int, int]


@dataclass(frozen=True)
class Segment:
    """A part of a sequence: ``count`` tokens of text, or the patches of an image, row by row.

    Attributes:
        start: the position of its first token.
        grid: rows and columns of an image; None for text.
    """

    start: int
    count: int
    grid: Grid | None = None

    @property
    def kind(self) -> str:
        return "text" if self.grid is None else "image"

    def part(self, x: Tensor) -> Tensor:
        """Its entries of ``(…, tokens)``: ``(…, count)``, or ``(…, rows, columns)`` for an image."""
        cut = x[..., self.start : self.start + self.count]
        return cut if self.grid is None else cut.unflatten(-1, self.grid)


@dataclass(frozen=True)
class ImageTokens:
    """What a model's configuration says about the image tokens among its text.

    Attributes:
        token: the id that stands for each patch.
        grid: rows and columns of every image, if all have the same; None if it depends on the image.
        grids: rows and columns of each image of the latest run, if they were passed to the model (``image_grid_thw`` of
            Qwen-VL).
    """

    token: int
    grid: Grid | None = None
    grids: tuple[Grid, ...] = ()


def check_segments(segments: Any, tokens: int | None = None) -> list[Segment]:
    """Segments from pairs such as ``("text", 12)`` and ``("image", (24, 24))``; an error unless they fit ``tokens``.

    >>> [segment.kind for segment in check_segments([("text", 2), ("image", (2, 3))], 8)]
    ['text', 'image']
    """
    if not is_iterable(segments, Sequence) or isinstance(segments, TEXT) or not len(segments):
        raise TypeError(f'segments must be pairs such as ("text", 12) or ("image", (24, 24)), got {describe(segments)}')
    found: list[Segment] = []
    start = 0
    for pair in segments:
        if isinstance(pair, Segment):
            pair = (pair.kind, pair.count if pair.grid is None else pair.grid)
        kind, size = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        sides = (size,) if isinstance(size, int) else tuple(size) if isinstance(size, tuple | list) else ()
        whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sides)
        if kind not in ("text", "image") or not whole or len(sides) != (1 if kind == "text" else 2):
            raise ValueError(
                f'segments must be pairs such as ("text", 12) or ("image", (24, 24)), got {pair!r} among them: '
                f"{describe(segments):.100}"
            )
        found.append(Segment(start, math.prod(sides), None if kind == "text" else (sides[0], sides[1])))
        start += found[-1].count
    if tokens is not None and start != tokens:
        raise ValueError(f"segments have {start} tokens in all, but the maps attend over {tokens}")
    return found


_IMAGE_TOKENS = ("image_token_id", "image_token_index")


def image_tokens_of(model: nn.Module, grids: Any = None) -> ImageTokens | None:
    """How the model marks image tokens, from its configuration; None if it has no image token.

    Args:
        grids: ``(images, 3)``, with which the model was called: frames, rows and columns, in patches before they are merged.
    """
    config = attribute(model, "config")
    if config is None:
        return None
    names = [name for name in _IMAGE_TOKENS if _may_state(config, name)]
    if not names:
        return None
    token = next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)
    if token is None:
        return None
    vision = getattr(config, "vision_config", None)
    merge = getattr(vision, "spatial_merge_size", 1)
    if isinstance(grids, Tensor) and grids.ndim == 2 and grids.shape[1] == 3:
        each = tuple((rows // merge, columns // merge) for time, rows, columns in grids.tolist() for _ in range(time))
        return ImageTokens(token, None, each)
    pooled = getattr(config, "mm_tokens_per_image", None)
    if isinstance(pooled, int) and math.isqrt(pooled) ** 2 == pooled:
        return ImageTokens(token, (math.isqrt(pooled), math.isqrt(pooled)))
    size, patch = getattr(vision, "image_size", None), getattr(vision, "patch_size", None)
    if isinstance(size, int) and isinstance(patch, int) and patch > 0 and merge == 1:
        return ImageTokens(token, (size // patch, size // patch))
    return ImageTokens(token)


def _may_state(config: Any, name: str) -> bool:
    """Whether ``getattr(config, name, None)`` may give something. This runs after each capture, and takes less time than the
    error that a configuration of Hugging Face raises for a missing attribute."""
    kind: Any = type(config)
    return _may_make(kind, name) or name in object.__getattribute__(config, "__dict__")


@lru_cache(256)
def _may_make(kind: Any, name: str) -> bool:
    """Whether objects of this class may have this attribute although it is not in their ``__dict__``."""
    if kind.__dictoffset__ == 0:
        return True
    plain = kind.__getattribute__ is object.__getattribute__
    # Configurations of Hugging Face read these attributes from others.
    renamed = name in getattr(kind, "attribute_map", () if plain else (name,))
    return renamed or hasattr(kind, name) or hasattr(kind, "__getattr__")


def find_segments(ids: Any, images: ImageTokens, grid: Any = None) -> list[Segment]:
    """The segments of one sequence: runs of the image token are images, everything else is text.

    Args:
        ids: the token ids, ``(tokens,)``.
        grid: rows and columns of each image, if the configuration does not state them.

    >>> [segment.grid for segment in find_segments([5, 9, 9, 9, 9, 5], ImageTokens(9, (2, 2)))]
    [None, (2, 2), None]
    """
    numbers = torch.as_tensor(ids).flatten().tolist()
    runs = [(is_image, len(list(run))) for is_image, run in groupby(numbers, key=lambda number: number == images.token)]
    if not any(is_image for is_image, _ in runs):
        raise ValueError(
            f"ids has no image token (the configuration states {images.token}): there is no image in the text"
        )
    known = list(images.grids)
    pairs: list[tuple[str, Any]] = []
    for is_image, count in runs:
        if not is_image:
            pairs.append(("text", count))
            continue
        left = count
        while left:
            side = tuple(grid) if grid is not None else known.pop(0) if known else images.grid
            if side is None or math.prod(side) > left or (grid is None and not known and left % math.prod(side)):
                said = "no size" if side is None else f"{side[0]} × {side[1]}"
                raise ValueError(
                    f"{count} image tokens stand together, for which the configuration states {said}: pass grid=(rows, columns) "
                    'of an image after patches were merged, or segments=[("text", 12), ("image", (24, 24)), …]'
                )
            pairs.append(("image", side))
            left -= math.prod(side)
    return check_segments(pairs, len(numbers))
