"""Autocast leaves float64 as it is: results under it are those without it."""

import pytest
import torch

import regard
from regard.functional import attention, gaussian_attention, placed_attention

HALF = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("plan", ["auto", "dense", "separable"])
@pytest.mark.parametrize("heads", [1, 3])
def test_gaussian_attention(heads, plan, dtype):
    value = torch.randn(2, heads, 20, 4, dtype=torch.float64)
    center, sharpness = torch.randn(3, 2, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    expected = gaussian_attention(value, center, sharpness, (4, 5), plan=plan)
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(gaussian_attention(value, center, sharpness, (4, 5), plan=plan), expected)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("return_weights", [False, True])
def test_content(return_weights, dtype):
    query, key, value = torch.randn(3, 2, 3, 20, 4, dtype=torch.float64)
    center, sharpness = torch.randn(3, 2, dtype=torch.float64), torch.rand(3, dtype=torch.float64)

    def call():
        options = {"return_weights": return_weights}
        return (
            attention(query, key, value, **options),
            placed_attention(query, key, value, center, sharpness, (4, 5), **options),
        )

    expected = call()
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(call(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "layer",
    [
        regard.GaussianAttention(6, 3),
        regard.GaussianAttention(6, 3, full_width=True),
        regard.layers.PlacedAttention(6, 3),
    ],
    ids=["heads", "full width", "placed"],
)
def test_layers(layer, dtype):
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    expected = layer.double()(x, (4, 5))
    with torch.autocast("cpu", dtype):
        torch.testing.assert_close(layer(x, (4, 5)), expected, rtol=1e-12, atol=1e-12)
        with pytest.raises(TypeError, match=r"x is a float32 tensor of shape \(2, 20, 6\), but must be torch.float64"):
            layer(x.float(), (4, 5))


@pytest.mark.parametrize("dtype", HALF)
def test_converted_convolutions(dtype):
    conv = torch.nn.Conv2d(2, 3, 3, padding=1).double()
    layer, x = regard.conv_to_attention(conv), torch.randn(1, 2, 5, 6, dtype=torch.float64)
    expected = layer(x)
    with torch.autocast("cpu", dtype):
        assert layer.chosen_plan(x) == "attention"  # in float64 its leak is no rounding
        torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)
