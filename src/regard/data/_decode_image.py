"""Decode an untrusted image in a separate process (see ``_decode_worker.py``)."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

IMAGE_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MOST_BYTES = 8 * 2**20
MOST_PIXELS = 24_000_000
MOST_SIDE = 12_000
SECONDS, MEMORY = 10, 2**30
DRAFT = 896  # a larger JPEG may be decoded at a reduced size, but not below this
_WORKER = Path(__file__).with_name("_decode_worker.py")


class ImageRefusedError(ValueError):
    """Bytes that are not a readable image. ``too_large`` says that the image has too many pixels or bytes."""

    def __init__(self, message: str, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


def decode_image(
    content: bytes, *, seconds: int = SECONDS, memory: int = MEMORY, most_pixels: int = MOST_PIXELS
) -> UInt8[Tensor, "3 height width"]:
    """The first frame of an image file, rotated upright, in RGB, with transparent pixels on white.

    The file is decoded in a separate process with limited memory and time and without network (on Windows, with limited
    time). PNG, JPEG, WEBP, BMP and GIF are read, of limited size; the size that the header claims is checked first.

    Args:
        content: the bytes of the file.
        seconds: time limit of the process.
        memory: memory limit of the process in bytes.
        most_pixels: largest number of pixels.

    Raises :class:`ImageRefusedError` if the image cannot be decoded within these limits.
    """
    if not content:
        raise ImageRefusedError("the file is empty")
    if len(content) > MOST_BYTES:
        raise ImageRefusedError(
            f"the file has {len(content) / 2**20:.1f} MB, more than {MOST_BYTES / 2**20:g}", too_large=True
        )
    limits = {"memory": memory, "seconds": seconds, "formats": IMAGE_FORMATS, "most_pixels": most_pixels}
    command = [sys.executable, "-P", str(_WORKER), json.dumps({**limits, "most_side": MOST_SIDE, "draft": DRAFT})]
    try:
        done = subprocess.run(command, input=content, capture_output=True, timeout=seconds + 5, check=False)
    except subprocess.TimeoutExpired:
        raise ImageRefusedError(f"the image takes more than {seconds} seconds to decode", too_large=True) from None
    line, _, pixels = done.stdout.partition(b"\n")
    if done.returncode or not line:  # killed by the system (time or memory limit), or the decoder crashed
        if b"ModuleNotFoundError" in done.stderr:
            raise ImportError("reading images needs pillow: pip install 'regard[train]'")
        raise ImageRefusedError("the image takes too much time or memory to decode", too_large=True)
    answer = json.loads(line)
    if "refused" in answer:
        known = (
            "" if "pixels" in answer["refused"] or "memory" in answer["refused"] else f" ({', '.join(IMAGE_FORMATS)})"
        )
        raise ImageRefusedError(answer["refused"] + known, too_large=not known)
    width, height = answer["size"]
    return (
        torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(height, width, 3).permute(2, 0, 1).contiguous()
    )
