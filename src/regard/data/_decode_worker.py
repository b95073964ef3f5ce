"""Decodes one image from standard input, in a separate process: python _decode_worker.py LIMITS-AS-JSON

Image decoders have had security bugs, and the bytes are untrusted. So this process has limits on memory and time, no
network, and no files to write to. It prints one line of JSON, ``{"size": [width, height]}`` or ``{"refused": …}``, and
the pixels in RGB.
"""

import io
import json
import sys
from typing import Any

TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
ORIENTATION = 0x0112  # the EXIF tag of the camera's orientation


def confine(memory: int, seconds: int) -> None:
    """Set the limits that the system supports; Windows supports none of these."""
    try:
        import ctypes
        import resource
        import signal
    except ImportError:
        return
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
        if libc.unshare(0x40000000) != 0:  # CLONE_NEWNET: no network. Ordinary users need a user namespace first.
            libc.unshare(0x10000000 | 0x40000000)
    limits = {"RLIMIT_AS": memory, "RLIMIT_CPU": seconds, "RLIMIT_FSIZE": 0, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 16}
    for name, most in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (most, most))
        except (ValueError, OSError):
            continue


def orientation(image: Any) -> int:
    """The EXIF orientation that is left to apply, 1 to 8 (1: none). EXIF data that cannot be read has none."""
    if image.format == "TIFF":
        return 1  # Pillow itself turns these, and gives the size that they then have
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # the data may come after the pixels
    try:
        found = image.getexif().get(ORIENTATION, 1)
    except Exception:  # many kinds, for data of any other form
        return 1
    return found if isinstance(found, int) else 1


def check_depth(image: Any) -> None:
    """Refuse pixels that have no largest value: as bytes they would be black, or white."""
    if image.mode == "F" or (image.mode == "I" and image.format == "TIFF"):
        raise ValueError("its pixels are fractions or 32-bit numbers: save it with 8 or 16 bits")


def eight_bits(image: Any) -> Any:
    """The image with at most 8 bits per channel: of 16 bits of gray the upper 8. (Pillow's own conversion clips at 255.)"""
    check_depth(image)
    return image.convert("I").point(lambda value: value * (1 / 256)).convert("L") if image.mode[0] == "I" else image


def on_white(image: Any) -> Any:
    """The image in RGB, with its transparent pixels on white."""
    from PIL import Image

    colors = image if image.mode == "RGBA" else image.convert("RGBA")
    flat = Image.new("RGB", image.size, "white")
    flat.paste(colors, mask=colors)
    return flat


def upright(image: Any, turn: int) -> Any:
    """The image, rotated as its :func:`orientation` says."""
    from PIL import Image

    return image.transpose(getattr(Image.Transpose, TURNS[turn])) if turn in TURNS else image


def decode(content: bytes, formats: list[str], most_pixels: int, most_side: int, draft: int) -> Any:
    """The first frame, upright, in RGB; a message if the image is refused."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=formats) as opened:
        width, height = opened.size
        if width * height > most_pixels or max(width, height) > most_side:
            return f"the image has {width} × {height} pixels, more than {most_pixels:,} in all"
        opened.draft("RGB", (draft, draft))  # lets Pillow decode a JPEG at a reduced size
        turn = orientation(opened)
        return upright(on_white(eight_bits(opened)), turn)


def answer(content: bytes, **limits: Any) -> tuple[dict[str, Any], bytes]:
    """The output: the line of JSON, and the pixels."""
    try:
        found = decode(content, **limits)
    except MemoryError:
        return {"refused": "the image takes too much memory to decode"}, b""
    except Exception as error:  # decoders raise many kinds of errors for hostile files
        if type(error).__name__ in ("DecompressionBombError", "DecompressionBombWarning"):
            return {"refused": f"the image has more than {limits['most_pixels']:,} pixels"}, b""
        return {"refused": "the file is not an image that can be read"}, b""
    return ({"refused": found}, b"") if isinstance(found, str) else ({"size": list(found.size)}, found.tobytes())


def main() -> None:
    limits = json.loads(sys.argv[1])
    import PIL.Image

    PIL.Image.init()  # loads its plugins now, while files can still be opened
    confine(limits.pop("memory"), limits.pop("seconds"))
    line, pixels = answer(sys.stdin.buffer.read(), **limits)
    sys.stdout.buffer.write(json.dumps(line).encode() + b"\n" + pixels)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
