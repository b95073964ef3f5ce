"""Augmentation does what slicing, flipping and averaging by hand do, as often as it should."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from regard.data import (
    Augmentation,
    beta_quantile,
    cutmix,
    cutout,
    label_weights,
    mixup,
    move,
    normalize,
    partners,
    random_uniform,
)
from regard.data._mix import MixDraws, draw_mix, mix

COUNT = 40_000
SIGMAS = 5  # fails by chance once in 1.7 million
INDEX = torch.arange(COUNT)


def pictures(count=6, channels=3, height=8, width=10):
    return torch.randint(0, 256, (count, channels, height, width), dtype=torch.uint8)


@given(st.integers(1, 5), st.sampled_from(["reflect", "zeros"]), st.booleans())
def test_a_move_is_a_slice_of_the_padded_image(pad, border, mirrored):
    images = pictures()
    shift = torch.randint(-pad, pad + 1, (len(images), 2))
    mirror = torch.rand(len(images)) < 0.5 if mirrored else None
    moved = move(images, shift, mirror, border=border)
    assert moved.dtype == torch.uint8
    for at, image in enumerate(images):
        image = image.flip(-1) if mirror is not None and mirror[at] else image
        mode = "reflect" if border == "reflect" else "constant"
        padded = F.pad(image[None].float(), (pad,) * 4, mode=mode)[0].to(torch.uint8)
        row, column = (shift[at] + pad).tolist()
        assert torch.equal(moved[at], padded[:, row : row + 8, column : column + 10])


def test_no_move_is_no_change():
    images = pictures()
    assert torch.equal(move(images, torch.zeros(6, 2, dtype=torch.int64)), images)


def test_moves_cover_every_offset_evenly():
    shift = Augmentation(crop=2).draw_shift(INDEX, 0, 0)
    cells = (shift + 2) @ torch.tensor([5, 1])
    counts = cells.bincount(minlength=25).double()
    chi = ((counts - COUNT / 25) ** 2 / (COUNT / 25)).sum().item()
    assert shift.abs().max() == 2
    assert abs(chi - 24) < SIGMAS * math.sqrt(2 * 24)


def test_random_flips_are_a_coin_for_each_image_and_epoch():
    flip = Augmentation(flip="random")
    first, second = (flip.draw_mirror(INDEX, 0, epoch) for epoch in (0, 1))
    for share in (first.float().mean(), (first ^ second).float().mean()):
        assert abs(share.item() - 0.5) < SIGMAS * 0.5 / math.sqrt(COUNT)


@given(st.integers(0, 1000), st.integers(0, 50))
def test_alternating_flips_alternate(seed, epoch):
    flip, index = Augmentation(flip="alternate"), torch.arange(200)
    first, second, third = (flip.draw_mirror(index, seed, epoch + later) for later in range(3))
    assert torch.equal(second, ~first)
    assert torch.equal(third, first)


def test_alternating_flips_start_with_a_fair_coin():
    share = Augmentation(flip="alternate").draw_mirror(INDEX, 0, 0).float().mean().item()
    assert abs(share - 0.5) < SIGMAS * 0.5 / math.sqrt(COUNT)


@given(st.integers(0, 8))
def test_cutout_removes_exactly_its_square(side):
    augmentation = Augmentation(cutout=side)
    index = torch.arange(50)
    corner = augmentation.draw_corner(index, 0, 0, 8, 10)
    cut = cutout(torch.ones(50, 2, 8, 10), corner, side, fill=-1.0)
    assert torch.equal((cut == -1).sum((2, 3)), torch.full((50, 2), side**2))
    for image, (row, column) in zip(cut, corner.tolist(), strict=True):
        assert bool((image[:, row : row + side, column : column + side] == -1).all())


def test_cutout_reaches_every_pixel():
    corner = Augmentation(cutout=3).draw_corner(torch.arange(2000), 0, 0, 8, 10)
    assert cutout(torch.ones(2000, 1, 8, 10), corner, 3).amin((0, 1)).max() == 0


def test_normalized_images_have_mean_0_and_spread_1():
    images = pictures(50)
    scaled = images.double() / 255
    mean, std = tuple(scaled.mean((0, 2, 3)).tolist()), tuple(scaled.std((0, 2, 3)).tolist())
    expected = (scaled - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)
    result = normalize(images, mean, std)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=1e-6)


def test_mixup_and_cutmix_take_from_both():
    images, others = torch.rand(4, 3, 8, 10), torch.rand(4, 3, 8, 10)
    weight = torch.tensor([0.0, 0.25, 0.5, 1.0])
    expected = torch.stack([w * a + (1 - w) * b for w, a, b in zip(weight, images, others, strict=True)])
    torch.testing.assert_close(mixup(images, others, weight), expected)
    where = torch.rand(4, 8, 10) < 0.5
    mixed = cutmix(images, others, where)
    assert torch.equal(mixed.movedim(1, -1)[where], others.movedim(1, -1)[where])
    assert torch.equal(mixed.movedim(1, -1)[~where], images.movedim(1, -1)[~where])


@given(st.sampled_from([(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)]), st.integers(0, 100))
def test_the_kept_weight_is_the_share_of_the_image_itself(alphas, seed):
    """With ones mixed into zeros, an image's mean is the weight its label keeps."""
    augmentation = Augmentation(mixup=alphas[0], cutmix=alphas[1])
    ones = torch.ones(40, 2, 8, 10)
    draws = draw_mix(torch.arange(40), augmentation, seed, 0, 8, 10)
    mixed, weight = mix(ones, torch.zeros_like(ones), draws, augmentation)
    torch.testing.assert_close(mixed.mean((1, 2, 3)), weight)
    assert bool(((weight >= 0) & (weight <= 1)).all())
    its_draws = MixDraws(*(drawn[7:9] for drawn in draws))
    part, its_weight = mix(ones[7:9], 0 * ones[7:9], its_draws, augmentation)
    assert torch.equal(part, mixed[7:9])
    assert torch.equal(its_weight, weight[7:9])
    if alphas == (0.0, 1.0):
        assert set(mixed.unique().tolist()) <= {0.0, 1.0}


