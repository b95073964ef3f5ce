"""Decode image files with Pillow: upright, scaled, cut to one size, in color or gray."""

import stat
import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.data._decode_worker import check_depth, eight_bits, on_white, orientation, upright
from regard.data.own_images._errors import UnsuitableDataError
from regard.data.own_images._workers import in_order
from regard.support.text import listed

MOST_PIXELS = 64_000_000  # a small file may claim to be a huge image
GRAY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
# The formats whose decoders we trust with untrusted files, and their file extensions.
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


class Header(NamedTuple):
    """Width and height of an image in pixels, upright, and whether it is gray."""

    width: int
    height: int
    gray: bool


class UnreadableImage(NamedTuple):
    """Why a file could not be read."""

    reason: str


def read_headers(open_file: Callable[[int], Path | BytesIO], count: int) -> list[Header | UnreadableImage]:
    """The headers of image files, read without decoding their pixels."""
    from PIL import Image

    def read(rows: range) -> list[Header | UnreadableImage]:
        return [read_header(open_file(row)) for row in rows]

    with warnings.catch_warnings():  # set here and not in the workers, since warning filters are shared by all threads
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size is checked below
        return [header for part in in_order(read, count, 32) for header in part]


def read_header(file: Path | BytesIO) -> Header | UnreadableImage:
    try:
        with _opened(file) as image:
            check_depth(image)
            turned = orientation(image) in (5, 6, 7, 8)
            width, height = image.size[::-1] if turned else image.size
            return Header(width, height, image.mode in GRAY)
    except Exception as error:  # decoders raise what they like
        return UnreadableImage(_reason(error))


def decode(file: Path | BytesIO, shape: tuple[int, int, int]) -> UInt8[Tensor, "c h w"] | UnreadableImage:
    """An image as uint8 of the given (channels, height, width), see :func:`fit`.

    >>> import io; from PIL import Image
    >>> file = io.BytesIO(); Image.new("RGB", (40, 20), (255, 0, 0)).save(file, "PNG")
    >>> decode(file, (3, 8, 8))[:, 0, 0]
    tensor([255,   0,   0], dtype=torch.uint8)
    """
    channels, height, width = shape
    try:
        with _opened(file) as opened:
            if opened.format == "JPEG":  # decodes at 1/2, 1/4 or 1/8 of the size if that is large enough
                opened.draft(None, (2 * width, 2 * height))
            turn = orientation(opened)
            image: Any = eight_bits(opened)
            if image.has_transparency_data:
                image = on_white(image)
            image = upright(image, turn)
            if image.mode != (wanted := "L" if channels == 1 else "RGB"):
                image = image.convert(wanted)
            pixels = np.asarray(image).reshape(1, image.height, image.width, channels)
    except Exception as error:  # decoders raise what they like
        return UnreadableImage(_reason(error))
    return fit(pixels.transpose(0, 3, 1, 2), height, width)[0]


def fit(images: UInt8[np.ndarray, "n c h w"], height: int, width: int) -> UInt8[Tensor, "n c height width"]:
    """The largest center crop with the new aspect ratio, scaled to the new size (bilinear, antialiased when shrinking).

    >>> fit(np.arange(8, dtype=np.uint8).reshape(1, 1, 2, 4), 1, 1)
    tensor([[[[4]]]], dtype=torch.uint8)
    """
    rows, columns = images.shape[2:]
    high = min(rows, max(1, round(columns * height / width)))
    wide = min(columns, max(1, round(rows * width / height)))
    top, left = (rows - high) // 2, (columns - wide) // 2
    middle = images[:, :, top : top + high, left : left + wide]
    copied = torch.from_numpy(np.array(middle, order="K"))  # in this thread; torch would start more
    if (high, wide) == (height, width):
        return copied
    # Takes a third of the time of Pillow's resampling; results differ by at most 1.
    return torch.nn.functional.interpolate(copied, (height, width), mode="bilinear", antialias=True)


def fit_image(pixels: UInt8[Tensor, "3 rows columns"], shape: tuple[int, int, int]) -> UInt8[Tensor, "c h w"]:
    """An image in RGB as a network takes it, (channels, height, width): gray if it has one channel, and scaled and cropped
    like a training image.

    >>> from regard.data import fit_image
    >>> fit_image(torch.full((3, 40, 20), 7, dtype=torch.uint8), (1, 8, 8)).unique()
    tensor([7], dtype=torch.uint8)
    """
    from PIL import Image

    channels, height, width = shape
    if channels == 1:
        gray = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).convert("L")
        pixels = torch.from_numpy(np.array(gray))[None]
    return fit(pixels[None].numpy(), height, width)[0].contiguous()


def _opened(file: Path | BytesIO) -> Any:
    from PIL import Image, features

    if isinstance(file, Path) and not stat.S_ISREG(file.stat().st_mode):  # reading a pipe may never end
        raise ValueError("not a regular file")
    formats = [name for name in ENDINGS if name != "AVIF" or features.check("avif")]
    image = Image.open(file, formats=formats)
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise ValueError(f"{image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
    if image.format == "TIFF":
        image.filename = (
            ""  # Pillow 13 memory-maps a file with a name, and mixes up the rows of one that it has to turn
        )
    return image


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    if "decompression bomb" in text:
        return f"more than {MOST_PIXELS:,} pixels"
    return "not an image" if "cannot identify image" in text else text.splitlines()[0][:120] if text else "damaged"


def refuse_unreadable(found: Sequence[tuple[str, UnreadableImage]], total: int, where: str) -> None:
    """Raise an error that names the files that could not be read."""
    if found:
        names = listed([f"{name} ({unreadable.reason})" for name, unreadable in found])
        raise UnsuitableDataError(
            f"{len(found):,} of the {total:,} images in {where} cannot be read: {names}; remove or repair them"
        )
