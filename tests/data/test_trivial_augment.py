"""TrivialAugment's operations against Pillow, image by image."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from regard.data import Augmentation, AugmentedImages, load, trivial_augment
from regard.data._trivial_augment import LEVELS, OPERATIONS


def random_image(channels: int, height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Smooth, so that neighboring pixels are alike, and not over the whole range of values."""
    generator = torch.Generator().manual_seed(seed)
    coarse = 20 + 200 * torch.rand(1, channels, 5, 4, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (smooth + 8 * torch.rand(smooth.shape, generator=generator)).byte()


def with_pillow(image: Image.Image, operation: str, strength: float, sign: int) -> Image.Image:
    affine = lambda *matrix: image.transform(image.size, Image.Transform.AFFINE, matrix)  # noqa: E731
    moves = {
        "identity": lambda: image,
        "shear columns": lambda: affine(1, 0.99 * strength * sign, 0, 0, 1, 0),
        "shear rows": lambda: affine(1, 0, 0, 0.99 * strength * sign, 1, 0),
        "translate columns": lambda: affine(1, 0, 32 * strength * sign, 0, 1, 0),
        "translate rows": lambda: affine(1, 0, 0, 0, 1, 32 * strength * sign),
        "rotate": lambda: image.rotate(135 * strength * sign),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(1 + 0.99 * strength * sign),
        "color": lambda: ImageEnhance.Color(image).enhance(1 + 0.99 * strength * sign),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(1 + 0.99 * strength * sign),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(1 + 0.99 * strength * sign),
        "posterize": lambda: ImageOps.posterize(image, 8 - round(6 * strength)),
        "solarize": lambda: ImageOps.solarize(image, math.ceil(round(255 * (1 - strength), 6))),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
    }
    return moves[operation]()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_are_those_of_pillow(operation, channels):
    source = random_image(channels, 32, 28)
    array = source[0].permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if channels == 1 else array)
    levels = torch.arange(LEVELS).repeat(2)
    backward = torch.arange(2).repeat_interleave(LEVELS).bool()
    batch = source.expand(len(levels), -1, -1, -1).contiguous()
    results = trivial_augment(batch, torch.full_like(levels, OPERATIONS.index(operation)), levels, backward)
    changed = 0
    for result, level, back in zip(results, levels.tolist(), backward.tolist(), strict=True):
        expected = np.asarray(with_pillow(picture, operation, level / (LEVELS - 1), -1 if back else 1))
        expected = torch.from_numpy(expected.copy()).reshape(32, 28, channels).permute(2, 0, 1)
        difference = (result.int() - expected.int()).abs()
        if operation in ("shear columns", "shear rows", "translate columns", "translate rows", "rotate"):
            # Where a pixel's center falls on an edge, float32 and float64 may choose different neighbors.
            assert (difference > 0).float().mean() < 0.03, level
        else:
            assert difference.max() <= 1, level
        changed += int((expected.int() != source[0].int()).any())
    still = operation == "identity" or (operation == "color" and channels == 1)
    assert changed == 0 if still else changed > 20


def test_each_image_has_its_own_operation_and_does_not_depend_on_its_batch():
    images = torch.cat([random_image(3, 16, 16, seed) for seed in range(len(OPERATIONS))])
    operation = torch.arange(len(OPERATIONS))
    level, backward = operation * 2 + 1, operation % 2 == 0
    together = trivial_augment(images, operation, level, backward)
    for one in range(len(OPERATIONS)):
        alone = trivial_augment(images[one : one + 1], *(x[one : one + 1] for x in (operation, level, backward)))
        assert torch.equal(alone[0], together[one])
        assert torch.equal(alone[0], images[one]) == (OPERATIONS[one] == "identity")


def test_a_flat_image_stays_flat():
    flat = torch.full((len(OPERATIONS), 3, 8, 8), 77, dtype=torch.uint8)
    operation = torch.arange(len(OPERATIONS))
    for name in ("autocontrast", "equalize", "color", "contrast", "sharpness"):
        result = trivial_augment(flat, operation, torch.full_like(operation, 30), operation < 0)
        assert torch.equal(result[OPERATIONS.index(name)], flat[0]), name


def test_training_images_get_it_and_every_operation_occurs():
    images = load("fashion-mini").train
    plain = AugmentedImages(images).batch(torch.arange(600), seed=0, epoch=0).images
    augmented = AugmentedImages(images, Augmentation(trivial_augment=True))
    batch = augmented.batch(torch.arange(600), seed=0, epoch=0).images
    changed = (batch != plain).flatten(1).any(1).float().mean()
    assert 0.7 < changed < 0.95  # identity, color on gray images and level 0 leave some as they are
    half = augmented.batch(torch.arange(300, 600), seed=0, epoch=0).images
    assert torch.equal(half, batch[300:])
    assert not torch.equal(augmented.batch(torch.arange(600), seed=0, epoch=1).images, batch)


def test_what_does_not_fit_is_refused():
    number = torch.zeros(1, dtype=torch.long)
    with pytest.raises(TypeError, match="images must be bytes"):
        trivial_augment(torch.zeros(1, 3, 4, 4), number, number, number.bool())
    with pytest.raises(TypeError, match="one channel or three"):
        trivial_augment(torch.zeros(1, 2, 4, 4, dtype=torch.uint8), number, number, number.bool())
    with pytest.raises(TypeError, match="level must be"):
        trivial_augment(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), number, number.float(), number.bool())
    with pytest.raises(TypeError, match="trivial_augment"):
        Augmentation(trivial_augment=1)
    with pytest.raises(ValueError, match="one channel or three, but these have 4"):
        Augmentation(trivial_augment=True).check_fits(4, 8, 8)
