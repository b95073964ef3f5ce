"""Full-width Gaussian heads on coarser and coarser grids."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers import GaussianAttention
from regard.models import AttentionPyramid, Pretrained
from regard.models._pyramid import PyramidBlock, start_as_identity
from regard.models._whitening import WhitenedPatches
from regard.training._head_trajectory import layer_grids


def smooth_images(count=64, size=12, channels=3):
    """Neighboring pixels and channels are alike, as in photographs."""
    images = torch.randn(count, channels, size, size).cumsum(2).cumsum(3)
    return images - images.mean()


@given(channels=st.integers(1, 3), side=st.integers(1, 3), overlap=st.booleans())
def test_whitened_patches_are_uncorrelated_and_equally_large(channels, side, overlap):
    patches = WhitenedPatches(channels, side, 1 if overlap else side, epsilon=0.0).double()
    images = smooth_images(channels=channels).double()
    patches.fit(images)
    half = (patches.patches(images) @ patches.weight.mT)[..., : patches.out // 2].flatten(0, 1)
    covariance = half.mT @ half / len(half)
    torch.testing.assert_close(covariance, torch.eye(patches.out // 2, dtype=torch.float64), atol=1e-6, rtol=0)


def test_the_strongest_directions_are_kept_with_both_signs():
    images = smooth_images()
    every, some = WhitenedPatches(3), WhitenedPatches(3, directions=5)
    every.fit(images)
    some.fit(images)
    assert some.out == 10
    torch.testing.assert_close(some.weight[:5], every.weight[7:12])
    assert torch.equal(some.weight[5:], -some.weight[:5])
    with pytest.raises(ValueError, match="directions is 13, but a patch has 12 numbers"):
        WhitenedPatches(3, directions=13)


def test_a_patch_starts_at_its_pixel_and_the_edge_is_repeated():
    patches = WhitenedPatches(1)
    image = torch.arange(6.0).reshape(1, 1, 2, 3)
    assert patches.patches(image)[0].tolist() == [
        [0, 1, 3, 4], [1, 2, 4, 5], [2, 2, 5, 5], [3, 4, 3, 4], [4, 5, 4, 5], [5, 5, 5, 5],
    ]  # fmt: skip


@given(dim=st.integers(1, 5), more=st.integers(-2, 3))
def test_heads_start_by_handing_features_on(dim, more):
    out = max(1, dim + more)
    attention = GaussianAttention(dim, 9, out_dim=out, full_width=True, init="grid", sharpness=80.0, bias=False)
    start_as_identity(attention)
    x = torch.randn(2, 4, 5, dim)
    both = min(dim, out)
    torch.testing.assert_close(attention(x, grid=(4, 5))[..., :both], x[..., :both], atol=1e-5, rtol=1e-5)


def test_only_full_width_heads_on_a_grid_hand_the_token_on():
    with pytest.raises(ValueError, match="heads that start on a grid"):
        start_as_identity(GaussianAttention(4, 9, full_width=True, init="normal"))


def test_sharp_heads_and_the_convolution_are_one_block_inside_the_border():
    block, rival = (PyramidBlock(3, 6, mixing=mixing, heads=9, pool=True) for mixing in ("gaussian", "convolution"))
    heads = block.attention.positions
    heads.set(heads.center, torch.full((9,), 80.0))
    weight = torch.randn(6, 3, 3, 3)
    with torch.no_grad():
        rival.attention.filters.weight.copy_(weight)
        block.attention.output.weight.copy_(weight.flatten(2).transpose(1, 2).flatten(1))
    x = torch.randn(2, 8 * 8, 3)
    ours, theirs = (each.eval()(x, (8, 8)).unflatten(1, (4, 4))[:, 1:-1, 1:-1] for each in (block, rival))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"depth": 3}, {"mixing": "convolution"}, {"directions": 2}])
def test_it_learns_in_all_its_parts_and_is_saved(options, tmp_path):
    model = AttentionPyramid(16, 5, **{"widths": (4, 6), **options})
    model.whiten(smooth_images(size=16))
    images = smooth_images(count=4, size=16)
    model(images).logsumexp(1).sum().backward()
    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in learned.values())
    assert "embedding.weight" not in learned
    model.save_pretrained(tmp_path)
    same = Pretrained.from_pretrained(tmp_path)
    torch.testing.assert_close(same(images), model.eval()(images))


def test_grids_are_what_blocks_see_and_the_log_of_heads_knows_them():
    model = AttentionPyramid(16, 5, widths=(4, 6), depth=2)
    assert model.grids == [(16, 16), (8, 8), (8, 8), (4, 4)]
    assert list(layer_grids(model).values()) == model.grids
    assert AttentionPyramid(16, 5, widths=(4, 6), depth=2, stride=2).grids == [(8, 8), (8, 8), (8, 8), (4, 4)]
    assert model.forward_features(torch.randn(1, 3, 24, 16)).shape == (1, 6 * 4, 6)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="2 poolings need at least 4"):
        AttentionPyramid(3, 5, widths=(4, 4))
    with pytest.raises(TypeError, match="one for each stage"):
        AttentionPyramid(16, 5, widths=())
    with pytest.raises(ValueError, match="stride must be 1 or 2"):
        AttentionPyramid(16, 5, stride=3)
    with pytest.raises(ValueError, match=r"heads is 4 .*, but with mixing 'convolution' a 3×3 kernel"):
        AttentionPyramid(16, 5, heads=4, mixing="convolution")


@given(side=st.integers(1, 4), stride=st.integers(1, 4), height=st.integers(1, 9), width=st.integers(1, 9))
def test_patches_of_any_size_repeat_the_last_pixels(side, stride, height, width):
    stride = min(stride, side)
    images = torch.randn(2, 2, height, width)
    found = WhitenedPatches(2, side, stride).patches(images)
    rows, columns = range(0, height, stride), range(0, width, stride)
    expected = [
        images[:, :, torch.arange(r, r + side).clamp(max=height - 1)][
            ..., torch.arange(c, c + side).clamp(max=width - 1)
        ]
        for r in rows
        for c in columns
    ]
    assert torch.equal(found, torch.stack([patch.flatten(1) for patch in expected], 1))


def test_a_stride_of_two_takes_images_of_odd_size():
    model = AttentionPyramid((21, 13), 3, widths=(4, 6), depth=1, stride=2).eval()
    assert model.grids == [(11, 7), (11, 7)]
    assert model(torch.randn(2, 3, 21, 13)).shape == (2, 3)
