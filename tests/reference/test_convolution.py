"""Convolution as a sum over shifts: equal to torch's in one, two and three axes, for every option."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.reference import convolution

TORCH = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
MODULES = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def random(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


@st.composite
def convolutions(draw):
    axes = draw(st.integers(1, 3))

    def per_axis(low, high):
        return tuple(draw(st.lists(st.integers(low, high), min_size=axes, max_size=axes)))

    kernel, stride, dilation, padding = per_axis(1, 3), per_axis(1, 3), per_axis(1, 2), per_axis(0, 3)
    space = tuple(d * (k - 1) + 1 + extra for d, k, extra in zip(dilation, kernel, per_axis(0, 3), strict=True))
    groups = draw(st.integers(1, 2))
    return axes, space, kernel, stride, dilation, padding, groups


@given(convolutions(), st.booleans())
def test_equals_torch(case, biased):
    axes, space, kernel, stride, dilation, padding, groups = case
    x, weight = random(2, 2 * groups, *space), random(3 * groups, 2, *kernel)
    bias = random(3 * groups) if biased else None
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    torch.testing.assert_close(convolution(x, weight, bias, **options), TORCH[axes](x, weight, bias, **options))


@given(convolutions(), st.sampled_from(["same", "valid"]))
def test_padding_by_name(case, padding):
    axes, space, kernel, _, dilation, _, _ = case
    x, weight = random(1, 2, *space), random(3, 2, *kernel)
    output = convolution(x, weight, padding=padding, dilation=dilation)
    expected = _quietly(TORCH[axes], x, weight, padding=padding, dilation=dilation)
    torch.testing.assert_close(output, expected)
    if padding == "same":
        assert output.shape[2:] == space


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@given(convolutions())
def test_padding_modes_are_those_of_torchs_modules(mode, case):
    axes, space, kernel, stride, dilation, padding, _ = case
    most = 1 if mode == "reflect" else 0
    padding = tuple(min(p, n - most) for p, n in zip(padding, space, strict=True))
    module = MODULES[axes](2, 3, kernel, stride, padding, dilation, padding_mode=mode).double()
    x = random(1, 2, *space)
    output = convolution(
        x, module.weight, module.bias, stride=stride, padding=padding, dilation=dilation, padding_mode=mode
    )
    torch.testing.assert_close(output, module(x))


def test_beyond_the_border_is_zero_also_beside_an_infinite_pixel():
    x, weight = torch.tensor([[[math.inf, 1.0, 2.0]]]), torch.tensor([[[1.0, 1.0]]])
    assert convolution(x, weight, padding=2).tolist() == [[[0.0, math.inf, math.inf, 3.0, 2.0, 0.0]]]


def test_one_number_serves_every_axis_and_pairs_pad_unevenly():
    x, weight = random(1, 2, 5, 6), random(3, 2, 2, 2)
    whole = convolution(x, weight, stride=2, padding=1, dilation=2)
    torch.testing.assert_close(whole, F.conv2d(x, weight, stride=2, padding=1, dilation=2))
    uneven = convolution(x, weight, padding=((0, 1), (2, 0)))
    torch.testing.assert_close(uneven, F.conv2d(F.pad(x, (2, 0, 0, 1)), weight))


def test_four_axes_are_a_convolution_of_each_slice_where_the_kernel_is_one_deep():
    x, weight = random(1, 2, 3, 2, 4, 3), random(3, 2, 1, 2, 2, 2)
    output = convolution(x, weight)
    for depth in range(3):
        torch.testing.assert_close(output[:, :, depth], F.conv3d(x[:, :, depth], weight[:, :, 0]))


def test_gradients():
    x, weight, bias = random(1, 2, 3, 4, grad=True), random(2, 2, 2, 2, grad=True), random(2, grad=True)
    for mode in ("zeros", "reflect"):
        assert torch.autograd.gradcheck(
            lambda *given: convolution(*given, stride=2, padding=1, padding_mode=mode),  # noqa: B023
            (x, weight, bias),
        )


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (
            {"weight": torch.ones(3, 4, 3, 3)},
            ValueError,
            r"weight of shape \(3, 4, 3, 3\) with groups=1 does not fit x",
        ),
        ({"padding": -1}, ValueError, r"padded by \[\(-1, -1\), \(-1, -1\)\]"),
        ({"padding": "full"}, ValueError, "padding must be one of 'same', 'valid', got 'full'"),
        ({"padding": "same", "stride": 2}, ValueError, "padding='same' needs stride 1"),
        ({"padding_mode": "wrap"}, ValueError, "padding_mode must be one of"),
        ({"dilation": 4}, ValueError, r"weight with kernel \(3, 3\) does not fit x of shape \(1, 2, 5, 5\)"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    good = {"x": torch.ones(1, 2, 5, 5), "weight": torch.ones(3, 2, 3, 3)}
    with pytest.raises(error, match=says):
        convolution(**(good | arguments))


def _quietly(function, *arguments, **options):
    """torch warns that an even kernel's 'same' may copy the input."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return function(*arguments, **options)