def test_with_both_half_are_cut_and_half_are_averaged():
    ones = torch.ones(4000, 1, 8, 8)
    augmentation = Augmentation(mixup=1.0, cutmix=1.0)
    mixed, _ = mix(ones, 0 * ones, draw_mix(torch.arange(4000), augmentation, 0, 0, 8, 8), augmentation)
    averaged = ((mixed > 0) & (mixed < 1)).flatten(1).any(1).float().mean().item()
    assert abs(averaged - 0.5) < SIGMAS * 0.5 / math.sqrt(4000)


def test_label_weights_sum_to_one():
    labels, others, weight = torch.randint(0, 5, (30,)), torch.randint(0, 5, (30,)), torch.rand(30)
    weights = label_weights(labels, others, weight, 5)
    expected = weight[:, None] * F.one_hot(labels, 5) + (1 - weight)[:, None] * F.one_hot(others, 5)
    torch.testing.assert_close(weights, expected)


def test_partners_are_a_permutation_of_everyone():
    assert torch.equal(partners(1000, 0, 3).sort().values, torch.arange(1000))
    assert not torch.equal(partners(1000, 0, 3), partners(1000, 0, 4))


CLOSED_FORMS = {
    0.5: lambda x: 2 / math.pi * x.sqrt().asin(),
    1.0: lambda x: x,
    2.0: lambda x: 3 * x**2 - 2 * x**3,
    3.0: lambda x: 10 * x**3 - 15 * x**4 + 6 * x**5,
}


@pytest.mark.parametrize("alpha", CLOSED_FORMS)
def test_beta_quantiles_invert_the_known_distributions(alpha):
    p = torch.linspace(0, 1, 2001)
    x = beta_quantile(p, alpha).double()
    lower = p <= 0.5  # near 1 float32 rounds what the distribution's slope then magnifies
    torch.testing.assert_close(CLOSED_FORMS[alpha](x[lower]), p[lower].double(), rtol=0, atol=2e-6)
    assert bool((x.diff() >= 0).all())
    torch.testing.assert_close(x + x.flip(0), torch.ones_like(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.4, 0.8, 1.0, 1.7, 4.0, 10.0, 30.0])
