"""Folders of image files: ``train/CLASS/*.png`` with ``val/`` or ``test/`` likewise, or ``CLASS/*.png`` alone."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from regard.data.own_images._cache_file import store
from regard.data.own_images._collection import PART_NAMES, Collection, Part, complete_parts, rank_of
from regard.data.own_images._decode import SUFFIXES, Header, UnreadableImage, read_headers, refuse_unreadable
from regard.data.own_images._errors import UnsuitableDataError
from regard.data.own_images._pixels import DecodedPixels
from regard.support.text import file_name, listed


class ImageFile(NamedTuple):
    """One file of a folder; ``path`` is relative to it."""

    part: Part
    label: str
    path: str
    size: int
    changed: int


def read_folder(folder: Path, image_size: int | None) -> Collection:
    """Read a folder of images in classes."""
    files, ignored = list_files(folder)
    classes = sorted({file.label for file in files if file.part == "train"})
    if unknown := sorted({file.label for file in files} - set(classes)):
        raise UnsuitableDataError(
            f"{folder} has images of {listed([repr(name) for name in unknown])} for validation or test, but none for training"
        )

    def open_file(row: int) -> Path:
        return folder / files[row].path

    headers = read_headers(open_file, len(files))
    shape, largest = shape_of(headers, [file.path for file in files], image_size, str(folder))
    pixels = DecodedPixels(open_file, lambda row: files[row].path, len(files), shape, str(folder), largest)
    stored = store(pixels, _key(folder, files))
    numbers = {name: number for number, name in enumerate(classes)}
    labels = torch.tensor([numbers[file.label] for file in files])
    ranks = torch.tensor([rank_of(file.path) for file in files])
    given: dict[Part, torch.Tensor] = {
        part: torch.tensor([row for row, file in enumerate(files) if file.part == part])
        for part in dict.fromkeys(file.part for file in files)
    }
    parts, notes = complete_parts(given, labels, ranks)
    if ignored:
        notes.append(f"{len(ignored):,} files that are not images of a class are left out: {listed(ignored, most=3)}")
    return Collection(
        str(folder), stored.pixels, labels, tuple(classes), parts, ranks, stored.hashes, pixels.name, tuple(notes)
    )


def list_files(folder: Path) -> tuple[list[ImageFile], list[str]]:
    """The images of a folder in a fixed order, and the names of the other files."""
    named = _folders_of_parts(folder)
    files: list[ImageFile] = []
    ignored = [path for other in _folders(folder) if named and other not in named for path in _all_names(folder, other)]
    tops: dict[Path, Part] = named or {folder: "train"}
    for top, part in tops.items():
        classes = _folders(top)
        if not classes:
            raise UnsuitableDataError(f"{top} has no folders of classes: images belong in {top.name}/CLASS/*.png")
        ignored += [
            path.relative_to(folder).as_posix() for path in top.iterdir() if path.is_file() and _counts(path.name)
        ]
        for place in classes:
            found, others = _images(folder, place)
            if part == "train" and not found:
                raise UnsuitableDataError(f"there are no images in {place}: add some, or remove the folder")
            files += [ImageFile(part, file_name(place.name), *each) for each in found]
            ignored += others
    return sorted(files, key=lambda file: file.path), sorted(ignored)


def _folders_of_parts(folder: Path) -> dict[Path, Part]:
    """The folders train/, val/ and test/ with their parts; none if the folder holds classes itself."""
    folders = _folders(folder)
    named = {path: PART_NAMES[path.name.lower()] for path in folders if path.name.lower() in PART_NAMES}
    others = sorted(path.name for path in folders if path not in named)
    for path in named:
        if others and not _folders(path) and _images(folder, path)[0]:
            raise UnsuitableDataError(
                f"{path} has images, like a class, beside {listed(others)}; but a folder {path.name}/ is a part of the data "
                f"and has folders of classes: if it is a class, move all classes into a folder {folder / 'train'}"
            )
    if named and "train" not in named.values():
        raise UnsuitableDataError(f"{folder} has {listed(sorted(path.name for path in named))}, but no folder train/")
    if len(set(named.values())) < len(named):
        raise UnsuitableDataError(f"{folder} has several folders for one part: {listed(sorted(p.name for p in named))}")
    return named


def shape_of(
    headers: Sequence[Header | UnreadableImage], names: Sequence[str], image_size: int | None, where: str
) -> tuple[tuple[int, int, int], int]:
    """(channels, height, width) of the decoded images, from ``image_size`` or the common size; and the number of pixels of
    the largest file."""
    read = [header for header in headers if isinstance(header, Header)]
    bad = [(name, header) for name, header in zip(names, headers, strict=True) if isinstance(header, UnreadableImage)]
    refuse_unreadable(bad, len(headers), where)
    channels = 1 if all(header.gray for header in read) else 3
    largest = max((header.width * header.height for header in read), default=0)
    if image_size is not None:
        return (channels, image_size, image_size), largest
    sizes = {(header.height, header.width) for header in read}
    if len(sizes) > 1:
        low, high = min(sizes), max(sizes)
        raise UnsuitableDataError(
            f"the images in {where} have different sizes, such as {low[1]} × {low[0]} and {high[1]} × {high[0]} pixels: "
            f"choose one, such as --task.image-size 64 (the short side is scaled to it and the center is cropped)"
        )
    return (channels, *sizes.pop()), largest


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and _counts(path.name))


def _counts(name: str) -> bool:
    """Whether a name is neither hidden nor one that a system adds to folders and archives."""
    return not name.startswith(".") and name not in ("__MACOSX", "__pycache__")


def _all_names(root: Path, folder: Path) -> list[str]:
    found, others = _images(root, folder)
    return [name for name, *_ in found] + others


def _images(root: Path, folder: Path) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Names, sizes and dates of the images in a folder and its subfolders, and the names of other files. Links to folders
    are not followed, since they may form a cycle."""
    found, others = [], []
    for place, folders, names in os.walk(folder, onerror=_raise):  # by default it leaves out what may not be read
        folders[:] = filter(_counts, folders)  # os.walk does not enter the others
        others += [Path(place, name) for name in folders if Path(place, name).is_symlink()]
        for path in [Path(place, name) for name in names if _counts(name)]:
            if path.suffix.lower() in SUFFIXES:
                status = path.stat() if path.exists() else path.lstat()
                found.append((path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns))
            else:
                others.append(path)
    return found, [path.relative_to(root).as_posix() for path in others]


def _raise(error: OSError) -> None:
    raise error


def last_written(place: Path) -> int:
    """A number that changes with the name, size or date of any file at a path."""
    return sum(hash(file) for file in _every_file(str(place), 0)) & (2**63 - 1)


def _every_file(path: str, depth: int) -> Iterator[tuple[str, int, int]]:
    """Like the images of a class, also those in a link to its folder, but not in links further down."""
    try:
        if Path(path).is_file():
            status = os.stat(path)  # noqa: PTH116
            yield path, status.st_size, status.st_mtime_ns
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=depth < 2):
                    yield from _every_file(entry.path, depth + 1)
                elif entry.is_file():
                    status = entry.stat()
                    yield entry.path, status.st_size, status.st_mtime_ns
                else:
                    yield entry.path, 0, 0
    except OSError:
        return  # removed, or not to be read: whoever reads the images says so


def _key(folder: Path, files: Sequence[ImageFile]) -> str:
    """Changes with any file's name, size or date."""
    lines = "\n".join(f"{file.path}\t{file.size}\t{file.changed}" for file in files)
    digest = hashlib.sha256(f"{folder}\n{lines}".encode(errors="surrogateescape")).hexdigest()[:16]
    return f"{folder.name}-{digest}"
