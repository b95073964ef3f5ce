"""The heads of a convolution computed a few items at a time: the same numbers and gradients as with every head stored."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from regard import conv_to_attention
from regard.convert import _tap_products
from regard.convert._tap_products import TapProduct, plain_taps

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@settings(max_examples=20)
@given(data=st.data())
def test_values_and_gradients_are_those_of_stored_heads(data):
    axes, groups = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    per_axis = st.tuples(*[st.integers(1, 3)] * axes)
    conv = CONVOLUTIONS[axes](
        groups * data.draw(st.integers(1, 3)),
        groups * data.draw(st.integers(1, 6)),
        data.draw(per_axis),
        stride=data.draw(per_axis),
        padding=1,
        groups=groups,
        bias=data.draw(st.booleans()),
        padding_mode=data.draw(st.sampled_from(["zeros", "circular"])),
    ).double()
    layer = conv_to_attention(conv, tolerance=0.1)
    x = torch.randn(3, conv.in_channels, *data.draw(st.tuples(*[st.integers(3, 6)] * axes)), dtype=torch.float64)
    x = x.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()  # not contiguous
    arguments = (x, layer.weight, layer.bias, groups), layer.axis_matrices(x.shape[2:], x)
    inputs, found = [x, *layer.parameters()], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_tap_products.CHUNK_BYTES, "cpu", data.draw(st.sampled_from([1, 1 << 14, 1 << 24])))
        for out in (TapProduct.apply(*arguments[0], *arguments[1]), plain_taps(*arguments[0], arguments[1])):
            found.append([out, *torch.autograd.grad(out.sin().sum(), inputs)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_gradients():
    layer = conv_to_attention(nn.Conv2d(2, 3, 3, padding=1).double(), plan="attention")
    x = torch.randn(2, 2, 4, 3, dtype=torch.float64, requires_grad=True)

    def call(x, weight, bias):
        return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))

    assert torch.autograd.gradgradcheck(call, (x, layer.weight, layer.bias))
    # Twice the same weight: what comes through the first call is not the second's gradient.
    twice = conv_to_attention(nn.Conv1d(2, 2, 3, padding=1, bias=False).double(), plan="attention")
    x = torch.randn(1, 2, 4, dtype=torch.float64)
    assert torch.autograd.gradgradcheck(
        lambda weight: torch.func.functional_call(
            twice, {"weight": weight}, (torch.func.functional_call(twice, {"weight": weight}, (x,)),)
        ),
        (twice.weight,),
    )


@pytest.mark.parametrize("stride", [1, 2])
def test_multiply_adds_are_counted(stride):
    """Weights before the last axis, where that is less; and after it, where a stride leaves little of it."""
    layer = conv_to_attention(nn.Conv2d(4, 6, 3, stride=stride, padding=1, groups=2), plan="attention")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(torch.randn(2, 4, 9, 12))
    assert counter.get_total_flops() == 2 * 2 * layer.multiply_adds((9, 12))


def test_half_precision_multiplies_by_the_weights_last():
    """What it stores on the way are numbers of the input again: no further from float64 than with every head stored."""
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 8, 3, padding=1).bfloat16()
    layer, x = conv_to_attention(conv, tolerance=1e-4, plan="attention"), torch.randn(4, 16, 9, 8).bfloat16()
    exact = nn.functional.conv2d(x.double(), conv.weight.double(), conv.bias.double(), padding=1)
    stored = plain_taps(x, layer.weight, layer.bias, 1, layer.axis_matrices((9, 8), x))
    assert (layer(x) - exact).norm() <= 1.01 * (stored - exact).norm()
