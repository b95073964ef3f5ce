"""Conversions and bounds on the CPU while another default device is set, as on a machine that trains on a GPU."""

import pytest
import torch
from torch import nn

import regard
from regard.convert import attention_to_conv, conv_to_attention
from regard.layers import GaussianAttention

CONV, IMAGE = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), torch.randn(1, 3, 7, 7)
TOKENS = torch.randn(1, 20, 20, 8)


def heads(covariance):
    return GaussianAttention(8, 2, sharpness=3.0, covariance=covariance)


@pytest.mark.parametrize("options", [{"plan": "attention"}, {"plan": "taps"}, {"trainable": True}])
def test_a_convolution(options):
    expected = conv_to_attention(CONV, **options)
    with torch.device("meta"):
        found = conv_to_attention(CONV, **options)
        assert found.error_bound(IMAGE) == expected.error_bound(IMAGE)
        assert torch.equal(found(IMAGE), expected(IMAGE))


@pytest.mark.parametrize("covariance", ["isotropic", "diagonal", "full"])
def test_gaussian_heads(covariance):
    layer = heads(covariance)
    expected = attention_to_conv(layer, tolerance=0.01)
    with torch.device("meta"):
        found = attention_to_conv(layer, tolerance=0.01)
        assert found.error_bound(TOKENS) == expected.error_bound(TOKENS)
        assert found.border_leak((12, 12)) == expected.border_leak((12, 12))
        assert torch.equal(found(TOKENS), expected(TOKENS))


@pytest.mark.parametrize(("module", "to"), [(CONV, "attention"), (heads("isotropic"), "convolution")])
def test_a_network_without_an_example(module, to):
    network = nn.Sequential(module)
    expected = regard.convert_network(network, to=to)[1]
    with torch.device("meta"):
        assert str(regard.convert_network(network, to=to)[1]) == str(expected)
