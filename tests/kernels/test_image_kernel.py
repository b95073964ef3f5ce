"""A batch of augmented images by one kernel is, to the last bit, the batch that torch's operators make."""

import pytest
import torch

from regard.data import Augmentation, AugmentedImages, ImageSet, Loader, _augmented, _image_kernel
from regard.data._trivial_augment import LEVELS, OPERATIONS

EVERYTHING = Augmentation(crop=2, flip="random", cutout=3, mixup=0.4, cutmix=1.0, trivial_augment=True)
KINDS = {
    "everything": EVERYTHING,
    "black borders": Augmentation(crop=3, border="zeros", flip="alternate", cutmix=0.3, trivial_augment=True),
    "operations": Augmentation(trivial_augment=True),
    "crop": Augmentation(crop=2, flip="random"),
    "cutout": Augmentation(cutout=4),
    "mixup": Augmentation(mixup=0.3),
    "cutmix": Augmentation(crop=1, cutmix=1.0),
}


def image_set(count, channels, height, width):
    """Smooth images, not over the whole range of values, and two flat ones."""
    generator = torch.Generator().manual_seed(1)
    coarse = 20 + 200 * torch.rand(count, channels, 5, 4, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    images = (fine + 8 * torch.rand(fine.shape, generator=generator)).byte()
    images[0], images[1] = 77, 0
    mean, std = (0.5, 0.4, 0.3)[:channels], (0.25, 0.2, 0.3)[:channels]
    return ImageSet(images, torch.arange(count) % 7, tuple("abcdefg"), mean, std)


@pytest.fixture
def torch_only(monkeypatch):
    """Augment by torch's operators inside the block."""

    def make(examples, *args, **options):
        with monkeypatch.context() as without:
            without.setattr(_augmented, "is_usable", lambda *_: False)
            return examples.batch(*args, **options)

    return make


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 12, 9), (3, 2, 5)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_is_that_of_torch(kind, shape, torch_only):
    augmentation = KINDS[kind]
    if max(augmentation.crop + 1, augmentation.cutout) > min(shape[1:]):
        return
    examples, index = AugmentedImages(image_set(40, *shape), augmentation), torch.arange(40).flip(0)
    found = examples.batch(index, seed=3, epoch=1)
    expected = torch_only(examples, index, seed=3, epoch=1)
    assert found.images.isfinite().all()
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.equal(b)
        assert a.stride() == b.stride()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_at_weak_and_strong_levels(operation, monkeypatch, torch_only):
    level = torch.tensor([0, 1, 7, 15, 29, LEVELS - 1]).repeat(2)
    number, index = torch.full_like(level, OPERATIONS.index(operation)), torch.arange(len(level))
    monkeypatch.setattr(_augmented, "draw_operations", lambda *_: (number, level, index < 6))
    examples = AugmentedImages(image_set(len(level), 3, 18, 16), Augmentation(crop=1, trivial_augment=True))
    found = examples.batch(index, seed=0, epoch=0).images
    assert found.equal(torch_only(examples, index, seed=0, epoch=0).images)
    plain = AugmentedImages(examples.set, Augmentation(crop=1)).batch(index, seed=0, epoch=0).images
    assert found.equal(plain) == (operation == "identity")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_type_and_layout_are_as_asked(dtype, channels_last, torch_only):
    data = image_set(20, 3, 8, 8)
    examples = AugmentedImages(data, EVERYTHING, dtype=dtype, channels_last=channels_last)
    index = torch.arange(20)
    found, expected = examples.batch(index, seed=0, epoch=2), torch_only(examples, index, seed=0, epoch=2)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.equal(b)
        assert a.stride() == b.stride()


def test_a_batch_is_one_launch_and_does_not_depend_on_batches_before(monkeypatch):
    launches, kernel = [], _image_kernel.image_batch

    class Counted:
        def __getitem__(self, grid):
            launches.append(grid)
            return kernel[grid]

    monkeypatch.setattr(_image_kernel, "image_batch", Counted())
    data = image_set(30, 3, 8, 8)
    loader = Loader(AugmentedImages(data, EVERYTHING), 8, seed=5)
    whole = [loader.batch(epoch, step) for epoch in (0, 1) for step in range(3)]
    assert launches == [(8, 3)] * 6
    other = Loader(AugmentedImages(data, EVERYTHING), 8, seed=5)
    for at in (4, 1, 5):  # as after a crash, and back
        for a, b in zip(whole[at], other.batch(*divmod(at, 3)), strict=True):
            assert a.equal(b)


def test_what_the_kernel_cannot_do_torch_does(monkeypatch):
    def used(examples):
        monkeypatch.setattr(_image_kernel, "image_batch", None)  # a launch would fail
        assert len(examples.batch(torch.arange(2), seed=0, epoch=0).images) == 2

    used(AugmentedImages(image_set(4, 1, 80, 80), Augmentation(crop=2)))  # too large for the registers
    used(AugmentedImages(image_set(4, 3, 8, 8)))  # nothing to augment
    monkeypatch.setenv("REGARD_KERNELS", "0")
    used(AugmentedImages(image_set(4, 3, 8, 8), Augmentation(crop=2)))
    monkeypatch.delenv("REGARD_KERNELS")
    with pytest.raises(TypeError):
        used(AugmentedImages(image_set(4, 3, 8, 8), Augmentation(crop=2)))


def test_indices_may_be_strided_and_none_may_be_out_of_range(torch_only):
    """The kernel reads one number after the other, and the image of any number."""
    examples = AugmentedImages(image_set(12, 3, 8, 8), EVERYTHING)
    for index in (torch.arange(12)[1::3], torch.tensor([[3, 0], [5, 0]])[:, 0]):
        found, expected = examples.batch(index, seed=0, epoch=2), torch_only(examples, index, seed=0, epoch=2)
        assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
    for index in (12, -1):
        with pytest.raises(IndexError):
            examples.batch(torch.tensor([0, index]), seed=0, epoch=2)


def test_no_images_are_no_launch():
    batch = AugmentedImages(image_set(4, 3, 8, 8), EVERYTHING).batch(torch.arange(0), seed=0, epoch=0)
    assert [len(column) for column in batch] == [0, 0, 0]
    assert batch.labels.shape == (0, 7)
