"""Every layer runs inside a CUDA graph, forward and backward, and a replay gives what a call gives. CI has no GPU."""

import math

import pytest
import torch

import regard
from regard import layers
from regard.functional import gaussian_attention, plan_for

pytestmark = pytest.mark.gpu

CONVOLUTION = {"padding": 1, "padding_mode": "reflect"}
LAYERS = {
    "multi-head": (lambda: layers.MultiHeadAttention(32, 4), (2, 64, 32), {}),
    "gaussian": (lambda: layers.GaussianAttention(32, 4), (2, 64, 32), {"grid": (8, 8)}),
    "full width": (
        lambda: layers.GaussianAttention(32, 9, full_width=True, init="grid"), (2, 256, 32), {"grid": (16, 16)}
    ),
    "full covariance": (
        lambda: layers.GaussianAttention(32, 4, covariance="full"), (2, 64, 32), {"grid": (8, 8)}
    ),
    "separable": (lambda: layers.SeparableAttention(32, 4), (2, 64, 32), {"grid": (8, 8)}),
    "placed": (lambda: layers.PlacedAttention(32, 4), (2, 64, 32), {"grid": (8, 8)}),
    "converted": (
        lambda: regard.conv_to_attention(torch.nn.Conv2d(6, 4, 3, **CONVOLUTION), plan="attention"), (2, 6, 9, 9), {}
    ),
    "taps": (lambda: regard.conv_to_attention(torch.nn.Conv2d(6, 4, 3, **CONVOLUTION), plan="taps"), (2, 6, 9, 9), {}),
    "trainable": (
        lambda: regard.conv_to_attention(torch.nn.Conv2d(6, 4, 3, **CONVOLUTION), trainable=True), (2, 6, 9, 9), {}
    ),
}  # fmt: skip


def replayed(step):
    """What the step returns, eagerly and from a graph. No result of an eager call is alive while the graph is captured: it
    would hold nodes that belong to the default stream."""
    expected = [x.detach().clone() for x in step()]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [x.detach() for x in step()]
    graph.replay()
    torch.cuda.synchronize()
    return found, expected


def check(step):
    for a, b in zip(*replayed(step), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_is_captured_and_replayed(case):
    make, shape, options = LAYERS[case]
    torch.manual_seed(0)
    layer, x = make().to("cuda"), torch.randn(shape).to("cuda")
    learned = list(layer.parameters())

    def step():
        out = layer(x, **options)
        return [out, *torch.autograd.grad(out.square().mean(), learned)]

    check(step)


@pytest.mark.parametrize("grid", [(16, 16), (40, 70), (256, 40), (300,), (2000,), (6, 7, 8)])
@pytest.mark.parametrize("plan", ["auto", "frozen"])
def test_gaussian_attention_is_captured_and_replayed(grid, plan):
    torch.manual_seed(0)
    heads, axes = 3, len(grid)
    inputs = [torch.randn(2, heads, math.prod(grid), 16), torch.randn(heads, axes), torch.tensor([2.0, 1e-3, 0.5])]
    value, center, sharpness = (x.to("cuda").requires_grad_() for x in inputs)
    way = plan_for(center, sharpness, grid, value.dtype) if plan == "frozen" else plan

    def step():
        out = gaussian_attention(value, center, sharpness, grid, plan=way)
        return [out, *torch.autograd.grad(out.square().mean(), (value, center, sharpness))]

    check(step)


def test_bands_with_padding_are_captured_at_the_first_call():
    """Their constants are not copied from the host, which a capture does not allow."""
    torch.manual_seed(0)
    center, sharpness = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0]]), torch.tensor([2.0, 0.001, 2.0])
    padding = ((1, 1), (1, 1))
    plan = plan_for(center, sharpness, (64, 66), border="zeros", padding=padding)
    value, center, sharpness = torch.randn(1, 3, 64 * 66, 4).cuda(), center.cuda(), sharpness.cuda()
    torch.zeros(2, 2, device="cuda") @ torch.zeros(2, 2, device="cuda")  # cuBLAS makes its workspace
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = gaussian_attention(value, center, sharpness, (64, 66), border="zeros", padding=padding, plan=plan)
    graph.replay()
    expected = gaussian_attention(value, center, sharpness, (64, 66), border="zeros", padding=padding)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
