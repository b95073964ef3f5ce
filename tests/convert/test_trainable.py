"""``conv_to_attention(conv, trainable=True)``: starts near the convolution, and its heads can be moved by training."""

import pytest
import torch
from torch import nn

import regard


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(3, 4, 3, padding=1),
        nn.Conv2d(4, 6, 3, padding=1, stride=2, groups=2),
        nn.Conv2d(2, 3, (3, 2), padding="same", dilation=(1, 2), padding_mode="reflect", bias=False),
        nn.Conv3d(1, 2, 2, padding=1, padding_mode="circular"),
    ],
    ids=lambda conv: type(conv).__name__,
)
def test_sharp_heads_are_the_convolution(conv):
    conv = conv.double()
    layer = regard.conv_to_attention(conv, trainable=True)
    x = torch.randn(2, conv.in_channels, *[7, 6, 5][: conv.weight.ndim - 2], dtype=torch.float64)
    near = (layer(x) - conv(x)).abs().max().item()
    assert near <= layer.leak * conv.weight.abs().flatten(1).sum(1).max().item() * x.abs().max().item()
    with torch.no_grad():
        layer.log_sharpness.fill_(4.0)
    torch.testing.assert_close(layer(x), conv(x))
    torch.testing.assert_close(layer(x[0]), conv(x)[0])


def test_gradients():
    layer = regard.conv_to_attention(nn.Conv2d(1, 2, 2, padding=1).double(), trainable=True)
    x = torch.randn(1, 1, 3, 4, dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]

    def call(*values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert set(names) == {"weight", "bias", "center", "log_sharpness"}
    assert torch.autograd.gradcheck(call, tuple(layer.parameters()))


def test_training_recovers_a_planted_shift():
    """The target looks one token to the right of the convolution; only the center is trained, and it goes there."""
    torch.manual_seed(0)
    conv = nn.Conv2d(1, 1, 1, bias=False)
    layer = regard.conv_to_attention(conv, trainable=True)
    optimizer = torch.optim.Adam([layer.center], lr=0.05)
    for _ in range(150):
        x = torch.randn(16, 1, 8, 8)
        wanted = conv(x).roll(-1, 3)[..., :-1].detach()
        loss = (layer(x)[..., :-1] - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (layer.center.detach() - torch.tensor([[0.0, 1.0]])).abs().max().item() < 0.1


@pytest.mark.parametrize("stride", [1, 2])
def test_its_maps_are_captured_and_follow_the_centers(stride):
    conv = nn.Conv2d(2, 3, 3, padding=1, stride=stride)
    layer = regard.conv_to_attention(conv, trainable=True)
    with torch.no_grad():
        layer.center[4] = torch.tensor([0.0, 1.0])  # the middle tap now looks to the right
    x = torch.randn(2, 2, 6, 5)
    with regard.capture(layer) as maps:
        out = layer(x)
    [(_, found)] = maps.items()
    torch.testing.assert_close(out, layer(x))
    assert found.weights.shape == (2, 9, out.shape[2] * out.shape[3], 30)
    torch.testing.assert_close(
        found.weights.sum(-1)[0, 4, 0], torch.tensor(1.0), atol=0.2, rtol=0
    )  # zeros leave some out
    assert int(found.weights[0, 4, 0].argmax()) == 1


def test_a_wrong_shape_is_quoted():
    layer = regard.conv_to_attention(nn.Conv2d(3, 4, 3), trainable=True)
    with pytest.raises(ValueError, match=r"\(2, 8, 8, 3\).*3 channels"):
        layer(torch.randn(2, 8, 8, 3))
