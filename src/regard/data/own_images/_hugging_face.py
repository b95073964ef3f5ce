"""Folders that ``save_to_disk`` of Hugging Face's ``datasets`` wrote."""

from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from regard.data._random import random_bits
from regard.data.own_images._arrays import number_labels
from regard.data.own_images._cache_file import store
from regard.data.own_images._collection import PART_NAMES, Collection, Part, complete_parts
from regard.data.own_images._decode import read_headers
from regard.data.own_images._errors import UnsuitableDataError
from regard.data.own_images._folder import shape_of
from regard.data.own_images._pixels import DecodedPixels
from regard.support.text import error_in_words, listed


def is_saved_dataset(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file()


def read_saved_dataset(folder: Path, image_size: int | None) -> Collection:
    """Read a data set with one column of images and one of labels."""
    tables = _load_tables(folder)
    features = tables["train"].features
    image, label = _column(features, "Image", folder), _column(features, "ClassLabel", folder)
    for part, table in tables.items():  # labels are numbers, which have a meaning by the names alone
        if type(table.features.get(image)) is not type(features[image]) or table.features.get(label) != features[label]:
            raise UnsuitableDataError(
                f"{folder} has images in {image!r} and the classes {listed(features[label].names)} in {label!r} of train, "
                f"but the split {part} has not: cast all splits to the same features before you save them"
            )
    columns = [table.data.column(image) for table in tables.values()]  # entries are {"bytes", "path"}, not decoded
    places = [(column, row) for column in columns for row in range(len(column))]
    spans: dict[Part, torch.Tensor] = {}
    first = 0
    for part, table in tables.items():
        spans[part] = torch.arange(first, first + len(table))
        first += len(table)

    def open_file(number: int) -> Path | BytesIO:
        column, row = places[number]
        stored = column[row].as_py()
        if stored["bytes"] is not None:
            return BytesIO(stored["bytes"])
        place = Path(stored["path"] or "")
        return place if place.is_file() else BytesIO()  # a pipe, a device or a missing file counts as unreadable

    def name(number: int) -> str:
        part = next(part for part, rows in spans.items() if number <= int(rows[-1]))
        return f"{part} image {number - int(spans[part][0])}"

    shape, largest = shape_of(
        read_headers(open_file, first), [name(row) for row in range(first)], image_size, str(folder)
    )
    prints = "-".join(str(table._fingerprint) for table in tables.values())
    stored = store(DecodedPixels(open_file, name, first, shape, str(folder), largest), f"{folder.name}-{prints}"[:100])
    every = [torch.tensor(list(table[label])) for table in tables.values()]
    labels, classes = number_labels(str(folder), every, tuple(features[label].names))
    ranks = random_bits(torch.arange(first), "own images")
    parts, notes = complete_parts(spans, labels, ranks)
    return Collection(str(folder), stored.pixels, labels, classes, parts, ranks, stored.hashes, name, tuple(notes))


def _load_tables(folder: Path) -> dict[Part, Any]:
    try:
        import datasets
    except ImportError as missing:
        raise UnsuitableDataError(
            f"{folder} was written by Hugging Face's datasets, which is not installed: pip install 'regard[hf]'"
        ) from missing
    try:
        found: Any = datasets.load_from_disk(str(folder))
    except Exception as error:  # errors of JSON, of Arrow, or of datasets itself
        raise UnsuitableDataError(f"{folder} cannot be read as a saved data set: {error_in_words(error)}") from error
    whole = dict(found.items()) if isinstance(found, dict) else {"train": found}
    tables: dict[Part, Any] = {PART_NAMES[name]: table for name, table in whole.items() if name in PART_NAMES}
    if "train" not in tables:
        raise UnsuitableDataError(f"{folder} has the splits {', '.join(whole) or 'none'}, but no train")
    return tables


def _column(features: Any, kind: str, folder: Path) -> str:
    """The name of the only column whose feature is of this class of datasets."""
    import datasets

    names = [name for name, feature in features.items() if isinstance(feature, getattr(datasets, kind))]
    if len(names) != 1:
        raise UnsuitableDataError(
            f"{folder} has {len(names)} columns of type {kind} ({', '.join(names) or 'its columns are ' + ', '.join(features)}); "
            f"one would fit"
        )
    return str(names[0])
