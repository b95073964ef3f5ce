"""Images that people send: only known formats, only what fits, and nothing but a refusal for the rest."""

import io
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.data import IMAGE_FORMATS as FORMATS
from regard.data import MOST_BYTES, ImageRefusedError, decode_image
from regard.data import _decode_image as decoding
from regard.data._decode_worker import answer
from regard.studio import _image_files as image_files
from regard.studio._errors import Refused
from regard.studio._image_files import SHOWN, decode, fit, open_own, to_png, to_tensor

LIMITS = {"formats": list(FORMATS), "most_pixels": 24_000_000, "most_side": 12_000, "draft": 896}


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def claiming(width, height):
    """A PNG of a few bytes that says it is a large picture."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", FORMATS)
def test_the_usual_formats_are_read(kind):
    color = Image.new("RGB", (20, 10), (200, 100, 50))
    found = decode(encoded(color, kind))
    assert (found.mode, found.size) == ("RGB", (20, 10))
    assert all(abs(a - b) < 12 for a, b in zip(found.getpixel((3, 3)), (200, 100, 50), strict=True))


@pytest.mark.parametrize("kind", ["TIFF", "ICO", "PPM", "TGA", "PCX", "PDF", "EPS"])
def test_others_are_not(kind):
    with pytest.raises(Refused, match="not an image that can be read") as refused:
        decode(encoded(Image.new("RGB", (16, 16)), kind))
    assert refused.value.status == 400


@pytest.mark.parametrize(("width", "height"), [(5000, 5000), (30_000, 30_000), (12_001, 1), (2**31 - 1, 2**31 - 1)])
@pytest.mark.filterwarnings("default::PIL.Image.DecompressionBombWarning")
def test_a_small_file_that_claims_to_be_a_huge_picture_is_refused_by_what_it_claims(width, height):
    with pytest.raises(Refused, match=r"pixels|not an image") as refused:
        decode(claiming(width, height))
    assert refused.value.status in (400, 413)


def test_a_picture_that_is_too_large_is_refused_without_being_decoded(monkeypatch):
    monkeypatch.setattr(Image.Image, "convert", lambda *args, **options: pytest.fail("it was decoded"))
    assert "6000 × 5000 pixels" in answer(claiming(6000, 5000), **LIMITS)[0]["refused"]


def test_too_many_bytes_are_refused_before_anything_looks_at_them():
    with pytest.raises(Refused, match="MB") as refused:
        decode(b"\x89PNG" + bytes(MOST_BYTES))
    assert refused.value.status == 413


@given(st.binary(max_size=200))
def test_any_bytes_are_an_image_or_a_refusal(content):
    line, pixels = answer(content, **LIMITS)
    assert (list(line), pixels) == (["refused"], b"")


@given(st.data())
def test_damaged_files_are_an_image_or_a_refusal(data):
    kind = data.draw(st.sampled_from(FORMATS))
    content = bytearray(
        encoded(Image.frombytes("RGB", (12, 12), bytes(number * 97 % 256 for number in range(432))), kind)
    )
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(1, len(content)))]
    line, pixels = answer(bytes(content), **LIMITS)
    assert list(line) in (["refused"], ["size"])
    assert len(pixels) == (3 * line["size"][0] * line["size"][1] if "size" in line else 0)


def test_what_is_transparent_is_white_and_only_the_first_frame_counts():
    clear = Image.new("RGBA", (4, 4), (0, 0, 0, 0))
    assert decode(encoded(clear, "PNG")).getpixel((0, 0)) == (255, 255, 255)
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(moving).getpixel((0, 0)) == (255, 0, 0)


def test_a_photograph_taken_sideways_is_turned_upright():
    image = Image.new("RGB", (30, 20), "black")
    image.paste("white", (0, 0, 15, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: the left half of the file is the upper one
    found = decode(encoded(image, "JPEG", exif=exif, quality=95))
    assert found.size == (20, 30)
    assert found.getpixel((10, 3))[0] > 200 > 50 > found.getpixel((10, 27))[0]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 16, 24)])
def test_the_middle_is_cut_out_and_nothing_is_stretched(shape):
    image = Image.new("RGB", (400, 200), "black")
    image.paste("white", (100, 0, 300, 200))  # what a square would keep
    taken, shown = fit(image, shape)
    assert tuple(taken.shape) == shape
    assert shown.shape[0] == 3
    assert shown.shape[1] * shape[2] == shown.shape[2] * shape[1]
    assert max(shown.shape) <= SHOWN
    if shape[1] == shape[2]:
        assert bool((taken > 200).all())  # the edge sees a little of its neighbors


def test_an_image_of_the_network_s_own_size_is_taken_as_it_is():
    pixels = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8)
    taken, shown = fit(open_own(to_png(pixels)), (3, 32, 32))
    assert torch.equal(taken, pixels)
    assert torch.equal(shown, pixels)
    gray = pixels[:1]
    assert torch.equal(fit(open_own(to_png(gray)), (1, 32, 32))[0], gray)
    assert torch.equal(to_tensor(open_own(to_png(gray))), gray.expand(3, -1, -1))


def slow_jpeg(scans=3000, side=3000):
    """A small progressive JPEG with one scan repeated: each is as much work as the whole picture."""
    plain = encoded(Image.new("RGB", (side, side), "gray"), "JPEG", progressive=True)
    begin = plain.rindex(b"\xff\xda")
    scan = plain[begin : plain.rindex(b"\xff\xd9")]
    return plain[:begin] + scan * scans + b"\xff\xd9"


def test_a_picture_that_takes_long_is_given_up():
    content = slow_jpeg()
    assert len(content) < 2**20
    begin = time.monotonic()
    with pytest.raises(ImageRefusedError, match=r"time|seconds") as refused:
        decode_image(content, seconds=1)
    assert refused.value.too_large
    assert time.monotonic() - begin < 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits all of these")
def test_a_picture_that_takes_much_memory_is_given_up():
    content = encoded(Image.new("RGB", (4800, 4800)), "PNG")
    assert decode_image(content).shape == (3, 4800, 4800)
    with pytest.raises(ImageRefusedError, match="memory") as refused:
        decode_image(content, memory=300 * 2**20)
    assert refused.value.too_large


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits all of these")
def test_the_process_that_decodes_can_neither_connect_nor_write(tmp_path):
    """What a decoder taken over by its input could try."""
    worker = Path(decoding.__file__).with_name("_decode_worker.py")
    script = f"""
