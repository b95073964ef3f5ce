"""Images to look at: of a test set, shipped with the package, or sent by the person, which are decoded with care."""

import io
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.data import DataMissingError, ImageSet, load
from regard.studio._errors import Refused

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MOST_BYTES = 8 * 2**20
MOST_PIXELS = 24_000_000
MOST_SIDE = 12_000
SHOWN = 448  # pixels on a side of what is shown; more would not be seen
_ORIENTATION = 0x0112  # how a camera was held, and what turns its image upright
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
    """The first frame of an image, upright, in RGB, as Pillow has it. Only known formats, and only sizes that fit, are
    decoded: a small file may claim to be a huge picture, and is refused by what it claims."""
    from PIL import Image

    if not content:
        raise Refused(400, "the file is empty")
    if len(content) > MOST_BYTES:
        raise Refused(413, f"the file has {len(content) / 2**20:.1f} MB, more than {MOST_BYTES / 2**20:g}")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            width, height = opened.size
            if width * height > MOST_PIXELS or max(width, height) > MOST_SIDE:
                raise Refused(413, f"the image has {width} × {height} pixels, more than {MOST_PIXELS:,} in all")
            opened.draft("RGB", (2 * SHOWN, 2 * SHOWN))  # a JPEG need not be decoded whole
            turn = getattr(Image.Transpose, _TURNS.get(opened.getexif().get(_ORIENTATION, 1), ""), None)
            converted = opened.convert("RGBA")
        flat = Image.new("RGB", converted.size, "white")
        flat.paste(converted, mask=converted.getchannel("A"))
        return flat if turn is None else flat.transpose(turn)
    except Refused:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as bomb:
        raise Refused(413, f"the image has more than {MOST_PIXELS:,} pixels") from bomb
    except Exception as broken:  # decoders meet hostile files with errors of every kind
        known = ", ".join(FORMATS)
        raise Refused(400, f"the file is not an image that can be read ({known})") from broken


def fit(image: Any, shape: Sequence[int]) -> tuple[Pixels, Pixels]:
    """What the network takes, (channels, height, width) as bytes, and the same piece as a person sees it.

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
    """As a file.

    >>> from regard.studio._images import decode, to_png
    >>> decode(to_png(torch.zeros(3, 4, 5, dtype=torch.uint8))).size
    (5, 4)
    """
    from PIL import Image

    content = pixels.permute(1, 2, 0).contiguous().numpy()
    image = Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_set(name: str) -> ImageSet | None:
    """The test set of a data set, where its files are here; nothing is downloaded for a look."""
    try:
        return _read_test_set(name)
    except (DataMissingError, OSError):  # not kept: it may come later
        return None


@lru_cache(maxsize=4)
def _read_test_set(name: str) -> ImageSet:
    return load(name, download=False).test()


def shipped(folder: Path) -> list[Path]:
    """Images that lie in a folder, by name."""
    return sorted(path for path in folder.glob("*.png") if path.is_file()) if folder.is_dir() else []
