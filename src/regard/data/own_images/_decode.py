"""Decode image files with Pillow: upright, scaled, cut to one size, in color or gray."""

import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.data.own_images._errors import UnsuitableDataError, listed
from regard.data.own_images._limits import workers

MOST_PIXELS = 64_000_000  # a small file may claim to be a huge image
GRAY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
# The formats whose decoders we trust with files of strangers, with the endings that a folder is searched for.
ENDINGS = {
    "PNG": (".png",),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "WEBP": (".webp",),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "AVIF": (".avif",),
}
SUFFIXES = frozenset(ending for endings in ENDINGS.values() for ending in endings)


PARTS = 4  # of a piece of work, for each worker


class Header(NamedTuple):
    """Width and height of an image in pixels, upright, and whether it is gray."""

    width: int
    height: int
    gray: bool


class UnreadableImage(NamedTuple):
    """Why a file could not be read."""

    reason: str


@lru_cache(maxsize=2)
def pool(count: int) -> ThreadPoolExecutor:
    """Threads, not processes: Pillow and torch release the interpreter's lock while they work on pixels."""
    return ThreadPoolExecutor(count, thread_name_prefix="regard-data")


def in_chunks(work: Callable[[Sequence[int]], Any], numbers: Sequence[int]) -> list[Any]:
    """``work`` on consecutive parts of ``numbers``, some for each worker; the results in order."""
    if workers() == 1 or len(numbers) <= 1:
        return [work(numbers)] if numbers else []
    count = min(PARTS * workers(), len(numbers))  # several, so that one that is held up does not hold up all
    bounds = [len(numbers) * part // count for part in range(count + 1)]
    parts = [numbers[first:last] for first, last in pairwise(bounds)]
    return list(pool(workers()).map(work, parts))


def read_header(file: Path | BytesIO) -> Header | UnreadableImage:
    """What the header of an image file says, without decoding its pixels."""
    try:
        with _opened(file) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
            width, height = image.size[::-1] if turned else image.size
            return Header(width, height, image.mode in GRAY)
    except Exception as error:  # decoders raise what they like
        return UnreadableImage(_reason(error))


def decode(file: Path | BytesIO, shape: tuple[int, int, int]) -> UInt8[Tensor, "c h w"] | UnreadableImage:
    """An image as uint8 of the given (channels, height, width): scaled so that it covers the size, then cut to its middle.

    >>> import io; from PIL import Image
    >>> file = io.BytesIO(); Image.new("RGB", (40, 20), (255, 0, 0)).save(file, "PNG")
    >>> decode(file, (3, 8, 8))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    try:
        with _opened(file) as opened:
            if opened.format == "JPEG":  # decodes at a half, a quarter or an eighth where that is still large enough
                opened.draft(None, (2 * width, 2 * height))
            # Both of these copy an image that is right as it is, which takes as long as decoding some of them.
            image: Any = opened if opened.getexif().get(0x0112, 1) == 1 else ImageOps.exif_transpose(opened)
            if image.mode.startswith("I"):  # 16 bits of gray, of which an image of bytes keeps the upper 8
                image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
            if image.mode != (wanted := "L" if channels == 1 else "RGB"):
                image = image.convert(wanted)
            if image.size != (width, height):
                image = ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR)
            content = image.tobytes()
    except Exception as error:  # decoders raise what they like
        return UnreadableImage(_reason(error))
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(height, width, channels).permute(2, 0, 1)


def _opened(file: Path | BytesIO) -> Any:
    from PIL import Image, features

    formats = [name for name in ENDINGS if name != "AVIF" or features.check("avif")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the size is checked below
        image = Image.open(file, formats=formats)
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise ValueError(f"{image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
    return image


def _reason(error: Exception) -> str:
    text = str(error)
    return "not an image" if "cannot identify image" in text else text.splitlines()[0][:120] if text else "damaged"


def refuse_unreadable(found: Sequence[tuple[str, UnreadableImage]], total: int, where: str) -> None:
    """Raise an error that names the files that could not be read."""
    if found:
        names = listed([f"{name} ({unreadable.reason})" for name, unreadable in found])
        raise UnsuitableDataError(
            f"{len(found):,} of the {total:,} images in {where} cannot be read: {names}; remove or repair them"
        )