import runpy, socket
runpy.run_path({str(worker)!r})["confine"](2**30, 5)
connect = lambda: socket.create_connection(("127.0.0.1", {{port}}), 2)
write = lambda: open({str(tmp_path / "x")!r}, "wb", buffering=0).write(bytes(9))
for attempt in (connect, write):
    try:
        attempt()
        print("done")
    except OSError:
        print("refused")
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = script.format(port=server.getsockname()[1])
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["refused", "refused"]


def test_images_are_decoded_two_at_a_time(monkeypatch):
    """Each may take a gigabyte."""
    gate, running, most = threading.Event(), [], []

    def slow(content):
        running.append(content)
        most.append(len(running))
        gate.wait(10)
        running.remove(content)
        raise ImageRefusedError("not an image")

    monkeypatch.setattr(image_files, "decode_image", slow)
    monkeypatch.setattr(image_files, "DECODING_SECONDS", 0.2)
    refused = []

    def ask(number):
        try:
            decode(b"%d" % number)
        except Refused as error:
            refused.append(error.status)

    threads = [threading.Thread(target=ask, args=[number]) for number in range(5)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 5
    while refused.count(429) < 3 and time.monotonic() < until:
        time.sleep(0.02)
    gate.set()
    for thread in threads:
        thread.join(5)
    assert max(most) == 2
    assert sorted(refused) == [400, 400, 429, 429, 429]
