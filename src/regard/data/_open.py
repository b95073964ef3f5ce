"""Data sets by name, and your own by path."""

import os
from pathlib import Path

from regard.data._image_sets import DataSet, check_validation, load
from regard.data._sources import names
from regard.data.own_images import OwnDataSet, UnsuitableDataError, forget_changed, open_images
from regard.support.checks import check_path, check_positive, describe

LARGEST_SIDE = 8_000  # largest side in pixels; a recipe from someone else may request any number


def own_path(data: str) -> str | None:
    """The absolute path of your own images; None for a data set that regard knows by name.

    >>> own_path("cifar10") is None, Path(own_path("photos/")).name
    (True, 'photos')
    """
    if not isinstance(data, str):
        raise UnsuitableDataError(f"data must be the name of a data set or a path, got {describe(data)}")
    if data in names():
        return None
    check_path("data", data)
    seems_path = os.sep in data or "/" in data or data.startswith((".", "~")) or Path(data).exists()
    if not seems_path:
        raise UnsuitableDataError(
            f"data is {describe(data)}, which is neither one of the data sets ({', '.join(names())}) nor a folder or file "
            f"that exists"
        )
    return str(Path(data).expanduser().absolute())


def open_data(
    data: str,
    *,
    validation: int | float = 0.1,
    image_size: int | None = None,
    download: bool = True,
    recheck: bool = True,
) -> DataSet | OwnDataSet:
    """A data set by name, or your own images by path.

    Your images may be a folder ``train/CLASS/*.png`` with ``val/`` or ``test/`` likewise; a folder ``CLASS/*.png``, of which
    a tenth of each class becomes the test set; an ``.npz`` or ``.safetensors`` file of images and labels; torchvision's
    copies of CIFAR, MNIST and Fashion-MNIST; or a folder that ``datasets`` saved.

    Args:
        data: ``"cifar10"``, ``"fashion-mnist"``, ``"fashion-mini"``, or a path.
        validation: the size of the validation set, as a number of images or a share of the training set.
        image_size: the side of your images in pixels: the short side is scaled to it and the center is cropped. By
            default the common size of all images.
        download: whether to download missing files of a named data set.
        recheck: whether to look for changes in images of your own that were opened before in this process. Otherwise they
            are as they were.

    >>> import tempfile; from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for number in range(20):
    ...         place = Path(folder, "cat" if number % 2 else "dog")
    ...         place.mkdir(exist_ok=True)
    ...         Image.new("RGB", (8, 8), (number, 0, 9)).save(place / f"{number}.png")
    ...     own = regard.data.open_data(folder)
    >>> own.classes, own.shape, len(own.train), len(own.validation), len(own.test())
    (('cat', 'dog'), (3, 8, 8), 16, 2, 2)
    """
    path = own_path(data)
    if path is None:
        if image_size is not None:
            raise UnsuitableDataError(
                f"image_size is {describe(image_size)}, but must be None: it is for your own images, and data is {data!r}"
            )
        return load(data, validation=validation, download=download)
    if image_size is not None:
        check_positive("image_size", image_size)
        if image_size > LARGEST_SIDE:
            raise UnsuitableDataError(f"image_size must be at most {LARGEST_SIDE:,} pixels, got {image_size:,}")
    check_validation(validation)
    if recheck:
        forget_changed(path)
    return open_images(path, validation, image_size)
