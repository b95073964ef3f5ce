"""Images that change while a process has them open, and folders that belong to no part."""

import dataclasses
import os

import numpy as np
import pytest
from PIL import Image

import regard
from regard import recipes
from regard.data import open_data

pytestmark = pytest.mark.usefixtures("own_cache")


def write(path, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(path)


def photos(folder, names, count, first=0):
    for number in range(first, first + count):
        write(folder / names[number % len(names)] / f"{number}.png", number)


def test_images_that_changed_are_read_again_in_the_same_process(tmp_path):
    """As in a notebook: train, see what is wrong with the images, mend them, train again."""
    photos(tmp_path, "ab", 40)
    before = open_data(str(tmp_path))
    assert open_data(str(tmp_path)) is before
    write(tmp_path / "c" / "0.png", 7)
    assert open_data(str(tmp_path), recheck=False) is before
    after = open_data(str(tmp_path))
    assert after.classes == ("a", "b", "c")
    write(tmp_path / "a" / "0.png", 12345)
    os.utime(tmp_path / "a" / "0.png", (1, 1))
    assert open_data(str(tmp_path)).fingerprint != after.fingerprint


def test_a_file_of_arrays_that_changed_is_read_again(tmp_path):
    for classes in (2, 3):
        images = np.random.default_rng(classes).integers(0, 255, (30, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / "images.npz", images=images, labels=np.arange(30) % classes)
        assert len(open_data(str(tmp_path / "images.npz")).classes) == classes


def test_folders_beside_the_parts_are_noted(tmp_path):
    for part in ("train", "test", "unlabeled"):
        photos(tmp_path / part, "ab", 16, first=len(part) * 100)
    own = open_data(str(tmp_path))
    assert any("16 files" in note and "unlabeled/a/" in note for note in own.notes)


def test_training_and_evaluation_use_the_images_as_they_are_now(tmp_path):
    photos(tmp_path / "photos", "ab", 60)
    recipe = recipes.get("fashion-vit").smoke()
    task = dataclasses.replace(recipe.task, data=str(tmp_path / "photos"), validation=0.1, limit=None)
    recipe = dataclasses.replace(recipe, task=task, batch_size=16)

    def train(name):
        return regard.train(recipe, folder=tmp_path / name, accelerator="cpu", tensorboard=False, progress=False)

    train("first")
    photos(tmp_path / "photos", "ab", 60, first=100)
    second = train("second")
    counts = [
        regard.load_run(tmp_path / name).checkpoint().state["data"]["images"]["count"] for name in ("first", "second")
    ]
    assert counts == [60, 120]
    photos(tmp_path / "photos", "ab", 200, first=300)
    assert regard.training.evaluate_run(second.folder, accelerator="cpu")["targets"] == 32
