"""No call copies numbers from the host's memory to a device or reads them back: either would wait for a GPU, and neither is
allowed while a CUDA graph is captured.

``meta`` stands for the device: a tensor there has no values, so that reading them is an error, and a copy to it is seen by
the mode below. The first call may make what it keeps.
"""

import pytest
import torch
from torch.overrides import TorchFunctionMode

import regard
from regard import layers
from regard.functional import (
    DecayProfile,
    GaussianProfile,
    gaussian_attention,
    plan_for,
    separable_attention,
    softargmax,
)

X = (2, 64, 32)
IMAGE = (2, 6, 9, 9)


class Copies(TorchFunctionMode):
    """What is made of Python's numbers on another device than the CPU, or moved there."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        if isinstance(out, torch.Tensor) and not out.is_cpu:
            moved = any(isinstance(x, torch.Tensor) and x.ndim and x.is_cpu for x in args)
            if moved or function in (torch.tensor, torch.as_tensor):
                self.seen.append(function.__name__)
        return out


def on_device(*shape):
    return torch.empty(shape, device="meta")


def of_layer(make, *inputs, **options):
    def call():
        layer = make().to("meta")
        return lambda: layer(
            *(on_device(*x) if isinstance(x, tuple) and x in (X, IMAGE) else x for x in inputs), **options
        )

    return call


def converted(**options):
    conv = torch.nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect", dilation=2)
    return lambda: regard.conv_to_attention(conv, **options)


def frozen(border, padding):
    """Heads that differ in reach: bands of several widths, in an order of their own."""
    center = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0]])
    sharpness = torch.tensor([2.0, 0.001, 2.0])
    plan = plan_for(center, sharpness, (64, 64), border=border, padding=padding)
    assert len(plan.groups) > 1
    value, center, sharpness = on_device(1, 3, 64 * 64, 4), on_device(3, 2), on_device(3)
    return lambda: gaussian_attention(value, center, sharpness, (64, 64), border=border, padding=padding, plan=plan)


CASES = {
    "multi-head": of_layer(lambda: layers.MultiHeadAttention(32, 4), X),
    "multi-head with weights": of_layer(lambda: layers.MultiHeadAttention(32, 4), X, causal=True, return_weights=True),
    "gaussian": of_layer(lambda: layers.GaussianAttention(32, 4), X, (8, 8)),
    "gaussian, full width": of_layer(lambda: layers.GaussianAttention(32, 9, full_width=True, init="grid"), X, (8, 8)),
    "gaussian, full covariance": of_layer(lambda: layers.GaussianAttention(32, 4, covariance="full"), X, (8, 8)),
    "separable": of_layer(lambda: layers.SeparableAttention(32, 4), X, (8, 8)),
    "relative": of_layer(lambda: layers.RelativeAttention(32, 4, extent=(8, 8)), X, (8, 8)),
    "gated": of_layer(lambda: layers.GatedPositionalAttention(32, 4), X, (8, 8)),
    "converted convolution": of_layer(converted(plan="attention"), IMAGE),
    "converted convolution by taps": of_layer(converted(plan="taps"), IMAGE),
    "converted convolution, trainable": of_layer(converted(trainable=True), IMAGE),
    "bands": lambda: frozen("native", None),
    "bands with padding": lambda: frozen("zeros", ((1, 1), (1, 1))),
    "softargmax": lambda: lambda: softargmax(on_device(3, 4), 2.0),
    "decay": lambda: (
        lambda: separable_attention(
            on_device(1, 2, 40, 3), [DecayProfile(on_device(2)), GaussianProfile(on_device(2), on_device(2))], (5, 8)
        )
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_call_copies_nothing_from_the_host(case):
    call = CASES[case]()
    call()
    with Copies() as copies:
        call()
    assert not copies.seen


def test_a_converted_convolution_copies_nothing_even_at_a_size_it_has_not_seen():
    layer = converted(plan="attention")().to("meta")
    with Copies() as copies:
        layer(on_device(1, 6, 21, 22))
    assert not copies.seen


def test_the_mode_sees_a_copy():
    with Copies() as copies:
        torch.tensor([1.0], device="meta")
        torch.ones(2).to("meta")
        torch.full((2,), 3.0, device="meta")
    assert copies.seen == ["tensor", "to"]
