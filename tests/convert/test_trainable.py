"""``conv_to_attention(conv, trainable=True)``: starts near the convolution, and its heads can be moved by training."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
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


@settings(max_examples=30)
@given(data=st.data())
def test_its_bound_holds_wherever_its_heads_are(data):
    axes, dtype = (
        data.draw(st.integers(1, 3)),
        data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16])),
    )
    stride, groups = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))
    border = data.draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    conv = [nn.Conv1d, nn.Conv2d, nn.Conv3d][axes - 1](
        2 * groups, groups, 3, stride, 1, groups=groups, padding_mode=border, dtype=dtype
    )
    layer = regard.conv_to_attention(conv, trainable=True)
    x = torch.randn(2, 2 * groups, *[5, 6, 4][:axes]).to(dtype)
    if data.draw(st.booleans()):
        x = x.sign()
    lowered = torch.autocast("cpu", torch.bfloat16, enabled=data.draw(st.booleans()))
    with torch.no_grad(), lowered:
        layer.log_sharpness.fill_(data.draw(st.sampled_from([0.0, 1.0, 2.5, 5.0])))
        layer.center.add_(data.draw(st.sampled_from([0.0, 0.01, 0.5, 7.0])) * torch.randn_like(layer.center))
        out, wanted = layer(x), conv(x)
        bound = layer.error_bound(x)
        assert out.dtype is wanted.dtype
        assert (out.double() - wanted.double()).abs().max().item() <= bound


def test_its_bound_is_near_the_error_that_a_leak_can_make():
    conv = nn.Conv2d(1, 1, 3, padding=1, bias=False).double()
    with torch.no_grad():
        conv.weight.zero_()[..., 1, 1] = 1.0
    layer = regard.conv_to_attention(conv, trainable=True)
    x = -torch.ones(1, 1, 7, 7).double()
    x[..., 3, 3] = 1.0  # what is elsewhere has the other sign
    error = (layer(x) - conv(x)).abs().max().item()
    assert 0.7 * layer.error_bound(x) < error <= layer.error_bound(x)
    layer.double().log_sharpness.data.fill_(5.0)
    assert layer.error_bound(x) < 1e-14
    with pytest.raises(ValueError, match="no values"):
        layer.error_bound(x.to("meta"))


def test_far_along_an_axis_a_center_keeps_its_digits():
    layer = regard.conv_to_attention(nn.Conv1d(1, 1, 1, bias=False), trainable=True)
    with torch.no_grad():
        layer.center.fill_(0.3)
        layer.log_sharpness.fill_(3.0)
    far, near = layer.weights((2000,))[0, 0, 1900, 1895:1905], layer.weights((2000,))[0, 0, 10, 5:15]
    torch.testing.assert_close(far, near, rtol=1e-6, atol=0)


def test_leak_of_heads_that_diverged_is_infinite():
    """Its sum never ended: no term of NaN is small enough."""
    layer = regard.conv_to_attention(nn.Conv1d(1, 1, 3), trainable=True)
    layer.log_sharpness.data[1] = torch.nan
    assert layer.leak == layer.error_bound(torch.randn(1, 1, 9)) == torch.inf
