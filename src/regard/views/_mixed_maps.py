"""Attention over text and images in one sequence: patches on their pictures, words beside them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.analysis import WordMaps
from regard.maps import AttentionRecord, Map, Maps, Segment, check_segments
from regard.support.checks import describe
from regard.views._byte_tokens import readable
from regard.views._head_statistics import opening
from regard.views._image_maps import as_pixels
from regard.views._payload import Payload
from regard.views._sheets import Sheet, arrays, notes, sheets


def payload(maps: Maps, segments: Any, *, image: Any = None, tokens: Any = None, sample: int = 0) -> Payload:
    """The arguments are those of :func:`regard.show`. Maps over other tokens are left out, and a note says so."""
    parts = check_segments(segments)
    count = sum(part.count for part in parts)
    shown, left_out = _fitting(sheets(maps, sample), count)
    labels = _labels(tokens, parts, count)
    pictures = [part for part in parts if part.grid is not None]
    pixels = _images(image, len(pictures), sample)
    meta: dict[str, Any] = {
        "layers": [sheet.about for sheet in shown],
        "segments": [{"start": part.start, "count": part.count, "grid": part.grid} for part in parts],
        "tokens": labels,
        "images": len(pixels),
        "notes": notes(maps, left_out),
        "opening": opening([sheet.about for sheet in shown]),
        "word_maps": False,
    }
    return Payload("mixed", meta, {**arrays(shown), **{f"image{i}": each for i, each in enumerate(pixels)}})


def _fitting(found: list[Sheet], count: int) -> tuple[list[Sheet], list[str]]:
    """The maps whose queries and keys are these tokens, and the names of the others."""
    fitting = [sheet for sheet in found if sheet.over_tokens and sheet.about["keys"] in (count, count - 1)]
    if not fitting:
        keys = sorted({sheet.about["keys"] for sheet in found})
        raise ValueError(f"segments have {count} tokens in all, but the maps attend over {', '.join(map(str, keys))}")
    shown = [sheet for sheet in fitting if sheet.self_attention]
    if not shown:
        first = fitting[0]
        raise ValueError(
            f"segments are the tokens that attend to each other, but {first.found.name!r} attends from {first.asked} queries "
            f"to {first.about['keys']} keys"
        )
    return shown, [sheet.about["name"] for sheet in found if sheet not in shown]


def _labels(tokens: Any, parts: list[Segment], count: int) -> list[str]:
    """A name for each token; patches are named by row and column."""
    words = sum(part.count for part in parts if part.grid is None)
    if tokens is None:
        names = None
    elif isinstance(tokens, Sequence) and not isinstance(tokens, str) and all(isinstance(t, str) for t in tokens):
        names = readable(tokens)
    else:
        raise TypeError(f"tokens must be a list of strings, got {describe(tokens)}")
    if names is not None and len(names) not in (count, words):
        raise ValueError(f"tokens has {len(names)} entries, but segments have {count} tokens, {words} of them text")
    made: list[str] = []
    said = 0
    for part in parts:
        if part.grid is not None:
            made += [f"({row}, {column})" for row in range(part.grid[0]) for column in range(part.grid[1])]
            continue
        for place in range(part.start, part.start + part.count):
            made.append(str(place) if names is None else names[place if len(names) == count else said])
            said += 1
    return made


def _images(image: Any, count: int, sample: int) -> list[Tensor]:
    """The pictures as bytes, one for each image segment."""
    if image is None:
        return []
    given = list(image) if isinstance(image, list | tuple) else [image]
    if isinstance(image, Tensor) and image.ndim == 4 and len(image) == count > 1:
        given = list(image)
    if len(given) != count:
        raise ValueError(f"image has {len(given)} pictures, but segments have {count} images")
    return [as_pixels(each, sample) for each in given]


def word_payload(words: WordMaps, *, image: Any = None, sample: int = 0) -> Payload:
    """Where each word acts on the picture: the attention of the patches to the word, normalized over the picture."""
    count, rows, columns = words.heat.shape
    heat = words.heat.flatten(1)
    shares = heat / heat.sum(-1, keepdim=True).clamp_min(1e-30)
    weights = torch.cat([torch.zeros(count, count), shares.float().cpu()], 1)[None, None]
    record = AttentionRecord.given(weights, "all layers and steps", rows=tuple(range(count)))
    maps = Maps([Map("all layers and steps", [record])])
    maps.notes = [
        f"sum of {words.maps} maps: how much each patch looks at a word, as a share of what the whole picture gives to it"
    ]
    segments = [("text", count), ("image", (rows, columns))]
    made = payload(maps, segments, image=image, tokens=list(words.tokens), sample=sample)
    made.meta["word_maps"] = True
    return made
