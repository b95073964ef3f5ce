"""MNIST, Fashion-MNIST and similar sets as torchvision stores them: four idx files, compressed or not."""

import gzip
import hashlib
import zlib
from pathlib import Path

from torch import Tensor

from regard.data._image_sets import parse_idx
from regard.data._sources import source_of
from regard.data.own_images._arrays import gather
from regard.data.own_images._collection import Collection, Part
from regard.data.own_images._errors import UnsuitableDataError
from regard.support.reading import open_regular, read_limited

LARGEST = 1024 * 2**20  # bytes of one unpacked file: EMNIST has one of 550 MB
STARTS: dict[Part, str] = {"train": "train", "test": "t10k"}
FORMS = ("{}-{}-{}-ubyte", "{}-{}.{}-ubyte")  # the published spelling, and that of many unpackers
FASHION = source_of("fashion-mnist")
FOLDERS = (".", "raw", "FashionMNIST/raw", "MNIST/raw", "KMNIST/raw")


def find_idx_files(path: Path) -> dict[Part, tuple[Path, Path]] | None:
    """The files of images and of labels of each part, in the folder or in torchvision's folders inside it."""
    for folder in (path / name for name in FOLDERS):
        found = {
            part: (_file(folder, start, "images", 3), _file(folder, start, "labels", 1))
            for part, start in STARTS.items()
        }
        complete = {part: (images, labels) for part, (images, labels) in found.items() if images and labels}
        if "train" in complete:
            return complete
    return None


def _file(folder: Path, start: str, what: str, axes: int) -> Path | None:
    names = (form.format(start, what, f"idx{axes}") + ending for form in FORMS for ending in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx_files(files: dict[Part, tuple[Path, Path]], image_size: int | None) -> Collection:
    """Read the images and labels. Fashion-MNIST has the names of its classes; others have numbers."""
    where = files["train"][0].parent
    images: dict[Part, Tensor] = {}
    labels: dict[Part, Tensor] = {}
    known = False
    try:
        for part, (pictures, numbers) in files.items():
            known |= _is_fashion(part, content := _content(numbers))
            found, labels[part] = parse_idx(_content(pictures)), parse_idx(content).long()
            if found.ndim != 3 or labels[part].shape != found.shape[:1] or not len(found):
                shapes = f"{tuple(found.shape)} and {tuple(labels[part].shape)}"
                raise ValueError(f"{pictures.name} and {numbers.name} have the shapes {shapes}")
            images[part] = found[:, None]
        if len({tuple(each.shape[1:]) for each in images.values()}) > 1:
            raise ValueError("training and test images differ in size")
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise UnsuitableDataError(f"{where} does not hold images and labels in idx files: {error}") from error
    return gather(str(where), images, labels, FASHION.classes if known else None, image_size)


def _is_fashion(part: Part, labels: bytes) -> bool:
    published = FASHION.members[f"{STARTS[part]}-labels-idx1-ubyte"]
    return hashlib.md5(labels, usedforsecurity=False).hexdigest() == published


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return read_limited(path, LARGEST)
    with open_regular(path) as packed, gzip.open(packed) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"{path.name} unpacks to more than {LARGEST:,} bytes")
    return content
