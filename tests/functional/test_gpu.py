"""The same numbers on a GPU as on the CPU. CI has no GPU; run with REGARD_TYPECHECK=0 where beartype is absent."""

import math

import pytest
import torch

from regard import conv_to_attention
from regard.functional import attention, gaussian_attention, placed_attention, plan_for

pytestmark = pytest.mark.gpu


def both(function, *inputs):
    """Output and gradients on the CPU in float64 and on the GPU in float32."""
    results = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        moved = [x.to(device, dtype).detach().requires_grad_() for x in inputs]
        out = function(*moved)
        weight = torch.linspace(-1, 1, out.numel(), device=device, dtype=dtype).reshape(out.shape)
        results.append([x.double().cpu() for x in (out, *torch.autograd.grad((out * weight).sum(), moved))])
    return results


@pytest.mark.parametrize("case", ["plain", "keep", "bias", "causal", "keep+bias+causal"])
def test_attention_with_rows_that_see_nothing(case):
    query, key, value = torch.randn(2, 4, 16, 32), torch.randn(2, 4, 24, 32), torch.randn(2, 4, 24, 32)
    keep = torch.rand(2, 1, 16, 24) > 0.4
    keep[0, 0, 3] = False
    bias = torch.randn(1, 4, 16, 24)
    inputs = [query, key, value] + ([bias] if "bias" in case else [])

    def run(q, k, v, b=None):
        return attention(q, k, v, keep=keep.to(q.device) if "keep" in case else None, bias=b, causal="causal" in case)

    expected, found = both(run, *inputs)
    for a, b in zip(found, expected, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)
    if "keep" in case:
        assert (found[0][0, :, 3] == 0).all()


@pytest.mark.parametrize("grid", [(5, 7), (16, 16), (40, 70), (300,), (6, 7, 8)])
@pytest.mark.parametrize("plan", ["auto", "dense", "separable", "frozen"])
def test_gaussian_attention(grid, plan):
    heads, axes = 4, len(grid)
    center, sharpness = torch.randn(heads, axes) * 3, torch.rand(heads, axes) * 2 + 0.3
    value = torch.randn(3, heads, math.prod(grid), 8)

    def run(v, c, s):
        frozen = plan_for(c, s, grid, v.dtype) if plan == "frozen" else plan
        return gaussian_attention(v, c, s, grid, plan=frozen)

    expected, found = both(run, value, center, sharpness)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3 * max(1.0, b.abs().max().item()), rtol=2e-3)


