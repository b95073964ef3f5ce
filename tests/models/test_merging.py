"""Fewer, wider tokens on the way up: what TokenMerging computes, and an image encoder that has it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.models import AttentionSettings, ImageEncoder
from regard.models._image_attention import KINDS
from regard.models._merging import TokenMerging, checked_merge, grids_of_blocks

SMALL = {"dim": 18, "depth": 3, "heads": 9, "hidden": 20}


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), dim=st.integers(1, 5), batch=st.integers(1, 3))
def test_merging_is_the_formula_square_by_square(rows, columns, dim, batch):
    merging = TokenMerging(dim).double()
    with torch.no_grad():
        for parameter in merging.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x = torch.randn(batch, 2 * rows, 2 * columns, dim, dtype=torch.float64)
    found = merging(x.flatten(1, 2), (2 * rows, 2 * columns))
    assert found.shape == (batch, rows * columns, 2 * dim)
    for row in range(rows):
        for column in range(columns):
            r, c = 2 * row, 2 * column
            square = torch.cat([x[:, r, c], x[:, r, c + 1], x[:, r + 1, c], x[:, r + 1, c + 1]], -1)
            centered = square - square.mean(-1, keepdim=True)
            normed = centered / (centered.square().mean(-1, keepdim=True) + merging.norm.epsilon).sqrt()
            normed = normed * merging.norm.weight + merging.norm.bias
            torch.testing.assert_close(found[:, row * columns + column], normed @ merging.reduction.weight.T)


def test_gradients_are_those_of_finite_differences():
    merging = TokenMerging(2).double()
    x = torch.randn(1, 8, 2, dtype=torch.float64, requires_grad=True)
    weight = merging.reduction.weight.detach().clone().requires_grad_()

    def run(x, weight):
        return torch.func.functional_call(merging, {"reduction.weight": weight}, (x, (4, 2)))

    assert torch.autograd.gradcheck(run, (x, weight))


def test_gradients_of_a_whole_encoder_are_those_of_finite_differences():
    model = ImageEncoder(4, 1, 2, channels=1, dim=2, depth=2, heads=1, hidden=2, merge=(1,)).double()
    images = torch.randn(1, 1, 4, 4, dtype=torch.float64, requires_grad=True)
    reduction = model.merging["1"].reduction.weight.detach().clone().requires_grad_()

    def run(images, reduction):
        return torch.func.functional_call(model, {"merging.1.reduction.weight": reduction}, (images,))

    assert torch.autograd.gradcheck(run, (images, reduction))


@given(
    attention=st.sampled_from(KINDS),
    norm=st.sampled_from(["pre", "post"]),
    merge=st.sets(st.integers(0, 2)),
    rows=st.integers(1, 2),
    columns=st.integers(1, 2),
    patch=st.integers(1, 2),
    second_output=st.booleans(),
)
def test_each_block_sees_the_grid_that_it_is_said_to_see(attention, norm, merge, rows, columns, patch, second_output):
    merge = tuple(sorted(merge))
    side = patch * 2 ** len(merge)
    size = (rows * side, columns * side)
    settings = AttentionSettings(attention, second_output=second_output)
    options = {"attention": settings, "norm": norm, "merge": merge}
    model = ImageEncoder(size, patch, 5, **options, **SMALL).eval()
    images = torch.randn(2, 3, *size)
    logits, levels = model(images, return_intermediates=True)
    assert logits.shape == (2, 5)
    assert model.grid == (size[0] // patch, size[1] // patch)
    for number, (grid, level) in enumerate(zip(model.grids, levels, strict=True)):
        times = sum(at <= number for at in merge)
        assert grid == (model.grid[0] // 2**times, model.grid[1] // 2**times)
        assert level.shape == (2, grid[0] * grid[1], 18 * 2**times)
        assert model.blocks[number].feed_forward.hidden == 20 * 2**times
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), logits)


@settings(max_examples=6)
@given(attention=st.sampled_from(["gaussian", "gated", "content"]), rows=st.integers(1, 3), columns=st.integers(1, 3))
def test_other_sizes_of_images_are_taken(attention, rows, columns):
    model = ImageEncoder(8, 2, 3, attention=attention, merge=(1,), **SMALL).eval()
    _, levels = model.forward_intermediates(torch.randn(1, 3, 4 * rows, 4 * columns))
    assert [level.shape[1] for level in levels] == [4 * rows * columns, rows * columns, rows * columns]


def test_the_encoder_is_its_parts_in_order():
    model = ImageEncoder((8, 16), 2, 3, merge=(1, 2), **SMALL).double().eval()
    images = torch.randn(2, 3, 8, 16, dtype=torch.float64)
    _, (first, second, third) = model.forward_intermediates(images)
    again = model.blocks[1](model.merging["1"](first, (4, 8)), grid=(2, 4))
    torch.testing.assert_close(again, second)
    torch.testing.assert_close(model.blocks[2](model.merging["2"](again, (2, 4)), grid=(1, 2)), third)


def test_without_merging_it_is_the_encoder_it_was():
    """No names of merging in its state, the same draws, and the same answers: older checkpoints load."""
    torch.manual_seed(1)
    plain = ImageEncoder(8, 2, 3, **SMALL)
    torch.manual_seed(1)
    without = ImageEncoder(8, 2, 3, merge=[], **SMALL)
    assert plain.state_dict().keys() == without.state_dict().keys()
    assert not any("merging" in name for name in plain.state_dict())
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(without(images), plain(images))
    merged = ImageEncoder(8, 2, 3, merge=(1,), **SMALL).state_dict()
    extra = {"merging.1.norm.weight", "merging.1.norm.bias", "merging.1.reduction.weight"}
    assert merged.keys() - plain.state_dict().keys() == extra


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), depth=st.integers(1, 6), data=st.data())
def test_grids_halve_where_tokens_are_merged(rows, columns, depth, data):
    merge = checked_merge(sorted(data.draw(st.sets(st.integers(0, depth - 1), max_size=3))), depth)
    grid = (rows * 2 ** len(merge), columns * 2 ** len(merge))
    grids = grids_of_blocks(grid, depth, merge)
    for number, (before, after) in enumerate(zip([grid, *grids], grids, strict=False)):
        factor = 2 if number in merge else 1
        assert (factor * after[0], factor * after[1]) == before


@pytest.mark.parametrize(
    ("merge", "message"),
    [
        (2, "merge must be the numbers of blocks, such as"),
        ("1", "merge must be the numbers of blocks, such as"),
        ((3,), "merge must be numbers of blocks, from 0 to 2"),
        ((-1,), "merge must be numbers of blocks, from 0 to 2"),
        ((True,), "merge must be numbers of blocks, from 0 to 2"),
        ((1.0,), "merge must be numbers of blocks, from 0 to 2"),
        ((2, 1), "merge must name each block once, in order"),
        ((1, 1), "merge must name each block once, in order"),
    ],
)
def test_says_what_is_wrong_with_merge(merge, message, user_errors):
    with pytest.raises((TypeError, ValueError), match=message):
        ImageEncoder(8, 2, 3, merge=merge, **SMALL)


def test_says_what_is_wrong_with_a_size(user_errors):
    with pytest.raises(
        ValueError, match=r"image's height \(image_size\) is 12, but must be a multiple of 8 \(patch_size is 2, tokens"
    ):
        ImageEncoder(12, 2, 3, merge=(0, 1), **SMALL)
    model = ImageEncoder(8, 2, 3, merge=(1,), **SMALL)
    with pytest.raises(ValueError, match=r"image's width \(image_size\) is 6, but must be a multiple of 4"):
        model(torch.ones(1, 3, 8, 6))
    for tokens, grid in ((6, (3, 2)), (6, (2, 3)), (8, (2, 2))):
        with pytest.raises(ValueError, match=f"x has {tokens} tokens, which cannot be merged in squares of 2×2"):
            TokenMerging(2)(torch.ones(1, tokens, 2), grid)
    with pytest.raises(ValueError, match="dim must be 1 or more"):
        TokenMerging(0)
