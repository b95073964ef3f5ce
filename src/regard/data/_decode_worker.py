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


def decode(content: bytes, formats: list[str], most_pixels: int, most_side: int, draft: int) -> Any:
    """The first frame, upright, in RGB; a message if the image is refused."""
    from PIL import Image

    with Image.open(io.BytesIO(content), formats=formats) as opened:
        width, height = opened.size
        if width * height > most_pixels or max(width, height) > most_side:
            return f"the image has {width} × {height} pixels, more than {most_pixels:,} in all"
        opened.draft("RGB", (draft, draft))  # lets Pillow decode a JPEG at a reduced size
        turn = getattr(Image.Transpose, TURNS.get(opened.getexif().get(ORIENTATION, 1), ""), None)
        converted = opened.convert("RGBA")
    flat = Image.new("RGB", converted.size, "white")
    flat.paste(converted, mask=converted.getchannel("A"))
    return flat if turn is None else flat.transpose(turn)


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