@pytest.mark.parametrize("grid", [(32, 32), (100, 128), (300, 20), (5000,), (16, 20, 40), (70, 12, 30)])
def test_local_and_wide_heads_in_bfloat16_the_first_time_and_again(grid):
    """A second call goes the short way; kernels compiled for one dtype of the heads are not used for another."""
    value, above = (torch.randn(2, 3, math.prod(grid), 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    center = 2 * torch.randn(3, len(grid), device="cuda")
    sharpness = torch.tensor([0.5, 1e-4, 3.0], device="cuda")
    results = []
    for dtype in (torch.bfloat16, torch.bfloat16, torch.float64):
        heads = [x.to(torch.promote_types(dtype, torch.float32)) for x in (center, sharpness)]
        inputs = [x.detach().requires_grad_() for x in (value.to(dtype), *heads)]
        out = gaussian_attention(*inputs, grid)
        results.append([out, *torch.autograd.grad(out, inputs, above.to(dtype), retain_graph=True)])
    # of random values, gradients of heads cancel to anything: errors are compared with their usual size
    flips = (torch.randint(0, 2, (64,), device="cuda").double() * 2 - 1 for _ in range(8))
    turned = [torch.autograd.grad(out, inputs, above.double() * flip, retain_graph=True) for flip in flips]
    usual = [torch.stack(found).square().sum().div(8).sqrt() for found in zip(*turned, strict=True)]
    for a, b, c, size in zip(*results, [results[-1][0].norm(), *usual], strict=True):
        assert a.equal(b)
        assert (a.double() - c).norm() < 2e-2 * size
    rounded = center.bfloat16()
    found, expected = (gaussian_attention(value, c, sharpness, grid) for c in (rounded, rounded.float()))
    assert found.equal(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_extreme_heads_are_never_nan(dtype):
    for alpha in (1e-6, 1.0, 1e6):
        for far in (0.0, 1e4):
            center = torch.full((2, 2), far, device="cuda", requires_grad=True)
            sharpness = torch.full((2,), alpha, device="cuda", requires_grad=True)
            value = torch.randn(1, 2, 64 * 64, 16, device="cuda", dtype=dtype, requires_grad=True)
            out = gaussian_attention(value, center, sharpness, (64, 64))
            for x in (out, *torch.autograd.grad(out.float().square().sum(), (value, center, sharpness))):
                assert x.isfinite().all()


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("grid", "prefix", "masked"), [((64, 64), 0, False), ((20, 33), 1, True), ((700,), 0, False)])
def test_content_with_place(grid, prefix, masked, lower):
    tokens, axes = prefix + math.prod(grid), len(grid)
    contents = [torch.randn(1, 2, tokens, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    root = torch.randn(2, axes, axes, device="cuda")
    places = [torch.randn(2, axes, device="cuda"), 0.3 * root @ root.mT + 0.05 * torch.eye(axes, device="cuda")]
    keep = torch.rand(1, tokens, device="cuda") > 0.3 if masked else None
    results = []
    for dtype in (lower, torch.float64):
        *inputs, above = (x.to(dtype) for x in contents)
        inputs += [x.to(torch.promote_types(dtype, torch.float32)) for x in places]
        inputs = [x.detach().requires_grad_() for x in inputs]
        out = placed_attention(*inputs, grid, prefix=prefix, keep=keep)
        results.append([out, *torch.autograd.grad(out, inputs, above)])
    for a, b in zip(*results, strict=True):
        assert (a.double() - b).norm() < 1e-2 * b.norm()


@pytest.mark.parametrize("options", [{}, {"padding_mode": "reflect"}, {"stride": 2}, {"groups": 2}])
def test_converted_convolutions_in_bfloat16(options):
    conv = torch.nn.Conv2d(16, 24, 3, padding=1, device="cuda", dtype=torch.bfloat16, **options)
    x, results = torch.randn(3, 16, 20, 32, device="cuda", dtype=torch.bfloat16), []
    for dtype in (torch.bfloat16, torch.float64):
        layer, image = conv_to_attention(conv, plan="attention").to(dtype), x.to(dtype).requires_grad_()
        out = layer(image)
        results.append([out, *torch.autograd.grad(out.square().sum(), [image, *layer.parameters()])])
    for a, b in zip(*results, strict=True):
        assert (a.double() - b).norm() < 1e-2 * b.norm()


@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("grid", "value_heads"), [((5000,), 4), ((200, 160), 4), ((200, 160), 1), ((16, 30, 150), 4)])
def test_wide_heads_of_a_frozen_plan(grid, value_heads, dtype, tokens_first):
    """By interpolation between a few nodes: as accurate as whole matrices in the same dtype."""
    center = 3 * torch.randn(4, len(grid), dtype=torch.float64)
    sharpness = torch.tensor([[(0.3 / n) ** 2 for n in grid]], dtype=torch.float64).repeat(4, 1)
    value = torch.randn(2, value_heads, math.prod(grid), 24, dtype=torch.float64)
    above = torch.randn(2, 4, math.prod(grid), 24, dtype=torch.float64)

    def run(way, place, dtype, exact):
        given = [
            value.to(place, dtype),
            *(x.to(place, torch.float64 if exact else torch.float32) for x in (center, sharpness)),
        ]
        if tokens_first:
            given[0] = given[0].transpose(1, 2).contiguous().transpose(1, 2)
        given = [x.requires_grad_() for x in given]
        plan = plan_for(*given[1:], grid, dtype) if way == "nodes" else way
        if way == "nodes":
            assert all(head.nodes for head in plan.heads)
        out = gaussian_attention(*given, grid, plan=plan)
        return [x.double().cpu() for x in (out, *torch.autograd.grad(out, given, above.to(place, dtype)))]

    exact = run("separable", "cpu", torch.float64, exact=True)
    for i, (nodes, matrices, expected) in enumerate(
        zip(run("nodes", "cuda", dtype, exact=False), run("auto", "cuda", dtype, exact=False), exact, strict=True)
    ):
        off = [((x - expected).norm() / expected.norm()).item() for x in (nodes, matrices)]
        assert off[0] <= 2 * off[1] + 2 * torch.finfo(dtype).eps, (i, off)
