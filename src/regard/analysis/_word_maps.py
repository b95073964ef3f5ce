"""``word_maps``: where each word acts on the image, in text-to-image models."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from regard.maps import AttentionRecord, Map, Maps, check_maps, check_over_tokens, check_segments, is_cross_attention
from regard.support.checks import describe

Grid = tuple[int, int]


@dataclass(frozen=True)
class WordMaps:
    """A heat map over the image for each word; ``regard.show(words, image=…)`` shows them.

    Attributes:
        heat: the share of attention that each image position gives to each word, averaged over layers, heads and steps.
        tokens: the words; numbers if no words were passed.
        maps: how many maps were combined, layers times steps.
    """

    heat: Float[Tensor, "words rows columns"]
    tokens: tuple[str, ...]
    maps: int

    def __repr__(self) -> str:
        rows, columns = self.heat.shape[1:]
        return f"WordMaps({len(self.tokens)} words on {rows} × {columns} positions, from {self.maps} maps)"

    def __getitem__(self, word: str | int) -> Float[Tensor, "rows columns"]:
        """The heat map of a word, or of a token by its number; several tokens of the same name are added."""
        if isinstance(word, int):
            return self.heat[word]
        places = [place for place, token in enumerate(self.tokens) if _plain(token) == _plain(word)]
        if not places:
            raise KeyError(f"no token is {word!r}; there are {', '.join(map(repr, self.tokens))}")
        return self.heat[places].sum(0)


def _plain(token: str) -> str:
    """A token without the marks of tokenizers."""
    return token.removesuffix("</w>").lstrip("Ġ▁ ").lower()


def word_maps(
    maps: Maps | Sequence[Map],
    grid: Sequence[int],
    *,
    tokens: Sequence[str] | None = None,
    segments: Sequence[tuple[str, Any]] | None = None,
    sample: int = -1,
) -> WordMaps:
    r"""Combine the cross-attention of a text-to-image model into one heat map over the image for each word of the prompt.

    .. math:: H_w = \operatorname{mean}_{\text{layers, steps, heads}} \; \uparrow A_{\cdot w}

    where ↑ scales each map to the size of the largest. Every call of every layer counts: capture all steps in one block.

    Args:
        maps: maps of a denoising network with cross-attention (the U-Net of Stable Diffusion), in which image positions
            are the queries and words are the keys; other maps are ignored. With ``segments``, maps of a network whose
            blocks attend over image and words jointly (SD3, Flux).
        grid: rows and columns of the image in tokens, at its largest: of the latent image for a U-Net, of the
            patches for a transformer.
        tokens: the words.
        segments: for joint attention, the order of image and text, as in ``[("image", (64, 64)), ("text", 77)]`` (SD3) or
            ``[("text", 512), ("image", (64, 64))]`` (Flux).
        sample: the index in the batch; pipelines put the prompt after the empty one, so the default is the last.

    >>> from regard.maps import AttentionRecord, Map
    >>> weights = torch.rand(1, 2, 16, 3).softmax(-1)
    >>> maps = regard.maps.Maps([Map("attn2", [AttentionRecord.given(weights, "attn2")])])
    >>> words = regard.analysis.word_maps(maps, (4, 4), tokens=["a", "red", "cat"])
    >>> words["cat"].shape, bool(words.heat.sum(0).allclose(torch.ones(4, 4)))
    (torch.Size([4, 4]), True)
    """
    maps = check_maps(maps)
    check_over_tokens(maps, "word_maps")
    sides = _sides(grid)
    if tokens is not None and (not isinstance(tokens, Sequence) or not all(isinstance(token, str) for token in tokens)):
        raise TypeError(f"tokens must be the words, one string each, got {describe(tokens)}")
    if isinstance(sample, bool) or not isinstance(sample, int):
        raise TypeError(f"sample must be a whole number, got {describe(sample)}")
    total: Tensor | None = None
    count = 0
    for call, weights in _weights(maps, None if tokens is None else len(tokens), segments):
        size = _scaled(sides, weights.shape[2])
        if size is None or (total is not None and weights.shape[3] != len(total)):
            continue
        if not -len(weights) <= sample < len(weights):
            raise ValueError(f"sample must lie within the batch of {len(weights)} of {call.name!r}, got {sample}")
        heat = weights[sample].float().mean(0).mT.unflatten(-1, size)  # (words, rows, columns)
        if size != sides:
            heat = F.interpolate(heat[None], sides, mode="bilinear", align_corners=False)[0]
        total = heat if total is None else total + heat
        count += 1
    if total is None:
        shapes = ", ".join(sorted({f"{found.shape[2]} × {found.shape[3]}" for found in maps.values() if found.shape}))
        raise ValueError(
            f"no map has queries on a grid of {sides[0]} × {sides[1]} (or of halves of it) and keys that are words; the maps are "
            f"{shapes or 'none'}. For joint attention segments are needed: pass segments="
        )
    names = tuple(map(str, range(len(total)) if tokens is None else tokens))
    if len(names) != len(total):
        raise ValueError(
            f"tokens is {describe(tokens)} with {len(names)} entries, but the maps have {len(total)} words"
        )
    return WordMaps(total / count, names, count)


def _weights(
    maps: Maps, words: int | None, segments: Any
) -> Iterator[tuple[AttentionRecord, Float[Tensor, "batch heads places words"]]]:
    """Attention from image positions to words, call by call."""
    parts = None if segments is None else check_segments(segments)
    if parts is not None and sorted(part.kind for part in parts) != ["image", "text"]:
        raise ValueError(f"segments must be one image and one text, got {segments!r}")
    for found in maps.values():
        for call in found.calls:
            _, _, queries, keys = call.kept_shape or (0, 0, 0, 0)
            if call.rows is not None or not queries:
                continue
            if parts is not None:
                if queries == keys == sum(part.count for part in parts):
                    image, text = sorted(parts, key=lambda part: part.kind)
                    rows = call.weights[:, :, image.start : image.start + image.count]
                    yield call, rows[..., text.start : text.start + text.count]
            elif _crosses(found.name, queries, keys) and words in (None, keys):
                yield call, call.weights


def _crosses(name: str, queries: int, keys: int) -> bool:
    return queries != keys or is_cross_attention(name) or name.endswith("attn2")


def _scaled(grid: Grid, tokens: int) -> Grid | None:
    """The grid of a layer that sees the image at an integer fraction of its size; None if no fraction has so many tokens."""
    factor = math.isqrt(math.prod(grid) // tokens) if tokens else 0
    while factor and (grid[0] % factor or grid[1] % factor):
        factor -= 1
    found = (grid[0] // factor, grid[1] // factor) if factor else (0, 0)
    return found if math.prod(found) == tokens else None


def _sides(grid: Any) -> Grid:
    sides = tuple(grid) if isinstance(grid, Sequence) and not isinstance(grid, str) else ()
    if len(sides) != 2 or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in sides):
        raise ValueError(f"grid must be the rows and columns of the picture, as in (64, 64), got {describe(grid)}")
    return sides[0], sides[1]
