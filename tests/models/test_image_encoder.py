"""The image encoder: every kind of attention, the 2020 paper's shape and parameter count, equivariance to shifts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.layers import AbsolutePositionalEmbedding, GaussianAttention, PatchEmbedding
from regard.models import AttentionSettings, ImageEncoder, paper_image_encoder
from regard.models._image_attention import ATTENTIONS, KINDS
from regard.models._image_encoder import space_to_depth

PAPER = AttentionSettings(full_width=True, second_output=True)
SMALL = {"dim": 18, "depth": 2, "heads": 9, "hidden": 20}


@given(
    attention=st.sampled_from(KINDS),
    norm=st.sampled_from(["pre", "post"]),
    rows=st.integers(1, 4),
    columns=st.integers(1, 4),
    patch=st.integers(1, 3),
    channels=st.integers(1, 3),
    second_output=st.booleans(),
)
def test_shapes(attention, norm, rows, columns, patch, channels, second_output):
    size = (rows * patch, columns * patch)
    settings = AttentionSettings(attention, second_output=second_output)
    model = ImageEncoder(size, patch, 5, channels=channels, attention=settings, norm=norm, **SMALL)
    images = torch.randn(2, channels, *size)
    logits, intermediates = model(images, return_intermediates=True)
    assert logits.shape == (2, 5)
    assert model.grid == (rows, columns)
    assert [x.shape for x in intermediates] == [(2, rows * columns, 18)] * 2
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), logits)


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        ("gaussian", 12_086_844),
        ("gaussian-diagonal", 12_086_844 + 6 * 9),
        # A 2×2 root instead of one number, for each head of each block.
        ("gaussian-full", 12_086_844 + 6 * 9 * 3),
        # Two tables of 31 offsets × 200, one 9 × 400 projection, and no centers or sharpness.
        ("relative", 12_086_844 + 6 * (2 * 31 * 200 + 9 * 400 - 27)),
    ],
)
def test_the_papers_parameter_count(attention, expected):
    with torch.device("meta"):
        model = paper_image_encoder(attention=attention)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert model.grid == (16, 16)


def test_the_papers_block_is_the_formula():
    """x ← norm(x + W₂(Σ_h A_h x W_h + b) + b₂), then the feed-forward network, with heads as wide as the token."""
    model = ImageEncoder(8, 2, 3, dim=10, depth=1, heads=4, hidden=12, attention=PAPER, norm="post")
    model = model.double().eval()
    block = model.blocks[0]
    x = torch.randn(2, 16, 10, dtype=torch.float64)
    inner, second = block.attention.inner, block.attention.output
    maps = inner.weights((4, 4))
    heads = inner.output.weight.unflatten(1, (4, 10)).unbind(1)  # each (10, 10)
    mixed = sum(maps[h] @ x @ heads[h].T for h in range(4)) + inner.output.bias
    y = block.attention_norm(x + second(mixed))
    y = block.feed_forward_norm(y + block.feed_forward(y))
    torch.testing.assert_close(block(x, grid=(4, 4)), y)


def test_pixels_are_grouped_as_a_strided_convolution_would():
    images = torch.randn(2, 3, 6, 9)
    patches = PatchEmbedding(3, 5)
    weight = patches.projection.weight.flatten(1)
    torch.testing.assert_close(space_to_depth(images, 3) @ weight.T + patches.projection.bias, patches(images))


@pytest.mark.parametrize("attention", ["gaussian", "gaussian-full", "gated", "content"])
def test_takes_other_sizes(attention):
    model = ImageEncoder(8, 2, 3, attention=attention, **SMALL).eval()
    for size in ((8, 8), (4, 10), (12, 12)):
        assert model(torch.randn(1, 3, *size)).shape == (1, 3)


def test_heads_start_where_they_are_asked_to():
    model = ImageEncoder(8, 2, 3, attention=AttentionSettings(init="grid"), **SMALL)
    layers = [module for module in model.modules() if isinstance(module, GaussianAttention)]
    assert len(layers) == 2
    assert {tuple(center) for center in layers[0].center.tolist()} == {(r, c) for r in (-1, 0, 1) for c in (-1, 0, 1)}


def test_only_content_attention_adds_absolute_positions():
    for attention in ATTENTIONS:
        model = ImageEncoder(8, 2, 3, attention=attention, **SMALL)
        has = any(isinstance(module, AbsolutePositionalEmbedding) for module in model.modules())
        assert has == (attention == "content")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"attention": "fourier"}, "attention must be one of 'gaussian'"),
        ({"attention": {"kind": "content", "full_width": True}}, "full_width is for attention by position alone"),
        ({"attention": {"full_width": True, "head_dim": 4}}, "head_dim is 4, but with full_width"),
        ({"attention": {"head_dim": "wide"}}, "head_dim must be a whole number"),
        ({"attention": {"kind": "gated", "head_dim": 4}}, "'gated' splits dim between its heads"),
        *[
            ({"attention": {"kind": kind, "init": "grid"}}, f"init is 'grid', which is for Gaussian heads .* {kind!r}")
            for kind in ("content", "relative", "relative-content", "depthwise")
        ],
        ({"attention": 3}, "attention must be a kind such as 'gaussian' or AttentionSettings, got 3"),
        ({"image_size": 9}, r"image's height \(image_size\) is 9, but must be a multiple of 2"),
        ({"image_size": "8"}, "image_size must be a number or"),
        ({"num_classes": 2.0}, "num_classes must be a whole number"),
        ({"norm": "none"}, "norm must be one of 'pre', 'post'"),
        ({"heads": 8, "attention": {"init": "grid", "head_dim": 2}}, "heads is 8 and axes is 2"),
    ],
)
def test_says_what_is_wrong_with_an_argument(arguments, message, user_errors):
    with pytest.raises((TypeError, ValueError), match=message):
        ImageEncoder(**{"image_size": 8, "patch_size": 2, "num_classes": 3, **SMALL, **arguments})


def test_says_what_is_wrong_with_an_image(user_errors):
    model = ImageEncoder(8, 2, 3, **SMALL)
    with pytest.raises(ValueError, match="must have 3 channels"):
        model(torch.ones(1, 1, 8, 8))
    with pytest.raises(ValueError, match=r"image's width \(image_size\) is 7"):
        model(torch.ones(1, 3, 8, 7))
    with pytest.raises(ValueError, match="does not fit into extent"):
        ImageEncoder(8, 2, 3, attention="relative", **SMALL)(torch.ones(1, 3, 16, 16))
