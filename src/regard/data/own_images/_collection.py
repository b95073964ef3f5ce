"""The result of every reader of your images: pixels, labels, and the split of each image."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from regard.data.own_images._errors import UnsuitableDataError
from regard.data.own_images._pixels import DecodedPixels, Pixels
from regard.support.text import listed, whole_characters

Part = Literal["train", "validation", "test"]
TEST_SHARE = 0.1
PART_NAMES: dict[str, Part] = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True, eq=False)
class Collection:
    """Images from any kind of source.

    Attributes:
        where: the folder or file.
        pixels: all images, of all parts.
        labels: the class number of each image.
        classes: names of the classes.
        parts: indices of the images of each part, at least "train" and "test".
        ranks: a number for each image; images with low ranks are held out first.
        hashes: 64 bits for each image, or for its file: equal images have equal hashes.
        name: returns the name of an image in messages, by its index.
        notes: what the user should know about the data, one sentence each.
    """

    where: str
    pixels: Pixels
    labels: Int64[Tensor, "n"]
    classes: tuple[str, ...]
    parts: dict[Part, Int64[Tensor, "_"]]
    ranks: Int64[Tensor, "n"]
    hashes: Int64[Tensor, "n"]
    name: Callable[[int], str]
    notes: tuple[str, ...] = field(default=())


def rank_of(name: str) -> int:
    """A number computed from a file's name, so that new files do not move old ones to another part.

    >>> rank_of("cat/1.png") == rank_of("cat/1.png") != rank_of("cat/2.png")
    True
    """
    return int.from_bytes(hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=7).digest())


def hold_out(labels: Int64[Tensor, "n"], ranks: Int64[Tensor, "n"], share: float) -> Bool[Tensor, "n"]:
    """True for the share of each class with the lowest ranks; at least one image if a class has three.

    >>> hold_out(torch.tensor([0] * 10 + [1] * 3 + [2]), torch.arange(14), 0.2).nonzero().flatten()
    tensor([ 0,  1, 10])
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    if share > 0:
        for label in labels.unique().tolist():
            members = (labels == label).nonzero().flatten()
            count = max(round(share * len(members)), 1) if len(members) >= 3 else 0
            held[members[ranks[members].argsort()[:count]]] = True
    return held


def complete_parts(parts: dict[Part, Tensor], labels: Tensor, ranks: Tensor) -> tuple[dict[Part, Tensor], list[str]]:
    """Make sure that there is a test set: without one, the validation part becomes the test set, and without either a tenth
    of each class is set aside. Images that come class by class are mixed. Returns notes about the changes."""
    notes: list[str] = []
    if "test" not in parts and "validation" in parts:
        parts = {"train": parts["train"], "test": parts["validation"]}
    elif "test" not in parts:
        train = parts["train"]
        held = hold_out(labels[train], ranks[train], TEST_SHARE)
        parts = {"train": train[~held], "test": train[held]}
        notes.append(
            f"there is no test set: {int(held.sum()):,} of the {len(train):,} images, a tenth of each class, are set aside for it"
        )
    return {part: rows[mix_classes(labels[rows], ranks[rows])] for part, rows in parts.items()}, notes


def mix_classes(labels: Int64[Tensor, "n"], ranks: Int64[Tensor, "n"]) -> Int64[Tensor, "n"]:
    """An order in which the first images are a fair sample of all classes.

    A folder lists its images class by class. Whoever then takes the first images (``limit``, a curve on some samples, the
    pictures of a page) would see a single class. So such images are ordered by their place in their own class, as a share
    of its size. Labels that change at least half as often as in a random order keep theirs.

    >>> mix_classes(torch.tensor([0] * 4 + [1] * 2), torch.arange(6))
    tensor([0, 4, 1, 2, 5, 3])
    >>> mix_classes(torch.tensor([0, 1, 0, 0, 1, 0]), torch.arange(6))
    tensor([0, 1, 2, 3, 4, 5])
    """
    sizes = labels.bincount()
    changes = int((labels[1:] != labels[:-1]).sum())
    random = (len(labels) - 1) * (1 - float((sizes / max(len(labels), 1)).square().sum()))  # expected changes
    if changes >= max(random / 2, int((sizes > 0).sum())):
        return torch.arange(len(labels))
    by_class = ranks.argsort(stable=True)
    by_class = by_class[labels[by_class].argsort(stable=True)]  # class by class, and by rank in each
    place = torch.empty_like(labels)
    place[by_class] = torch.cat([torch.arange(size) for size in sizes.tolist()])
    return (place / sizes[labels]).argsort(stable=True)


