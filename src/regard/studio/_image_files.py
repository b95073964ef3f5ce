"""Image files: uploads, which are untrusted, and images shipped with the package."""

import io
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.data import ImageRefusedError, decode_image, fit_image
from regard.studio._errors import Refused

SHOWN = 448  # largest side of the shown image, in pixels
# Decoding an image may take a gigabyte and a core for seconds.
_DECODING = threading.BoundedSemaphore(2)
DECODING_SECONDS = 30.0
Pixels = UInt8[Tensor, "_ _ _"]  # channels, height, width


def decode(content: bytes) -> Any:
    """The first frame of an uploaded image, upright, in RGB, as a Pillow image. It is decoded in a separate process
    (see :func:`regard.data.decode_image`)."""
    from PIL import Image

    if not _DECODING.acquire(timeout=DECODING_SECONDS):
        raise Refused(429, "too many images are being decoded: try again later")
    try:
        pixels = decode_image(content)
    except ImageRefusedError as refused:
        raise Refused(413 if refused.too_large else 400, str(refused)) from refused
    finally:
        _DECODING.release()
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def open_own(content: bytes) -> Any:
    """An image that we wrote or that came with the package, as a Pillow image in RGB."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=["PNG"]) as opened:
        return opened.convert("RGB")


def fit(image: Any, shape: Sequence[int]) -> tuple[Pixels, Pixels]:
    """The network's input, uint8 (channels, height, width), and the same part of the image for display.

    The image is scaled and center-cropped to the network's aspect ratio like its training images, so that it is not stretched.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    taken = fit_image(to_tensor(image.convert("RGB")), (channels, height, width))
    scale = max(1, min(SHOWN, *image.size) // max(height, width))
    shown = ImageOps.fit(image, (width * scale, height * scale), Image.Resampling.LANCZOS)
    return taken, to_tensor(shown)


def to_tensor(image: Any) -> Pixels:
    channels = len(image.getbands())
    content = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return content.reshape(image.height, image.width, channels).permute(2, 0, 1).contiguous()


def to_png(pixels: Pixels) -> bytes:
    """An image as a PNG file.

    >>> from regard.studio._image_files import open_own, to_png
    >>> open_own(to_png(torch.zeros(3, 4, 5, dtype=torch.uint8))).size
    (5, 4)
    """
    from PIL import Image

    content = pixels.permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def png_files(folder: Path, channels: int) -> list[Path]:
    """The PNG files of a folder with the given number of channels, by name."""
    from PIL import Image

    found = []
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as opened:  # reads only the header
            if len(opened.getbands()) == channels:
                found.append(path)
    return found
