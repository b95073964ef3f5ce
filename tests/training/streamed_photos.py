"""A folder of photos that is streamed, and a recipe that trains on it. Used by the tests and by their processes."""

import json
import os

import numpy as np
from PIL import Image

from regard.data import Augmentation, StreamedSet
from regard.training import AdamWSettings, ImageEncoderSettings, ImageTask, Recipe

STREAMED = {
    "mapped": {"REGARD_DATA_MEMORY": "0"},
    "decoded": {"REGARD_DATA_MEMORY": "0", "REGARD_DATA_CACHE": "off"},
}


def write_photos(folder):
    """52 images of noise in two classes."""
    random = np.random.default_rng(0)
    for place, count in {"train/cat": 22, "train/dog": 22, "test/cat": 4, "test/dog": 4}.items():
        (folder / place).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(random.integers(0, 255, (10, 9, 3), dtype=np.uint8)).save(folder / place / f"{number}.png")
    return folder


def streamed_recipe(folder):
    """Five steps in an epoch, with images that are mixed, so that a step also reads images of other processes' batches."""
    augmentation = Augmentation(crop=1, flip="random", cutmix=1.0)
    task = ImageTask(str(folder), validation=0.1, image_size=8, augmentation=augmentation)
    network = ImageEncoderSettings(patch_size=4, dim=9, depth=1, hidden=8)
    return Recipe("photos", task, network, AdamWSettings(3e-3), epochs=2, batch_size=8)


def note_rows(path):
    """Append the images that each training batch of this process asks for to a file, one line for each batch."""
    plain = StreamedSet.pixels

    def pixels(self, index):
        with path.open("a") as file:
            file.write(json.dumps([len(self), *index.tolist()]) + "\n")
        return plain(self, index)

    StreamedSet.pixels = pixels


def use(settings):
    os.environ.update(settings)
