"""The rival: each channel of each head convolved on its own, between attention's linear layers."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard import GaussianAttention
from regard.models import AttentionPyramid, ImageEncoder
from regard.models._depthwise import DepthwiseMixing


def test_is_the_formula():
    layer = DepthwiseMixing(6, heads=2, head_dim=5).double()
    x = torch.randn(2, 4, 7, 6, dtype=torch.float64)
    value = layer.value(x).permute(0, 3, 1, 2)
    channels = [F.conv2d(value[:, i : i + 1], layer.mixing.weight[i : i + 1], padding=1) for i in range(10)]
    torch.testing.assert_close(layer(x), layer.output(torch.cat(channels, 1).permute(0, 2, 3, 1)))
    torch.testing.assert_close(layer(x.flatten(1, 2), (4, 7)), layer(x).flatten(1, 2))


def test_full_width_heads_convolve_the_whole_input():
    layer = DepthwiseMixing(3, heads=9, full_width=True).double()
    x = torch.randn(1, 5, 5, 3, dtype=torch.float64)
    assert layer.output.in_features == 27
    assert sum(p.numel() for p in layer.parameters()) == 27 * 9 + 27 * 3 + 3
    kernel = layer.mixing.weight  # (channel · head, 1, 3, 3)
    mixed = F.conv2d(x.permute(0, 3, 1, 2).repeat_interleave(9, 1), kernel, padding=1, groups=27)
    torch.testing.assert_close(layer(x), layer.output(mixed.permute(0, 2, 3, 1)))


def test_sharp_gaussian_heads_are_a_special_case():
    """Kernels that are one at a head's center and zero elsewhere mix as that head does, away from the border."""
    heads = GaussianAttention(4, 9, head_dim=2, init="grid", sharpness=60.0).double()
    layer = DepthwiseMixing(4, 9, head_dim=2).double()
    layer.value.load_state_dict(heads.value.state_dict())
    layer.output.load_state_dict(heads.output.state_dict())
    with torch.no_grad():
        layer.mixing.weight.copy_(torch.eye(9).reshape(9, 1, 3, 3).repeat_interleave(2, 0))
    x = torch.randn(2, 6, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[:, 1:-1, 1:-1], heads(x)[:, 1:-1, 1:-1])


def test_bad_input(user_errors):
    with pytest.raises(ValueError, match="kernel must be odd, got 4"):
        DepthwiseMixing(6, 2, kernel=4)
    with pytest.raises(ValueError, match="dim 7 is not divisible by heads 2"):
        DepthwiseMixing(7, 2)


@pytest.mark.parametrize("name", ["pyramid", "encoder", "encoder of the paper"])
def test_no_map_is_missed_where_a_convolution_stands_in_the_place_of_attention(name, recwarn):
    """Training would warn of it at every look at the maps."""
    if name == "pyramid":
        network = AttentionPyramid(32, 10, widths=(8, 16), mixing="convolution").eval()
        network.whiten(torch.randn(8, 3, 32, 32))
    else:
        settings = {"kind": "depthwise", "second_output": name == "encoder of the paper"}
        network = ImageEncoder(32, 4, 10, dim=16, depth=2, heads=2, attention=settings).eval()
    with regard.capture(network) as maps:
        network(torch.randn(1, 3, 32, 32))
    assert not maps.missed
    assert not [warning for warning in recwarn if "no map was captured" in str(warning.message)]
