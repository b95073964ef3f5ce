"""Checks of image files without decoding: whether two files are equal, and whether one is truncated."""

import hashlib
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64
from torch import Tensor

from regard.data.own_images._decode import refuse_unreadable
from regard.data.own_images._pixels import DecodedPixels, Unreadable, start_reading
from regard.data.own_images._workers import in_order

EDGE = 8192  # bytes at the beginning and at the end of a file that are read


class FileEdges(NamedTuple):
    """A digest of a file's size, beginning and end, and whether it seems truncated."""

    digest: bytes
    breaks_off: bool


def hash_files(files: DecodedPixels) -> Int64[Tensor, "n"]:
    """64 bits for each file: equal files have equal hashes. Truncated files are refused by name.

    Only the beginning and end of a file are read; the whole file only if another has the same digest. A file without its
    format's end mark is decoded, to see whether that matters. Other damage is found when the image is decoded.
    """

    def look(rows: range) -> list[FileEdges]:
        return [edges_of(files.open_file(row)) for row in rows]

    edges = [each for part in in_order(look, len(files), 32) for each in part]
    suspects = torch.tensor([row for row, each in enumerate(edges) if each.breaks_off], dtype=torch.int64)
    unreadable: Unreadable = []
    for rows in suspects.split(64):
        unreadable += start_reading(files, rows).wait()
    refuse_unreadable(unreadable, len(files), files.where)
    counts = Counter(each.digest for each in edges)
    digests = [
        _whole_digest(files.open_file(row)) if counts[each.digest] > 1 else each.digest
        for row, each in enumerate(edges)
    ]
    return torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.int64)


def edges_of(file: Path | BytesIO) -> FileEdges:
    """
    >>> edges_of(BytesIO(bytes([0xFF, 0xD8]) + b"half a JPEG")).breaks_off
    True
    """
    with file.open("rb") if isinstance(file, Path) else file as opened:
        size = opened.seek(0, 2)
        opened.seek(0)
        first = opened.read(EDGE)
        opened.seek(max(0, size - EDGE))
        last = opened.read(EDGE)
    digest = hashlib.blake2b(size.to_bytes(8) + first + last, digest_size=8).digest()
    return FileEdges(digest, not _has_end(first, last, size))


def _has_end(first: bytes, last: bytes, size: int) -> bool:
    """Whether the file has its format's end mark; False for formats without a known mark, which may be truncated."""
    if first.startswith(b"\xff\xd8"):
        return b"\xff\xd9" in last
    if first.startswith(b"\x89PNG"):
        return b"IEND" in last
    if first.startswith(b"GIF8"):
        return b";" in last[-16:]
    if first.startswith(b"RIFF") and first[8:12] == b"WEBP":
        return int.from_bytes(first[4:8], "little") + 8 <= size
    return False


def _whole_digest(file: Path | BytesIO) -> bytes:
    with file.open("rb") if isinstance(file, Path) else file as opened:
        return hashlib.blake2b(opened.read(), digest_size=8).digest()
