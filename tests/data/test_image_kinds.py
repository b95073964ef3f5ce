"""Image files of every kind: their orientation, depth, transparency and EXIF data."""

import numpy as np
import pytest
import torch
from PIL import Image

from regard.data import UnsuitableDataError, decode_image, open_data
from regard.training import ImageTask

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize(("ending", "mode"), [("png", "L"), ("tif", "L"), ("tif", "RGB")])
def test_every_orientation_is_turned_upright_once(tmp_path, ending, mode, turn):
    upright = np.arange(96, dtype=np.uint8).reshape(8, 12)
    # What undoes the turn that each orientation asks for: 90 degrees undo 270.
    names = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270")
    exif = Image.Exif()
    exif[0x0112] = turn
    for number in range(6):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        file = Image.fromarray(upright + np.uint8(number)).convert(mode)
        if turn > 1:
            file = file.transpose(Image.Transpose[names[turn - 2]])
        file.save(tmp_path / "ab"[number % 2] / f"{number}.{ending}", exif=exif)
    own = open_data(str(tmp_path), validation=0)
    assert own.shape == (1 if mode == "L" else 3, 8, 12)
    pixels = torch.cat((own.train.images, own.test().images))[:, 0].int()
    assert (pixels - pixels[:, :1, :1] == torch.arange(96).reshape(8, 12)).all()


@pytest.mark.parametrize("kind", [np.float32, np.int32])
def test_pixels_without_a_largest_value_are_refused(tmp_path, kind):
    """As bytes, fractions from 0 to 1 would all be black."""
    for number in range(4):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        values = np.linspace(0, 255 if kind is np.int32 else 1, 64).reshape(8, 8).astype(kind)
        Image.fromarray(values).save(tmp_path / "ab"[number % 2] / f"{number}.tif")
    with pytest.raises(UnsuitableDataError, match="save it with 8 or 16 bits"):
        open_data(str(tmp_path))


def test_exif_data_that_cannot_be_read_is_no_damage(tmp_path):
    for number in range(6):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), (40 * number, 0, 0)).save(
            tmp_path / "ab"[number % 2] / f"{number}.png", exif=b"not EXIF data"
        )
    assert open_data(str(tmp_path)).shape == (3, 8, 8)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "PNG of 16 bits"])
def test_training_sees_what_the_studio_and_reports_see(tmp_path, mode):
    """Transparent pixels on white, and the upper 8 of 16 bits."""
    places = np.arange(64).reshape(8, 8)
    for number in range(6):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        gray, alpha = (places + number).astype(np.uint8), (places // 8 * 36).astype(np.uint8)
        path, options = tmp_path / "ab"[number % 2] / f"{number}.png", {}
        if mode == "RGBA":
            file = Image.fromarray(np.stack((gray, gray // 2, 255 - gray, alpha), -1))
        elif mode == "LA":
            file = Image.fromarray(np.stack((gray, alpha), -1))
        elif mode == "PNG of 16 bits":
            file = Image.fromarray(gray.astype(np.uint16) * 900)
        else:
            file, options = Image.fromarray(gray).convert(mode), {"transparency": 5}
        file.save(path, **options)
    seen = decode_image(path.read_bytes())
    own = open_data(str(tmp_path), validation=0)
    every = torch.cat((own.train.images, own.test().images))
    assert len(seen.unique()) > 8
    assert (every == seen[: own.shape[0]]).flatten(1).all(1).any()


def test_classes_of_arrays_must_have_names_that_can_be_saved(tmp_path):
    images = np.arange(40 * 8 * 8 * 3).reshape(40, 8, 8, 3).astype(np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.array(["dog", "caf\udce9"] * 20))
    with pytest.raises(UnsuitableDataError, match=r"no complete Unicode: class 'caf\\udce9'"):
        ImageTask(str(tmp_path / "images.npz")).check()
