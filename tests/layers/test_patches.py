"""A patch embedding is a linear map of each flattened patch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers import PatchEmbedding


@given(
    patch=st.one_of(st.integers(1, 4), st.tuples(st.integers(1, 4), st.integers(1, 4))),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    channels=st.integers(1, 4),
    bias=st.booleans(),
)
def test_each_token_is_a_linear_map_of_its_patch(patch, rows, columns, channels, bias):
    layer = PatchEmbedding(patch, 5, channels=channels, bias=bias).double()
    height, width = layer.patch_size
    images = torch.randn(2, channels, rows * height, columns * width, dtype=torch.float64)
    tokens = layer(images)
    assert layer.grid(rows * height, columns * width) == (rows, columns)
    matrix = layer.projection.weight.flatten(1)
    offset = layer.projection.bias if bias else 0.0
    for row in range(rows):
        for column in range(columns):
            cut = images[:, :, row * height : (row + 1) * height, column * width : (column + 1) * width]
            torch.testing.assert_close(tokens[:, row * columns + column], cut.flatten(1) @ matrix.T + offset)


def test_bad_input_is_named(user_errors):
    layer = PatchEmbedding((2, 3), 4, channels=1)
    for shape, message in (
        (
            (1, 1, 5, 6),
            "height of images .image_size. is 5, but must be a positive multiple of the height of a patch .patch_size., 2",
        ),
        (
            (1, 1, 4, 4),
            "width of images .image_size. is 4, but must be a positive multiple of the width of a patch .patch_size., 3",
        ),
        (
            (1, 1, 0, 3),
            "height of images .image_size. is 0, but must be a positive multiple of the height of a patch .patch_size., 2",
        ),
        ((1, 3, 4, 6), r"images has shape \(1, 3, 4, 6\), but must have 1 channel$"),
        ((1, 4, 6), "images has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(torch.zeros(shape))
    with pytest.raises(TypeError, match=r"patch_size must be a number or \(height, width\)"):
        PatchEmbedding((1, 2, 3), 4)
    with pytest.raises(ValueError, match="dim must be 1 or more"):
        PatchEmbedding(2, 0)
    with pytest.raises(TypeError, match="images is a float64 tensor"):
        layer(torch.zeros(1, 1, 2, 3, dtype=torch.float64))
    assert "patch_size=(2, 3), dim=4, channels=1" in repr(layer)
