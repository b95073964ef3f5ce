"""Decode a set once: into memory if it is small, else into a memory-mapped file where the disk has room for it."""

import hashlib
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from regard.data._cache import data_folder
from regard.data.own_images._decode import UnreadableImage, in_chunks, refuse_unreadable
from regard.data.own_images._file_checks import hash_files
from regard.data.own_images._limits import caches, memory_limit, workers
from regard.data.own_images._pixels import DecodedPixels, Pixels, TensorPixels
from regard.support.files import reporting_full_disk
from regard.support.text import format_size

SMALL = 64 * 2**20  # bytes of pixels that are decoded again in each process rather than kept in a file
BLOCK = 16 * 2**20  # bytes that are decoded at a time
SPARE = 0.05  # share of the disk that a cache leaves free


class Stored(NamedTuple):
    """Pixels, and a hash of each image (of its file, where every reading decodes it anew)."""

    pixels: Pixels
    hashes: Int64[Tensor, "n"]


def store(files: DecodedPixels, key: str) -> Stored:
    """The pixels of ``files``, decoded once. ``key`` names these files, their sizes and dates.

    A set of at most 64 MiB is decoded into memory. A larger one goes to a file in the data folder, whose size is
    announced first, and is read into memory where it fits ``REGARD_DATA_MEMORY``, else memory-mapped. Where the disk has
    no room, or with ``REGARD_DATA_CACHE=off``, images are decoded in every epoch.
    """
    size = len(files) * torch.Size(files.shape).numel()
    if size <= min(SMALL, memory_limit()):
        images = torch.cat(list(_blocks(files)))
        return Stored(TensorPixels(images), hash_images(images))
    name = f"{key}-{'x'.join(map(str, files.shape))}"
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
    hashes = torch.frombuffer(bytearray(_hash_file(path).read_bytes()), dtype=torch.int64)
    if size <= memory_limit():
        return Stored(TensorPixels(mapped.clone()), hashes)
    _announce(
        f"{format_size(size)} of pixels exceed REGARD_DATA_MEMORY ({format_size(memory_limit())}): "
        f"{workers()} workers read them from {path}"
    )
    return Stored(TensorPixels(mapped, mapped=True), hashes)


def _stated_memory(files: DecodedPixels) -> str:
    """What decoding in every epoch needs: batches that wait, and what each worker needs for one image."""
    decoders = decoding_memory(files.largest)
    return (
        f"in at most {format_size(memory_limit() + decoders)} of memory besides the two batches in use: batches read ahead take "
        f"up to REGARD_DATA_MEMORY ({format_size(memory_limit())}, or one batch), and decoding takes {format_size(decoders)}"
    )


def decoding_memory(largest: int) -> int:
    """Bytes that all workers need to decode: the file, the image at full size, turned and scaled, and what the allocator
    keeps (``benchmarks/data.py`` measures it)."""
    return workers() * 4 * largest + 32 * 2**20


def hash_images(images: UInt8[Tensor, "n channels height width"]) -> Int64[Tensor, "n"]:
    """64 bits of each image's content: equal images have equal hashes.

    >>> len(set(hash_images(torch.tensor([0, 1, 0], dtype=torch.uint8).view(3, 1, 1, 1)).tolist()))
    2
    """
    rows = images.contiguous().flatten(1).numpy()

    def digest(places: Sequence[int]) -> bytes:
        return b"".join(hashlib.sha256(rows[place].data).digest()[:8] for place in places)

    digests = b"".join(in_chunks(digest, range(len(rows))))
    return torch.frombuffer(bytearray(digests), dtype=torch.int64) if digests else torch.zeros(0, dtype=torch.int64)


def _blocks(files: DecodedPixels) -> Iterator[Tensor]:
    """Consecutive images, decoded a block at a time, the next one meanwhile. All unreadable files are named together, at the
    end."""
    unreadable: list[tuple[str, UnreadableImage]] = []
    rows = torch.arange(len(files)).split(max(1, BLOCK // torch.Size(files.shape).numel()))
    with ThreadPoolExecutor(2, thread_name_prefix="regard-decode") as ahead:
        started = deque(ahead.submit(files.try_read, each) for each in rows[:2])
        for number in range(len(rows)):
            block, bad = started.popleft().result()
            if number + 2 < len(rows):
                started.append(ahead.submit(files.try_read, rows[number + 2]))
            unreadable += bad
            if not unreadable:
                yield block
    refuse_unreadable(unreadable, len(files), files.where)


def _hash_file(path: Path) -> Path:
    return path.with_suffix(".hashes")


def _is_whole(path: Path, size: int, count: int) -> bool:
    sizes = [each.stat().st_size if each.is_file() else -1 for each in (path, _hash_file(path))]
    return sizes == [size, 8 * count]


def _write(files: DecodedPixels, path: Path, size: int) -> str | None:
    """Write the cache, or say why the disk has no room for it. One process writes, others wait for it."""
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
                digests, flushed = [], None
                with ThreadPoolExecutor(1) as disk_writer:  # so that the disk works while images are decoded
                    for block in _blocks(files):
                        file.write(block.numpy().data)
                        file.flush()
                        digests.append(hash_images(block))
                        if flushed is not None:
                            flushed.result()
                        flushed = disk_writer.submit(os.fsync, file.fileno())
                hashes.write_bytes(torch.cat(digests).numpy().tobytes())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            hashes.unlink(missing_ok=True)
            raise
    return None


def _announce(text: str) -> None:
    """Printed on a terminal or not: it tells how much disk or time is about to be spent."""
    print(text, file=sys.stderr)
