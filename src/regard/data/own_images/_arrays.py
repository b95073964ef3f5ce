"""Arrays in one file: ``.npz`` or ``.safetensors`` with images and labels."""

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.data._random import random_bits
from regard.data.own_images._cache_file import hash_images
from regard.data.own_images._collection import PART_NAMES, Collection, Part, complete_parts
from regard.data.own_images._decode import fit
from regard.data.own_images._errors import UnsuitableDataError
from regard.data.own_images._pixels import TensorPixels
from regard.support.checks import describe
from regard.support.reading import check_regular, open_regular, parse_json
from regard.support.text import format_size, listed

IMAGE_NAMES, LABEL_NAMES, CLASS_NAMES = ("images", "image", "x"), ("labels", "label", "y"), ("classes", "class_names")
EXPECTED = "train_images and train_labels (and test_images and test_labels), or images and labels"
# Errors of damaged or hostile archives: also encrypted ones, unknown compression, and huge sizes.
_ZIP = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    tokenize.TokenError,
    SyntaxError,
)


class Arrays(NamedTuple):
    """The arrays of a file by name; labels may be strings."""

    images: dict[Part, Tensor]
    labels: dict[Part, Any]
    classes: tuple[str, ...] | None


def read_arrays(path: Path, image_size: int | None) -> Collection:
    """Read an ``.npz`` or ``.safetensors`` file."""
    try:
        check_regular(path)
        named, classes = (_read_npz if path.suffix == ".npz" else _read_safetensors)(path)
    except (OSError, ValueError, KeyError, EOFError, *_ZIP) as error:
        if isinstance(error, UnsuitableDataError | FileNotFoundError):
            raise
        raise UnsuitableDataError(f"{path} cannot be read as {path.suffix}: {str(error)[:200]}") from error
    found = _sort(named, path)
    images = {part: to_bytes(array, f"{part} images in {path}") for part, array in found.images.items()}
    shapes = {tuple(array.shape[1:]) for array in images.values()}
    if len(shapes) > 1:
        raise UnsuitableDataError(f"{path} has images of different shapes: {sorted(shapes)}")
    return gather(str(path), images, found.labels, classes or found.classes, image_size)


def gather(
    where: str,
    images: dict[Part, Tensor],
    labels: dict[Part, Any],
    classes: tuple[str, ...] | None,
    image_size: int | None,
) -> Collection:
    """One collection of arrays of images (uint8) and labels (numbers or strings) of each part."""
    every = torch.cat(list(images.values()))
    if image_size is not None and tuple(every.shape[2:]) != (image_size, image_size):
        every = fit(every.numpy(), image_size, image_size).contiguous()
    numbers, names = number_labels(where, [labels[part] for part in images], classes)
    if len(numbers) != len(every):
        raise UnsuitableDataError(f"{where} has {len(every):,} images but {len(numbers):,} labels")
    parts: dict[Part, Tensor] = {}
    first, firsts = 0, {}
    for part, array in images.items():
        parts[part], firsts[part] = torch.arange(first, first + len(array)), first
        first += len(array)
    ranks = random_bits(torch.arange(len(every)), "own images")
    complete, notes = complete_parts(parts, numbers, ranks)

    def name(row: int) -> str:
        part = max((part for part in firsts if firsts[part] <= row), key=lambda part: firsts[part])
        return f"{part} image {row - firsts[part]}"

    return Collection(
        where, TensorPixels(every, where), numbers, names, complete, ranks, hash_images(every), name, tuple(notes)
    )


