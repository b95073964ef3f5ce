"""Text and image together: two lengths, two widths, and both inputs count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.models import TextImageFusion

SMALL = {"text_dim": 8, "image_dim": 12, "heads": 2}


@given(tokens=st.integers(1, 6), image_depth=st.integers(0, 1), depth=st.integers(1, 2), columns=st.integers(1, 3))
def test_shapes(tokens, image_depth, depth, columns):
    model = TextImageFusion(11, (8, 4 * columns), 4, 3, image_depth=image_depth, depth=depth, **SMALL).eval()
    numbers, images = torch.randint(11, (2, tokens)), torch.randn(2, 1, 8, 4 * columns)
    scores, maps = model(numbers, images, return_weights=True)
    assert scores.shape == (2, 3)
    torch.testing.assert_close(model(numbers, images), scores)
    assert len(maps) == depth
    assert maps[0].attention.shape == (2, 2, tokens, tokens)
    assert maps[-1].cross_attention.shape == (2, 2, tokens, 2 * columns)
    assert model.encode_images(images).shape == (2, 2 * columns, 12)


def test_both_inputs_count_and_padding_does_not():
    model = TextImageFusion(11, 8, 4, **SMALL).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    numbers, images = torch.randint(11, (2, 6)), torch.randn(2, 1, 8, 8, dtype=torch.float64)
    keep = torch.arange(6) < torch.tensor([[6], [4]])
    scores = model(numbers, images, keep=keep)
    torch.testing.assert_close(model(numbers[1:, :4], images[1:]), scores[1:])
    assert (model((numbers + 1) % 11, images, keep=keep) - scores).abs().max() > 1e-3
    assert (model(numbers, images.flip(-1), keep=keep) - scores).abs().max() > 1e-3


def test_bad_input(user_errors):
    model = TextImageFusion(11, 8, 4, length=6, **SMALL)
    numbers, images = torch.zeros(2, 6, dtype=torch.int64), torch.ones(2, 1, 8, 8)
    calls = [
        (lambda: model(numbers, images[:1]), "images has batch size 1 but tokens has 2"),
        (lambda: model(numbers + 11, images), "tokens holds numbers from 11"),
        (lambda: model(numbers, torch.ones(2, 3, 8, 8)), "must have 1 channels"),
        (lambda: model(torch.zeros(2, 7, dtype=torch.int64), images), "go beyond the learned positions"),
        (lambda: TextImageFusion(11, (8, 8, 8), 4), "image_size must be a number or"),
        (lambda: TextImageFusion(11, 8, 4, heads=5), "which 5 heads do not divide"),
        (lambda: TextImageFusion(11, 8, 4, image_depth=-1), "image_depth must be a whole number"),
    ]
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()
