"""The embedded data set is what it says it is, and splits hold out what they should."""

import dataclasses
import gzip
import hashlib
import importlib.util
import sys
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import DataSet, ImageSet, _cache, load, status
from regard.data._image_sets import parse_idx, validation_mask
from regard.data._sources import FASHION_MINI, SOURCES

ROOT = Path(__file__).parents[2]
FILES = Path(FASHION_MINI.folders[0])


def moments(images):
    """(mean, standard deviation) of each channel in [0, 1], exactly, from counts of the 256 values."""
    result = []
    for channel in range(images.shape[1]):
        counts = torch.bincount(images[:, channel].flatten().int(), minlength=256).double()
        values = torch.arange(256, dtype=torch.float64) / 255
        mean = (counts * values).sum() / counts.sum()
        result.append((mean.item(), ((counts * (values - mean) ** 2).sum() / counts.sum()).sqrt().item()))
    return result


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("build_fashion_mini", ROOT / "scripts" / "build_fashion_mini.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_embedded_set_is_whole_small_and_licensed():
    for member, expected in FASHION_MINI.members.items():
        content = gzip.decompress((FILES / f"{member}.gz").read_bytes())
        assert hashlib.sha256(content).hexdigest() == expected
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 4_000_000
    assert "MIT License" in (FILES / "NOTICE").read_text()
    assert "Zalando" in (FILES / "NOTICE").read_text()
    assert status("fashion-mini").state == "embedded"


def test_the_embedded_set_needs_no_folder(monkeypatch):
    monkeypatch.delenv("REGARD_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert len(load("fashion-mini").train) == 5400


def test_damage_to_the_embedded_set_is_noticed(monkeypatch, tmp_path):
    for path in FILES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    labels = tmp_path / "train-labels-idx1-ubyte.gz"
    content = bytearray(gzip.decompress(labels.read_bytes()))
    content[8] ^= 1
    labels.write_bytes(gzip.compress(bytes(content)))
    monkeypatch.setitem(SOURCES, "fashion-mini", dataclasses.replace(FASHION_MINI, folders=(str(tmp_path),)))
    with pytest.raises(FileNotFoundError, match="reinstall regard"):
        load("fashion-mini").train  # noqa: B018


def test_classes_are_balanced_and_disjoint():
    data = load("fashion-mini")
    assert data.train.labels.bincount().tolist() == [540] * 10
    assert data.validation.labels.bincount().tolist() == [60] * 10
    assert data.test().labels.bincount().tolist() == [100] * 10
    rows = torch.cat([part.images.flatten(1) for part in (data.train, data.validation)])
    whole = load("fashion-mini", validation=0).train.images.flatten(1)
    assert torch.equal(rows.unique(dim=0), whole.unique(dim=0))
    assert len(rows) == len(whole) == 6000


def test_shapes_types_and_names():
    data = load("fashion-mini")
    assert isinstance(data, DataSet)
    for part in (data.train, data.validation, data.test()):
        assert part.images.dtype == torch.uint8
        assert part.images.shape[1:] == data.shape == (1, 28, 28)
        assert part.labels.dtype == torch.int64
        assert len(part.classes) == 10
    assert data.train is data.train, "read once"


def test_the_test_set_is_not_touched_unless_it_is_called_for(monkeypatch):
    read = []
    monkeypatch.setattr(
        _cache, "_content", lambda path, original=_cache._content: read.append(path.name) or original(path)
    )
    data = load("fashion-mini")
    assert read == [], "nothing is read before it is asked for"
    assert len(data.train) + len(data.validation) == 6000
    assert sorted(read) == ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    data.test()
    assert sorted(read[2:]) == ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"]


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist", "fashion-mini"])
def test_recorded_moments_are_those_of_the_official_training_set(name):
    if status(name).state not in ("present", "embedded"):
        pytest.skip(f"{name} is not on this machine")
    data = load(name, validation=0, download=False)
    for (mean, std), recorded_mean, recorded_std in zip(moments(data.train.images), data.mean, data.std, strict=True):
        assert abs(mean - recorded_mean) < 1e-8
        assert abs(std - recorded_std) < 1e-8
    assert len(data.train) == data.source.train_count
    assert data.train.labels.bincount().unique().numel() == 1
    assert data.test().labels.bincount().unique().numel() == 1


def test_the_script_builds_the_embedded_set_bit_for_bit(script):
    if status("fashion-mnist").state != "present":
        pytest.skip("fashion-mnist is not on this machine")
    for name, content in script.build().items():
        assert hashlib.sha256(content).hexdigest() == FASHION_MINI.members[name]
        packed = script.gzipped(content)
        assert gzip.decompress(packed) == content
        if "ng" not in zlib.ZLIB_RUNTIME_VERSION:
            assert (FILES / f"{name}.gz").read_bytes() == packed


def test_the_script_takes_the_first_of_each_class_in_order(script):
    labels = torch.tensor([1, 0, 1, 1, 0, 0])
    assert script.first_of_each_class(labels, 2).tolist() == [0, 1, 2, 4]
    values = torch.arange(6, dtype=torch.uint8).reshape(1, 2, 3)
    assert torch.equal(parse_idx(script.idx(values)), values)
    assert gzip.decompress(script.gzipped(b"regard" * 100)) == b"regard" * 100


@given(st.integers(0, 300), st.integers(0, 300))
def test_validation_is_balanced_nested_and_always_the_same(first, second):
    labels = torch.arange(400).flip(0) % 10
    small, large = (validation_mask(labels, count, 10) for count in sorted((first, second)))
    assert small.sum() == min(first, second)
    counts = labels[large].bincount(minlength=10)
    assert counts.max() - counts.min() <= 1
    assert bool((large | ~small).all()), "a larger share holds out the same images and more"
    assert torch.equal(small, validation_mask(labels, min(first, second), 10))


def test_the_validation_set_is_pinned():
    """A split that changed from one version to the next would leak validation images into training."""
    held_out = validation_mask(load("fashion-mini", validation=0).train.labels, 600, 10)
    assert held_out.nonzero().flatten()[:8].tolist() == [13, 40, 68, 88, 90, 107, 117, 122]


def test_bad_input_is_refused(user_errors):
    with pytest.raises(ValueError, match="has only 6000 for training"):
        load("fashion-mini", validation=6000)
    for value in (-1, True, "some"):
        with pytest.raises(ValueError, match="validation must be"):
            load("fashion-mini", validation=value)
    with pytest.raises(ValueError, match="less than 1"):
        load("fashion-mini", validation=1.5)
    with pytest.raises(ValueError, match="which has only 2"):
        validation_mask(torch.tensor([0, 0, 1, 1, 1, 1]), 6, 2)
    images, labels = torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(ValueError, match="images must be uint8"):
        ImageSet(images.float(), labels, ("a",), (0.5,), (0.5,))
    with pytest.raises(ValueError, match="one for each of the 2 images"):
        ImageSet(images, labels[:1], ("a",), (0.5,), (0.5,))
    with pytest.raises(ValueError, match="mean has 3 numbers but images have 1 channels"):
        ImageSet(images, labels, ("a",), (0.5,) * 3, (0.5,))


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00\x00\x0d\x01\x00\x00\x00\x01x", b"\x00\x00\x08\x02\x00\x00", b"\x00\x00\x08\x01\x00\x00\x00\x05abc"],
)
def test_what_is_not_idx_is_refused(content):
    with pytest.raises(ValueError, match="idx file"):
        parse_idx(content)
