"""Attention maps over an image: where each head looks from a patch."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps import Layout, Maps
from regard.support.checks import check_tensor, describe, is_functional
from regard.views._head_statistics import opening
from regard.views._payload import Payload
from regard.views._sheets import Sheet, arrays, notes, place_on_grid, rolls_out, sheets

MOST_PIXELS = 768  # pixels of the longer side; keeps files small


def payload(
    maps: Maps, *, image: Any = None, grid: Sequence[int] | None = None, prefix: int | None = None, sample: int = 0
) -> Payload:
    """The arguments are those of :func:`regard.show`. Maps without a grid of two axes are left out, and a note says so."""
    shown: list[Sheet] = []
    left_out: list[str] = []
    refused: ValueError | None = None
    for sheet in sheets(maps, sample):
        try:
            shown.append(_placed(sheet, grid, prefix))
        except ValueError as error:
            refused = refused or error
            left_out.append(sheet.found.name)
    if refused is not None and not shown:
        raise refused
    meta: dict[str, Any] = {
        "layers": [sheet.about for sheet in shown],
        "notes": notes(maps, left_out),
        "image": image is not None,
        "rollout": rolls_out(shown, maps),
        "opening": opening([sheet.about for sheet in shown]),
    }
    pixels = {} if image is None else {"image": as_pixels(image, sample)}
    return Payload("image", meta, {**arrays(shown), **pixels})


def _placed(sheet: Sheet, grid: Sequence[int] | None, prefix: int | None) -> Sheet:
    if not sheet.over_tokens:
        over = "channels" if sheet.about["over"] == "channels" else "keys that differ from query to query"
        raise ValueError(f"{sheet.found.name!r} attends over {over}, which have no place on an image")
    layout = sheet.found.layout(grid, prefix)
    if len(layout.grid) != 2:
        raise ValueError(
            f"grid must have 2 axes, those of an image, got {describe(grid or layout.grid)} for {sheet.found.name!r}"
        )
    asked = sheet.found.latest.query_layout or layout
    # Queries that are not tokens of the grid (a pooling query, learned queries) are selected by number.
    on_grid = sheet.asked in (None, asked.tokens)
    place: Layout | None = asked if on_grid and len(asked.grid) == 2 else None
    place_on_grid(sheet, layout.grid, layout.prefix)
    sheet.about.update(
        query_grid=None if place is None else list(place.grid),
        query_prefix=(sheet.asked or sheet.about["queries"]) if place is None else place.prefix,
    )
    return sheet


def as_pixels(image: Any, sample: int = 0) -> Tensor:
    """An image in any common format as bytes, ``(height, width, 3)``.

    Whole numbers lie in [0, 255]. Floats in [0, 1] are used as they are; others (normalized images) are rescaled from their
    minimum and maximum.

    >>> as_pixels(torch.rand(3, 4, 5)).shape
    torch.Size([4, 5, 3])
    """
    pixels = _tensor(image)
    check_tensor("image", pixels)
    if is_functional(pixels):
        raise ValueError(f"image must have values, got {describe(image)} on {pixels.device}")
    if pixels.is_complex():
        raise TypeError(f"image must be real numbers, got {describe(image)}")
    if pixels.ndim == 4:
        if not -len(pixels) <= sample < len(pixels):
            raise ValueError(f"image has shape {tuple(pixels.shape)}, but sample is {sample}")
        pixels = pixels[sample]
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim != 3 or not pixels.numel():
        raise ValueError(
            f"image must be (channels, height, width) or (height, width, channels), with a batch or without, "
            f"got {describe(image) if isinstance(image, Tensor) else f'{image!r:.100} of shape {tuple(pixels.shape)}'}"
        )
    if pixels.shape[0] not in (1, 3, 4) and pixels.shape[2] in (1, 3, 4):
        pixels = pixels.permute(2, 0, 1)
    if pixels.shape[0] not in (1, 3, 4):
        raise ValueError(f"image has {pixels.shape[0]} channels, but must have 1 (gray), 3 (red, green, blue) or 4")
    pixels = pixels[:3] if pixels.shape[0] == 4 else pixels
    whole = not pixels.is_floating_point() and pixels.dtype != torch.bool
    pixels = pixels.detach().float().cpu()
    if not bool(pixels.isfinite().all()):
        raise ValueError("image must be finite, but contains NaN or infinity")
    low, high = (0.0, 255.0) if whole else (float(pixels.min()), float(pixels.max()))
    if not whole and low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    pixels = ((pixels - low) / max(high - low, 1e-12)).clamp(0, 1)
    longest = max(pixels.shape[1:])
    if longest > MOST_PIXELS:
        size = [max(1, round(n * MOST_PIXELS / longest)) for n in pixels.shape[1:]]
        pixels = torch.nn.functional.interpolate(pixels[None], size, mode="bilinear", antialias=True)[0]
    return (pixels.expand(3, -1, -1).permute(1, 2, 0) * 255).round().to(torch.uint8).contiguous()


def _tensor(image: Any) -> Tensor:
    if isinstance(image, Tensor):
        return image
    if isinstance(image, str | PathLike):
        return _read(Path(image))
    if hasattr(image, "convert") and hasattr(image, "tobytes"):  # PIL, without needing it
        colors = image.convert("RGB")
        flat = torch.frombuffer(bytearray(colors.tobytes()), dtype=torch.uint8)
        return flat.reshape(colors.height, colors.width, 3).permute(2, 0, 1)  # a low image is none of 3 or 4 channels
    try:
        return torch.as_tensor(image)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"image must be a tensor, an array, a PIL image or the path of a file, got {type(image).__name__}"
        ) from error


def _read(path: Path) -> Tensor:
    from regard.data import ImageRefusedError, decode_image  # which needs Pillow

    try:
        return decode_image(path.read_bytes())
    except OSError as error:
        raise ValueError(
            f"image must be an image file, but {path} cannot be read: {error.strerror or error}"
        ) from error
    except ImageRefusedError as error:
        raise ValueError(f"image must be an image file, but {path} is none that we can read: {error}") from error