def check(collection: Collection) -> list[str]:
    """Refuse data that cannot be trained on; return a sentence about each other problem."""
    labels, classes, parts = collection.labels, collection.classes, collection.parts
    if len(classes) < 2:
        only = Path(collection.where, *classes)
        hint = f": if the folders in it are the classes, pass {only}" if only.is_dir() else ""
        raise UnsuitableDataError(
            f"{collection.where} has only the class {classes[0]!r}{hint}"
            if classes
            else f"{collection.where} has no classes"
        )
    if broken := [name for name in classes if name != whole_characters(name)]:
        raise UnsuitableDataError(f"{collection.where} has names that are no complete Unicode: {_classes(broken)}")
    counts = {part: labels[rows].bincount(minlength=len(classes)) for part, rows in parts.items()}
    if untrained := _names_of(classes, counts["train"] == 0):
        raise UnsuitableDataError(f"{collection.where} has no training image of {_classes(untrained)}")
    notes = list(collection.notes)
    if untested := _names_of(classes, counts["test"] == 0):
        them = "it" if len(untested) == 1 else "them"
        notes.append(f"there is no test image of {_classes(untested)}: the test accuracy says nothing about {them}")
    return notes + _compare(collection, collection.hashes)


def fingerprint(collection: Collection) -> dict[str, Any]:
    """A fingerprint of these images, independent of their path, as JSON: their number, a checksum of their labels, parts,
    order and hashes, and one of their ranks, by which images are held out and mixed. Hashes ``of`` pixels and hashes of files
    cannot be compared."""
    digest, ranks = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    for part in sorted(collection.parts):
        rows = collection.parts[part].sort().values  # in the order of the source
        digest.update(f"{part} {len(rows)} ".encode())
        digest.update(collection.labels[rows].numpy().tobytes() + collection.hashes[rows].numpy().tobytes())
        ranks.update(collection.ranks[rows].numpy().tobytes())
    of = "files" if isinstance(collection.pixels, DecodedPixels) else "pixels"
    return {"count": len(collection.labels), "of": of, "checksum": digest.hexdigest(), "ranks": ranks.hexdigest()}


def _compare(collection: Collection, hashes: Tensor) -> list[str]:
    train, notes = collection.parts["train"], []
    if len(train) > 1 and bool((hashes[train] == hashes[train[0]]).all()):
        raise UnsuitableDataError(f"all {len(train):,} training images in {collection.where} are equal")
    first = dict(zip(hashes[train].tolist(), train.tolist(), strict=True))
    for part in ("validation", "test"):
        rows = collection.parts.get(part)  # type: ignore[call-overload]
        if rows is None:
            continue
        pairs = [
            (row, first[value])
            for row, value in zip(rows.tolist(), hashes[rows].tolist(), strict=True)
            if value in first
        ]
        if pairs:
            name = collection.name
            notes.append(
                f"{len(pairs):,} of the {len(rows):,} {part} images are also training images, so the {part} accuracy is "
                f"too high: {listed([f'{name(row)} = {name(other)}' for row, other in pairs], most=3)}"
            )
    odd = {
        collection.name(row)
        for value, row in zip(hashes[train].tolist(), train.tolist(), strict=True)
        if collection.labels[row] != collection.labels[first[value]]
    }
    if odd:
        notes.append(f"{len(odd):,} training images also occur with another class: {listed(sorted(odd), most=3)}")
    return notes


def _names_of(classes: Sequence[str], which: Tensor) -> list[str]:
    return [name for name, chosen in zip(classes, which.tolist(), strict=True) if chosen]


def _classes(names: Sequence[str]) -> str:
    return f"{'class' if len(names) == 1 else 'the classes'} {listed([repr(name) for name in names])}"