def number_labels(where: str, labels: list[Any], classes: tuple[str, ...] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as numbers, and the classes' names; strings are numbered in alphabetical order."""
    flat = [value for part in labels for value in _flat(part)]
    if classes is not None and len(set(classes)) < len(classes):
        raise UnsuitableDataError(f"{where} names a class twice: {listed(sorted(classes))}")
    if flat and isinstance(flat[0], str):
        names = classes or tuple(sorted(set(flat)))
        if unknown := sorted(set(flat) - set(names)):
            raise UnsuitableDataError(f"{where} has labels {unknown[:5]} that are not among its classes")
        numbers = {name: number for number, name in enumerate(names)}
        return torch.tensor([numbers[value] for value in flat]), names
    if any(isinstance(value, float) and value % 1 != 0 for value in flat):
        raise UnsuitableDataError(f"labels in {where} must be whole numbers or strings")
    found = torch.tensor([int(value) for value in flat], dtype=torch.int64)
    if len(found) and int(found.min()) < 0:
        raise UnsuitableDataError(f"labels in {where} must be 0 or more, got {int(found.min())}")
    count = int(found.max()) + 1 if len(found) else 0
    if classes is not None and count > len(classes):
        raise UnsuitableDataError(f"{where} names {len(classes)} classes but has the label {count - 1}")
    if classes is None and count > max(len(found), 2):
        raise UnsuitableDataError(f"{where} has {len(found):,} images but the label {count - 1}: labels count from 0")
    return found, classes or tuple(str(number) for number in range(count))


def to_bytes(array: Any, what: str) -> Tensor:
    """Images as uint8 (n, channels, height, width), from (n, h, w), (n, h, w, c) or (n, c, h, w), bytes or 0 … 1.

    >>> to_bytes(torch.ones(2, 8, 8, 3), "images").shape
    torch.Size([2, 3, 8, 8])
    """
    if not isinstance(array, Tensor):
        raise UnsuitableDataError(f"{what} must hold bytes (uint8) or numbers from 0 to 1, got {describe(array):.100}")
    if array.ndim == 3:
        array = array[:, None]
    if array.ndim != 4:
        raise UnsuitableDataError(
            f"{what} must be (n, height, width) with or without channels, got {tuple(array.shape)}"
        )
    first, last = array.shape[1] in (1, 3), array.shape[3] in (1, 3)
    if first == last:
        why = "which axis has the channels is not clear" if first else "no axis has 1 or 3 channels"
        raise UnsuitableDataError(
            f"{what} have the shape {tuple(array.shape)}, where {why}; (n, channels, height, width) fits"
        )
    if last:
        array = array.permute(0, 3, 1, 2)
    if array.is_floating_point():
        array = array if array.dtype == torch.float64 else array.float()  # since half precision supports few operations
        low, high = (float(value) for value in torch.aminmax(array)) if array.numel() else (0.0, 0.0)
        whole = 1 < high <= 255 and bool((array == array.round()).all())
        if not (low >= 0 and (high <= 1 or whole)):
            raise UnsuitableDataError(
                f"{what} hold numbers from {low:g} to {high:g}; whole numbers from 0 to 255, or others from 0 to 1, fit"
            )
        array = array if whole else (array * 255).round()
    elif array.is_complex() or (array.numel() and not 0 <= int(array.min()) <= int(array.max()) <= 255):
        found = "complex numbers" if array.is_complex() else f"numbers from {int(array.min())} to {int(array.max())}"
        raise UnsuitableDataError(f"{what} hold {found}; whole numbers from 0 to 255, or others from 0 to 1, fit")
    return array.to(torch.uint8).contiguous()


def _read_npz(path: Path) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    import numpy as np

    with open_regular(path) as opened:
        if opened.read(2) != b"PK":
            raise ValueError("it is not an archive of arrays")
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as file:  # nothing is unpickled
            _check_room(sum(member.file_size for member in file.zip.infolist()))
            named: dict[str, Any] = {name: file[name] for name in file.files}
    if other := [name for name, array in named.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"it holds entries that are not arrays: {listed(other, most=3)}")
    classes = next((tuple(str(each) for each in named.pop(name)) for name in CLASS_NAMES if name in named), None)
    return {name: array if array.dtype.kind in "US" else _tensor(array) for name, array in named.items()}, classes


def _read_safetensors(path: Path) -> tuple[dict[str, Any], tuple[str, ...] | None]:
    from safetensors import SafetensorError, safe_open

    try:
        _check_room(path.stat().st_size)
        with safe_open(path, "pt") as file:
            named = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
            said = (file.metadata() or {}).get("classes")
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    classes = None if said is None else parse_json(said)
    if classes is not None and not (isinstance(classes, list) and all(isinstance(each, str) for each in classes)):
        raise UnsuitableDataError(f"{path} must name its classes as a JSON list of strings, got {said:.100}")
    return named, None if classes is None else tuple(classes)


def _check_room(size: int) -> None:
    """Refuse arrays that exceed the memory: a small archive or a sparse file can hold any number of zeros."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**35
    if size > memory // 2:
        raise ValueError(
            f"it holds {format_size(size)} when unpacked, more than half of this machine's memory: "
            "pass a folder of images instead, which is read on demand"
        )


def _tensor(array: Any) -> Tensor:
    import numpy as np

    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)  # torch has the machine's byte order alone
    return torch.from_numpy(np.ascontiguousarray(array))


def _sort(named: dict[str, Any], path: Path) -> Arrays:
    """Find the images and labels of each part by their names: train_images, x_test, val_labels, images …"""
    images: dict[Part, Tensor] = {}
    labels: dict[Part, Any] = {}
    for name, array in named.items():
        words = name.lower().split("_")
        part: Part = next((PART_NAMES[word] for word in words if word in PART_NAMES), "train")
        if any(word in IMAGE_NAMES for word in words):
            images[part] = array
        elif any(word in LABEL_NAMES for word in words):
            labels[part] = array
    if "train" not in images or images.keys() != labels.keys():
        raise UnsuitableDataError(f"{path} has the arrays {', '.join(named) or 'none'}; {EXPECTED} would fit")
    order: Callable[[Part], int] = partial(lambda parts, part: parts.index(part), ["train", "validation", "test"])
    ordered = sorted(images, key=order)
    for part in ordered:
        if not isinstance(images[part], Tensor) or not images[part].ndim:
            raise UnsuitableDataError(f"{path} has {part} images that are not arrays of numbers")
        count = len(labels[part]) if labels[part].ndim else 1
        if len(images[part]) != count:
            raise UnsuitableDataError(f"{path} has {len(images[part]):,} {part} images but {count:,} labels")
        if math.prod(shape := tuple(labels[part].shape)) != len(images[part]):
            raise UnsuitableDataError(f"{path} has {part} labels of shape {shape}; one for each image fits")
    return Arrays({part: images[part] for part in ordered}, labels, None)


def _flat(labels: Any) -> list[Any]:
    if isinstance(labels, Tensor):
        return list(labels.flatten().tolist())
    return [
        value.decode(errors="replace") if isinstance(value, bytes) else value for value in labels.reshape(-1).tolist()
    ]
