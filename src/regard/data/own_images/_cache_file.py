"""Decode a set once: into memory if it is small, else into a memory-mapped file if the disk has room for it."""

import hashlib
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from regard.data._cache import data_folder
from regard.data.own_images._decode import refuse_unreadable
from regard.data.own_images._file_checks import hash_files
from regard.data.own_images._limits import caches, memory_limit, workers
from regard.data.own_images._pixels import DecodedPixels, Pixels, TensorPixels, Unreadable
from regard.data.own_images._workers import in_order
from regard.support.files import reporting_full_disk
from regard.support.text import format_size

SMALL = 64 * 2**20  # a set with fewer bytes of pixels is decoded in each process, without a file
BLOCK = 2 * 2**20  # bytes that a worker decodes at a time
FLUSHED = 16 * 2**20  # bytes after which the file is flushed to the disk
PER_PIXEL = 24  # bytes of memory to decode a pixel, at most (WebP: 21)
FORMAT = 3  # increase it when decoding changes the resulting bytes
SPARE = 0.05  # share of the disk that a cache leaves free


class Stored(NamedTuple):
    """Pixels, and a hash of each image (of its file, if images are decoded in every epoch)."""

    pixels: Pixels
    hashes: Int64[Tensor, "n"]


def store(files: DecodedPixels, key: str) -> Stored:
    """The pixels of ``files``, decoded once. ``key`` names these files, their sizes and dates.

    A set of at most 64 MiB is decoded into memory. A larger one goes to a file in the data folder, whose size is
    announced first. It is read into memory if it fits ``REGARD_DATA_MEMORY``, else memory-mapped. If the disk has no
    room, or with ``REGARD_DATA_CACHE=off``, images are decoded in every epoch.
    """
    size = len(files) * torch.Size(files.shape).numel()
    if size <= min(SMALL, memory_limit()):
        blocks, digests = zip(*_blocks(files), strict=True)
        images = torch.cat([torch.from_numpy(block) for block in blocks])
        return Stored(TensorPixels(images, files.where), _as_numbers(b"".join(digests)))
    name = f"{key}-{'x'.join(map(str, files.shape))}-{FORMAT}"
    path = data_folder() / "images" / f"{name}.pixels"
    try:
        why = None if caches() else "REGARD_DATA_CACHE is off"
        if why is None and not _is_whole(path, size, len(files)):
            why = _write(files, path, size)
    except PermissionError:
        why = f"{path.parent} cannot be written"
    if why is not None:
        _announce(f"{why}: images are decoded in every epoch, by {workers()} workers, {_stated_memory(files)}")
        return Stored(files, hash_files(files))
    mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(len(files), *files.shape)
    hashes = _as_numbers(_hash_file(path).read_bytes())
    if size <= memory_limit():
        return Stored(TensorPixels(mapped.clone(), files.where), hashes)
    _announce(
        f"{format_size(size)} of pixels exceed REGARD_DATA_MEMORY ({format_size(memory_limit())}): "
        f"{workers()} workers read them from {path}"
    )
    return Stored(TensorPixels(mapped, files.where, mapped=True), hashes)


def _stated_memory(files: DecodedPixels) -> str:
    """The memory for decoding in every epoch: waiting batches, and one image per worker."""
    decoders = decoding_memory(files)
    return (
        f"in at most {format_size(memory_limit() + decoders)} of memory besides the two batches in use: batches read ahead take "
        f"up to REGARD_DATA_MEMORY ({format_size(memory_limit())}, or one batch), and decoding takes {format_size(decoders)}"
    )


def decoding_memory(files: DecodedPixels) -> int:
    """Bytes that all workers need to decode: copies of the image at full size, rotated, converted, as an array and scaled,
    plus the allocator's reserve (measured by ``benchmarks/data.py``)."""
    return workers() * (PER_PIXEL * files.largest + 2 * torch.Size(files.shape).numel()) + 32 * 2**20


def hash_images(images: UInt8[Tensor, "n channels height width"]) -> Int64[Tensor, "n"]:
    """64 bits of each image's content: equal images have equal hashes.

    >>> len(set(hash_images(torch.tensor([0, 1, 0], dtype=torch.uint8).view(3, 1, 1, 1)).tolist()))
    2
    """
    rows = images.contiguous().numpy()
    return _as_numbers(b"".join(in_order(lambda places: _digests(rows[places.start : places.stop]), len(rows), 64)))


def _as_numbers(digests: bytes) -> Int64[Tensor, "n"]:
    return torch.frombuffer(bytearray(digests), dtype=torch.int64) if digests else torch.zeros(0, dtype=torch.int64)


def _digests(images: Any) -> bytes:
    return b"".join(hashlib.sha256(image.data).digest()[:8] for image in images)


def _blocks(files: DecodedPixels) -> Iterator[tuple[Any, bytes]]:
    """Consecutive images with their hashes, decoded in blocks by all workers. Unreadable files are reported together at the
    end."""
    import numpy as np

    def read(rows: range) -> tuple[Any, bytes, Unreadable]:
        images = np.empty((len(rows), *files.shape), np.uint8)
        bad = files.fill(np.arange(rows.start, rows.stop), images)
        return images, b"" if bad else _digests(images), bad

    unreadable: Unreadable = []
    size = max(1, min(64, BLOCK // torch.Size(files.shape).numel()))
    for images, digests, bad in in_order(read, len(files), size):
        unreadable += bad
        if not unreadable:
            yield images, digests
    refuse_unreadable(unreadable, len(files), files.where)


def _hash_file(path: Path) -> Path:
    return path.with_suffix(".hashes")


def _is_whole(path: Path, size: int, count: int) -> bool:
    sizes = [each.stat().st_size if each.is_file() else -1 for each in (path, _hash_file(path))]
    return sizes == [size, 8 * count]


def _write(files: DecodedPixels, path: Path, size: int) -> str | None:
    """Write the cache, or return why the disk has no room for it. One process writes while others wait."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_suffix(".lock")
    with FileLock(lock):
        if _is_whole(path, size, len(files)):
            return None
        disk = shutil.disk_usage(path.parent)
        if disk.free - size < SPARE * disk.total:
            free = format_size(disk.free)
            return f"the decoded images would take {format_size(size)}, but {path.parent} has only {free} free"
        _announce(
            f"decoding {len(files):,} images once into {path} ({format_size(size)}; {format_size(disk.free)} are free)"
        )
        aside, hashes = path.with_suffix(".writing"), _hash_file(path)
        try:
            with reporting_full_disk(path.parent, "decoded images", size), aside.open("wb") as file:
                hashes.write_bytes(_write_images(files, file))
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            hashes.unlink(missing_ok=True)
            raise
    return None


def _write_images(files: DecodedPixels, file: BinaryIO) -> bytes:
    """Write the images, and return their hashes. The disk writes while further images are decoded."""
    digests, flushed, unflushed = bytearray(), None, 0
    with ThreadPoolExecutor(1) as disk_writer:
        for images, digest in _blocks(files):
            file.write(images.data)
            digests += digest
            unflushed += images.nbytes
            if unflushed >= FLUSHED and (flushed is None or flushed.done()):
                file.flush()
                flushed, unflushed = disk_writer.submit(os.fsync, file.fileno()), 0
        file.flush()
        disk_writer.submit(os.fsync, file.fileno()).result()
    return bytes(digests)


def _announce(text: str) -> None:
    """Print a message even without a terminal: it states the disk space or time that the work will take."""
    print(text, file=sys.stderr)