def test_beta_draws_have_the_right_moments(alpha):
    """Variance 1 / (4(2α + 1)); the fourth central moment 3 / (16(2α + 1)(2α + 3)) gives its error."""
    x = beta_quantile(random_uniform(INDEX, 0, "beta"), alpha).double() - 0.5
    variance, fourth = 1 / (4 * (2 * alpha + 1)), 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3))
    assert abs(x.mean().item()) < SIGMAS * math.sqrt(variance / COUNT)
    assert abs((x**2).mean().item() - variance) < SIGMAS * math.sqrt((fourth - variance**2) / COUNT)
    assert abs((x**4).mean().item() / fourth - 1) < 0.05


def test_images_may_move_as_far_as_the_border_lasts():
    images = torch.randn(1, 2, 5, 7)
    for rows, columns in ((4, -6), (-4, 6)):
        padded = torch.nn.functional.pad(images, (6, 6, 4, 4), mode="reflect")
        moved = move(images, torch.tensor([[rows, columns]]))
        assert torch.equal(moved, padded[:, :, 4 + rows :, 6 + columns :][:, :, :5, :7])
    assert not move(images, torch.tensor([[5, 0]]), border="zeros").any()
    assert move(images[:0], torch.zeros(0, 2, dtype=torch.int64)).shape == (0, 2, 5, 7)


def test_what_does_not_fit_is_refused(user_errors):
    for values, words in [
        ({"crop": -1}, "crop must be a whole number"),
        ({"cutout": 1.5}, "cutout must be a whole number"),
        ({"mixup": -0.1}, "mixup must be the α"),
        ({"cutmix": math.inf}, "cutmix must be the α"),
        ({"flip": "sometimes"}, "flip must be one of"),
        ({"border": "wrap"}, "border must be one of"),
    ]:
        with pytest.raises(ValueError, match=words):
            Augmentation(**values)
    with pytest.raises(ValueError, match="crop is 8 pixels"):
        Augmentation(crop=8).check_fits(3, 8, 10)
    with pytest.raises(ValueError, match="cutout is 9 pixels wide"):
        Augmentation(cutout=9).check_fits(3, 8, 10)
    images = torch.zeros(2, 3, 8, 10)
    with pytest.raises(ValueError, match="shift must be"):
        move(images, torch.zeros(3, 2, dtype=torch.int64))
    for shift in ([[0, 0], [8, 0]], [[0, -10], [0, 0]]):
        farthest = str(tuple(torch.tensor(shift).abs().amax(0).tolist()))
        with pytest.raises(
            ValueError, match=rf"as large as {re.escape(farthest)}.*at most \(7, 9\) for images of 8 × 10"
        ):
            move(images, torch.tensor(shift))
    with pytest.raises(TypeError, match="shift must hold whole numbers"):
        move(images, torch.zeros(2, 2))
    with pytest.raises(TypeError, match="shift must be a tensor"):
        move(images, [[0, 0], [0, 0]])
    for mirror in (torch.zeros(2), torch.zeros(3, dtype=torch.bool)):
        with pytest.raises(ValueError, match="mirror must be a boolean tensor"):
            move(images, torch.zeros(2, 2, dtype=torch.int64), mirror)
    with pytest.raises(ValueError, match="border must be one of"):
        move(images, torch.zeros(2, 2, dtype=torch.int64), border="wrap")
    with pytest.raises(ValueError, match="images must be"):
        move(images[0], torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="corner must be"):
        cutout(images, torch.zeros(1, 2, dtype=torch.int64), 2)
    with pytest.raises(ValueError, match=r"mean is .*, 1 numbers, but must be one number for each of the 3 channels"):
        normalize(images, (0.5,), (0.5,) * 3)
    with pytest.raises(ValueError, match="others has shape"):
        mixup(images, images[:1], torch.ones(2))
    with pytest.raises(ValueError, match="where must be"):
        cutmix(images, images, torch.ones(2, 3, 8, 10, dtype=torch.bool))
    with pytest.raises(ValueError, match="alpha must be positive"):
        beta_quantile(torch.rand(3), 0.0)
