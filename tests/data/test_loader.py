"""A batch is a function of (seed, epoch, step), and the same for any number of processes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    Augmentation,
    AugmentedImages,
    ImageSet,
    Loader,
    beta_quantile,
    load,
    partners,
    random_uniform,
)

EVERYTHING = Augmentation(crop=2, flip="alternate", cutout=3, mixup=0.4, cutmix=1.0)
LABELS_ONLY = Augmentation(crop=1, border="zeros", flip="random")


def image_set(count, channels=3, size=8):
    images = torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % 4, tuple("abcd"), (0.5,) * channels, (0.25,) * channels)


@given(
    st.integers(1, 60),
    st.sampled_from([(1, 2), (2, 2), (4, 2), (6, 3), (8, 4)]),
    st.booleans(),
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from([EVERYTHING, LABELS_ONLY, None]),
)
def test_processes_side_by_side_are_one_process(count, sizes, drop_last, shuffle, epoch, augmentation):
    per_step, world = sizes
    batch_size = per_step * world
    if drop_last and count < batch_size:
        return
    examples = AugmentedImages(image_set(count), augmentation)
    options = {"seed": 7, "drop_last": drop_last, "shuffle": shuffle}
    one = Loader(examples, batch_size, **options)
    several = [Loader(examples, batch_size, rank=rank, world_size=world, **options) for rank in range(world)]
    seen = []
    for step in range(len(one)):
        whole = one.batch(epoch, step)
        parts = [loader.batch(epoch, step) for loader in several]
        for field in whole._fields:
            assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))
        assert len(whole.images) == one.total(step)
        seen += whole.indices.tolist()
    assert len(seen) == len(set(seen))
    assert len(seen) == (count // batch_size * batch_size if drop_last else count)


@pytest.mark.parametrize("augmentation", [Augmentation(mixup=0.4), Augmentation(mixup=0.3, cutmix=0.5), EVERYTHING])
def test_a_mixed_sample_does_not_depend_on_its_batch_to_the_last_bit(augmentation):
    """Of a few thousand: powers round differently in the few numbers at the end of a tensor."""
    examples = AugmentedImages(image_set(3000, channels=1, size=4), augmentation)
    whole = examples.batch(torch.arange(3000), seed=3, epoch=0)
    parts = [examples.batch(index, seed=3, epoch=0) for index in torch.arange(3000).split(7)]
    for field in whole._fields:
        assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_that_are_prepared_together_are_the_same(monkeypatch, drop_last, channels_last):
    """On a GPU several small batches are prepared at once: in whatever order they are asked for, nothing changes."""
    images, augmentation = image_set(50), Augmentation(crop=2, flip="random", cutmix=0.5, trivial_augment=True)

    def loader(together):
        examples = AugmentedImages(images, augmentation, channels_last=channels_last)
        monkeypatch.setattr(AugmentedImages, "samples_together", together)
        return Loader(examples, 8, seed=3, drop_last=drop_last)

    alone, together = loader(1), loader(26)
    for epoch, step in [*((0, step) for step in range(len(alone))), (1, 2), (0, 5), (1, 3)]:
        for a, b in zip(alone.batch(epoch, step), together.batch(epoch, step), strict=True):
            assert a.equal(b)
            assert a.stride() == b.stride()
    together.batch(1, 3).images.zero_()
    assert alone.batch(1, 3).images.equal(together.batch(1, 3).images)
    with pytest.raises(ValueError, match="step must be in"):
        together.batch(0, len(together))


def test_an_epoch_can_be_entered_anywhere():
    loader = Loader(AugmentedImages(image_set(50), EVERYTHING), 8, seed=3)
    whole = list(loader.epoch(2))
    # Another loader, as after a crash: it has never seen the steps before.
    rest = list(Loader(AugmentedImages(loader.examples.set, EVERYTHING), 8, seed=3).epoch(2, start=4))
    assert len(whole) == len(loader) == 6
    for before, after in zip(whole[4:], rest, strict=True):
        for left, right in zip(before, after, strict=True):
            assert torch.equal(left, right)
    assert list(loader.epoch(2, start=6)) == []


def test_a_sample_is_augmented_alike_in_whatever_batch():
    examples = AugmentedImages(image_set(30), EVERYTHING)
    together = examples.batch(torch.arange(30), seed=1, epoch=4)
    for index in (0, 11, 29):
        alone = examples.batch(torch.tensor([index]), seed=1, epoch=4)
        assert torch.equal(alone.images[0], together.images[index])
        assert torch.equal(alone.labels[0], together.labels[index])


def test_seeds_and_epochs_differ():
    examples = AugmentedImages(image_set(64), LABELS_ONLY)
    batches = [Loader(examples, 32, seed=seed).batch(epoch, 0) for seed in (0, 1) for epoch in (0, 1)]
    for at, left in enumerate(batches):
        for right in batches[:at]:
            assert not torch.equal(left.indices, right.indices)
            assert not torch.equal(left.images, right.images)


def test_without_augmentation_images_are_normalized_and_nothing_else():
    data = load("fashion-mini").validation
    images, labels, indices = Loader(AugmentedImages(data), 100, shuffle=False).batch(0, 1)
    expected = (data.images[100:200].double() / 255 - data.mean[0]) / data.std[0]
    torch.testing.assert_close(images.double(), expected, rtol=0, atol=1e-5)
    assert torch.equal(labels, data.labels[100:200])
    assert torch.equal(indices, torch.arange(100, 200))


def test_mixed_labels_are_weights_and_cross_entropy_takes_them():
    examples = AugmentedImages(image_set(32), Augmentation(mixup=0.4))
    batch = Loader(examples, 16).batch(0, 0)
    assert batch.labels.shape == (16, 4)
    torch.testing.assert_close(batch.labels.sum(1), torch.ones(16))
    assert torch.nn.functional.cross_entropy(torch.randn(16, 4), batch.labels).isfinite()


def test_mixing_takes_the_partner_as_it_is_augmented_itself():
    data = image_set(20)
    plain = AugmentedImages(data, Augmentation(crop=2, flip="random", cutout=2))
    mixing = AugmentedImages(data, Augmentation(crop=2, flip="random", cutout=2, mixup=0.5))
    index = torch.arange(20)
    own = plain.batch(index, seed=0, epoch=1)
    weight = beta_quantile(random_uniform(index, 0, 1, "mixup"), 0.5)[:, None, None, None]
    others = own.images[partners(20, 0, 1)]
    mixed = mixing.batch(index, seed=0, epoch=1)
    torch.testing.assert_close(mixed.images, weight * own.images + (1 - weight) * others)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_type_and_layout_are_as_asked(dtype, channels_last):
    data = image_set(16)
    examples = AugmentedImages(data, EVERYTHING, dtype=dtype, channels_last=channels_last)
    images = examples.batch(torch.arange(16), seed=0, epoch=0).images
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert images.dtype == dtype
    assert images.is_contiguous(memory_format=layout)
    exact = AugmentedImages(data, EVERYTHING).batch(torch.arange(16), seed=0, epoch=0).images
    torch.testing.assert_close(images.float(), exact, rtol=2**-8 if dtype == torch.bfloat16 else 0, atol=0)


def test_bytes_from_the_host_give_the_same_batches():
    data = image_set(16)
    kept, sent = (AugmentedImages(data, EVERYTHING, keep_on_device=keep) for keep in (True, False))
    for left, right in zip(
        kept.batch(torch.arange(16), seed=0, epoch=0), sent.batch(torch.arange(16), seed=0, epoch=0), strict=True
    ):
        assert torch.equal(left, right)


@pytest.mark.gpu
@pytest.mark.parametrize("keep", [True, False])
def test_the_gpu_draws_what_the_cpu_draws(keep):
    data = image_set(64)
    here = Loader(AugmentedImages(data, EVERYTHING), 32).batch(3, 1)
    there = Loader(AugmentedImages(data, EVERYTHING, device="cuda", keep_on_device=keep), 32).batch(3, 1)
    assert torch.equal(here.indices, there.indices.cpu())
    torch.testing.assert_close(here.images, there.images.cpu())
    torch.testing.assert_close(here.labels, there.labels.cpu())


@pytest.mark.gpu
@pytest.mark.parametrize("strong", [True, False])
def test_one_kernel_on_a_gpu_makes_the_batches_of_torch(monkeypatch, strong):
    augmentation = replace(EVERYTHING, trivial_augment=True) if strong else LABELS_ONLY
    examples, index = AugmentedImages(image_set(640, size=32), augmentation, device="cuda"), torch.arange(640).cuda()
    found = examples.batch(index, seed=1, epoch=3)
    monkeypatch.setenv("REGARD_KERNELS", "0")
    expected = examples.batch(index, seed=1, epoch=3)
    torch.testing.assert_close(found.images, expected.images, rtol=0, atol=1e-6)
    assert found.labels.equal(expected.labels)


def test_what_does_not_fit_is_refused(user_errors):
    examples = AugmentedImages(image_set(16))
    for values, words in [
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"batch_size": 7, "world_size": 2}, "must be a multiple of world_size 2, got 7"),
        ({"batch_size": 8, "rank": 2, "world_size": 2}, "rank must be in 0 … 1"),
        ({"batch_size": 17}, "larger than the 16 samples"),
    ]:
        with pytest.raises(ValueError, match=words):
            Loader(examples, **values)
    loader = Loader(examples, 8)
    for call in (lambda: loader.batch(0, 2), lambda: loader.batch(0, -1), lambda: loader.total(2)):
        with pytest.raises(ValueError, match="step must be in 0 … 1"):
            call()
    with pytest.raises(ValueError, match="epoch must be"):
        loader.batch(-1, 0)
    with pytest.raises(ValueError, match="start must be in 0 … 2"):
        loader.epoch(0, start=3)
    with pytest.raises(TypeError, match="examples must be numbered samples"):
        Loader(image_set(16), 8)
    with pytest.raises(ValueError, match="crop is 8 pixels"):
        AugmentedImages(image_set(4), Augmentation(crop=8))
    with pytest.raises(TypeError, match="dtype must be a floating-point dtype"):
        AugmentedImages(image_set(4), dtype=torch.int64)
