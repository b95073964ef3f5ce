"""CIFAR-10 and CIFAR-100 as torchvision stores them, folder or archive, in the python or the binary version.

The python version is pickled. We do not unpickle it: we list its opcodes, which executes nothing, and take the long
string (pixels) and the numbers after ``labels`` from them.
"""

import lzma
import pickletools
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.data.own_images._arrays import gather
from regard.data.own_images._collection import Collection, Part
from regard.data.own_images._errors import UnsuitableDataError
from regard.support.reading import read_limited

PIXELS = 3 * 32 * 32
LARGEST = 256 * 2**20  # bytes of one file: CIFAR-100 has all its images in one of 154 MB
INTEGERS = ("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1")
STRINGS = (
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
)


@dataclass(frozen=True)
class Copy:
    """One of the four forms: its folder and archive, the files of each part, and where the labels are."""

    folder: str
    archive: str
    files: dict[Part, tuple[str, ...]]
    names: str
    label: str
    label_bytes: int = 0  # bytes before each image of the binary version; the last one is the label


_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))
_BINARY: dict[Part, tuple[str, ...]] = {"train": tuple(f"{name}.bin" for name in _FIVE), "test": ("test_batch.bin",)}
COPIES = (
    Copy(
        "cifar-10-batches-py",
        "cifar-10-python.tar.gz",
        {"train": _FIVE, "test": ("test_batch",)},
        "batches.meta",
        "labels",
    ),
    Copy("cifar-10-batches-bin", "cifar-10-binary.tar.gz", _BINARY, "batches.meta.txt", "labels", 1),
    Copy(
        "cifar-100-python", "cifar-100-python.tar.gz", {"train": ("train",), "test": ("test",)}, "meta", "fine_labels"
    ),
    Copy(
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        {"train": ("train.bin",), "test": ("test.bin",)},
        "fine_label_names.txt",
        "fine_labels",
        2,
    ),
)


def find_copy(path: Path) -> tuple[Copy, Path] | None:
    """The copy at a path (its folder, the parent folder, or its archive), and its exact location."""
    for copy in COPIES:
        for place in (path, path / copy.folder):
            if place.is_dir() and all((place / name).is_file() for names in copy.files.values() for name in names):
                return copy, place
        for place in (path, path / copy.archive):
            if place.is_file() and place.name == copy.archive:
                return copy, place
    return None


def read_copy(copy: Copy, place: Path, image_size: int | None) -> Collection:
    """Read a copy of CIFAR."""
    contents = _from_archive(copy, place) if place.is_file() else lambda name: read_limited(place / name, LARGEST)
    parse = parse_binary if copy.label_bytes else parse_pickled
    images: dict[Part, Tensor] = {}
    labels: dict[Part, Tensor] = {}
    try:
        for part, names in copy.files.items():
            pairs = [parse(contents(name), copy) for name in names]
            images[part], labels[part] = (torch.cat(each) for each in zip(*pairs, strict=True))
        classes = class_names(contents(copy.names), copy)
    except (OSError, KeyError, ValueError, EOFError, tarfile.TarError) as error:
        raise UnsuitableDataError(f"{place} is not a complete copy of CIFAR: {error}") from error
    return gather(str(place), images, labels, classes, image_size)


def parse_binary(content: bytes, copy: Copy) -> tuple[Tensor, Tensor]:
    if not content or len(content) % (PIXELS + copy.label_bytes):
        raise ValueError(f"a file has {len(content):,} bytes, which is not a whole number of images")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, PIXELS + copy.label_bytes)
    return records[:, copy.label_bytes :].reshape(-1, 3, 32, 32), records[:, copy.label_bytes - 1].long()


def parse_pickled(content: bytes, copy: Copy) -> tuple[Tensor, Tensor]:
    pixels, labels, inside = b"", [], False
    for name, value in _opcodes(content):
        if name in STRINGS:
            word = (
                bytes(value) if isinstance(value, bytes | bytearray) else str(value).encode("latin-1", errors="replace")
            )
            pixels = max(pixels, word, key=len)
            inside = word == copy.label.encode()
        elif inside and name in INTEGERS:
            if not isinstance(value, int) or not 0 <= value < 100:
                raise ValueError(f"a file has the label {value!r:.40}")
            labels.append(value)
    if not labels or len(pixels) != len(labels) * PIXELS:
        raise ValueError(f"a file has {len(pixels):,} bytes of pixels and {len(labels):,} labels")
    images = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(-1, 3, 32, 32)
    return images, torch.tensor(labels)


def class_names(content: bytes, copy: Copy) -> tuple[str, ...]:
    if copy.label_bytes:
        return tuple(content.decode().split())
    found: list[str] = []
    inside = False
    for name, value in _opcodes(content):
        if name in STRINGS:
            word = value.decode("latin-1") if isinstance(value, bytes) else str(value)
            key = word.endswith("label_names")
            if inside and not key:
                found.append(word)
            inside = word in ("label_names", "fine_label_names") if key else inside
        elif name in ("SETITEM", "SETITEMS"):
            inside = False
    return tuple(found[: 100 if copy.label == "fine_labels" else 10])


def _opcodes(content: bytes) -> Iterator[tuple[str, Any]]:
    """The opcodes, without the encoding names that Python 3 adds to bytes for Python 2."""
    return ((opcode.name, value) for opcode, value, _ in pickletools.genops(content) if value != "latin1")


def _from_archive(copy: Copy, place: Path) -> Callable[[str], bytes]:
    contents: dict[str, bytes] = {}
    wanted = {copy.names, *(name for names in copy.files.values() for name in names)}
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                name = member.name.rpartition("/")[2]
                if not member.isfile() or name not in wanted:
                    continue
                if member.size > LARGEST:
                    raise tarfile.ReadError(f"{name} has {member.size:,} bytes")
                if (file := archive.extractfile(member)) is not None:
                    contents[name] = file.read()
    except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise UnsuitableDataError(f"{place} is not a complete copy of CIFAR: {error}") from error
    return contents.__getitem__
