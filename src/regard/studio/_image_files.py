"""Image files: those sent by a person, which are decoded with care, and those shipped with the package."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.studio._errors import Refused
from regard.support.text import format_size

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MOST_BYTES = 8 * 2**20
MOST_PIXELS = 24_000_000
MOST_SIDE = 12_000
SHOWN = 448  # largest side of the shown image, in pixels
_ORIENTATION = 0x0112  # the EXIF tag of the camera's orientation
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
Pixels = UInt8[Tensor, "_ _ _"]  # channels, height, width


def decode(content: bytes) -> Any:
    """Decode the first frame of an image, upright, in RGB, as a Pillow image. Only known formats of limited size are decoded:
    a small file may claim to be a huge image, and its header is checked first."""
    from PIL import Image

    if not content:
        raise Refused(400, "the file is empty")
    if len(content) > MOST_BYTES:
        raise Refused(413, f"the file has {format_size(len(content))}, more than {format_size(MOST_BYTES)}")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS or max(width, height) > MOST_SIDE:
                raise Refused(413, f"the image has {width} × {height} pixels, more than {MOST_PIXELS:,} in all")
            opened.draft("RGB", (2 * SHOWN, 2 * SHOWN))  # a JPEG need not be decoded at full size
            turn = getattr(Image.Transpose, _TURNS.get(opened.getexif().get(_ORIENTATION, 1), ""), None)
            converted = opened.convert("RGBA")
        flat = Image.new("RGB", converted.size, "white")
        flat.paste(converted, mask=converted.getchannel("A"))
        return flat if turn is None else flat.transpose(turn)
    except Refused:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as bomb:
        raise Refused(413, f"the image has more than {MOST_PIXELS:,} pixels") from bomb
    except Exception as broken:  # decoders raise many kinds of errors for hostile files
        known = ", ".join(FORMATS)
        raise Refused(400, f"the file is not an image that can be read ({known})") from broken


def fit(image: Any, shape: Sequence[int]) -> tuple[Pixels, Pixels]:
    """The network's input, uint8 (channels, height, width), and the same part of the image for display.

    The middle of the image is cut out in the network's proportions, so that nothing is stretched.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    resample = Image.Resampling.LANCZOS
    taken = ImageOps.fit(image, (width, height), resample).convert("L" if channels == 1 else "RGB")
    scale = max(1, min(SHOWN, *image.size) // max(height, width))
    shown = ImageOps.fit(image, (width * scale, height * scale), resample)
    return to_tensor(taken), to_tensor(shown)


def to_tensor(image: Any) -> Pixels:
    channels = len(image.getbands())
    content = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return content.reshape(image.height, image.width, channels).permute(2, 0, 1).contiguous()


def to_png(pixels: Pixels) -> bytes:
    """An image as a PNG file.

    >>> from regard.studio._image_files import decode, to_png
    >>> decode(to_png(torch.zeros(3, 4, 5, dtype=torch.uint8))).size
    (5, 4)
    """
    from PIL import Image

    content = pixels.permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def png_files(folder: Path, channels: int) -> list[Path]:
    """The PNG files of a folder that have so many channels, by name."""
    from PIL import Image

    found = []
    for path in sorted(folder.glob("*.png")):
        with Image.open(path) as opened:  # reads the header alone
            if len(opened.getbands()) == channels:
                found.append(path)
    return found
