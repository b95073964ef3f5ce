"""MNIST's kin where torchvision keeps them: found in every form, refused in words where damaged."""

import gzip
import struct

import pytest
import torch

from regard.data import UnsuitableDataError, open_data
from regard.data.own_images import open_images


@pytest.fixture(autouse=True)
def _fresh():
    open_images.cache_clear()
    yield
    open_images.cache_clear()


def idx(values):
    return (
        struct.pack(">HBB", 0, 8, values.ndim)
        + struct.pack(f">{values.ndim}I", *values.shape)
        + bytes(values.flatten().tolist())
    )


def write(folder, name="{}-{}-{}-ubyte", packed=False, parts=(("train", 60), ("t10k", 20))):
    """Images of 5 × 4 that are all different; labels 0, 1, 2 in turn."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {}
    for start, count in parts:
        images[start] = torch.randint(256, (count, 5, 4), dtype=torch.uint8)
        for what, values in (("images", images[start]), ("labels", torch.arange(count, dtype=torch.uint8) % 3)):
            file = folder / (name.format(start, what, f"idx{values.ndim}") + ".gz" * packed)
            file.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    return images


@pytest.mark.parametrize("place", [".", "raw", "MNIST/raw", "FashionMNIST/raw"])
@pytest.mark.parametrize(("name", "packed"), [("{}-{}-{}-ubyte", True), ("{}-{}.{}-ubyte", False)])
def test_they_are_found_where_they_are(tmp_path, place, name, packed):
    images = write(tmp_path / place, name, packed)
    own = open_data(str(tmp_path))
    assert (own.classes, own.shape) == (("0", "1", "2"), (1, 5, 4))
    assert (len(own.train) + len(own.validation), len(own.test())) == (60, 20)
    assert torch.equal(own.test().images[:, 0], images["t10k"])
    assert own.test().labels.tolist() == [number % 3 for number in range(20)]


def test_training_images_alone_are_divided(tmp_path):
    write(tmp_path, parts=(("train", 60),))
    own = open_data(str(tmp_path))
    assert len(own.train) + len(own.validation) + len(own.test()) == 60
    assert any("test" in note for note in own.notes)


def test_what_is_damaged_is_named(tmp_path):
    write(tmp_path, packed=True)
    images = tmp_path / "train-images-idx3-ubyte.gz"
    labels = tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole, few = images.read_bytes(), labels.read_bytes()
    for path, content in (
        (images, whole[:50]),
        (images, b"text"),
        (images, gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12)),
        (labels, gzip.compress(idx(torch.zeros(3, dtype=torch.uint8)))),
    ):
        images.write_bytes(whole)
        labels.write_bytes(few)
        path.write_bytes(content)
        with pytest.raises(UnsuitableDataError, match="does not hold images and labels in idx files"):
            open_data(str(tmp_path))
