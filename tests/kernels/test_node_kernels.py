"""The kernels of wide heads, in the interpreter: equal to plain operations in float64."""

import math

import pytest
import torch

from regard.functional import gaussian_attention, kernels, plan_for


def inputs(grid, heads=3, value_heads=None, width=20, spread=1.0, batch=2):
    generator = torch.Generator().manual_seed(sum(grid))
    scale = torch.tensor([(spread / n) ** 2 for n in grid])
    center = 3 * torch.randn(heads, len(grid), generator=generator)
    sharpness = scale * (0.5 + torch.rand(heads, 1, generator=generator))
    return torch.randn(batch, value_heads or heads, math.prod(grid), width, generator=generator), center, sharpness


def results(given, grid, plan, above):
    given = [x.detach().requires_grad_() for x in given]
    out = gaussian_attention(*given, grid, plan=plan)
    return out, *torch.autograd.grad(out, given, above.to(out.dtype))


@pytest.mark.parametrize("layout", ["heads first", "tokens first", "channels apart"])
@pytest.mark.parametrize(
    ("grid", "width", "value_heads", "spread"),
    [
        ((80,), 20, 3, 0.3),
        ((70, 41), 64, 3, 1.0),
        ((33, 70), 5, 1, 1.0),
        ((24, 20, 9), 16, 3, 0.02),
        ((400,), 130, 3, 14.0),  # more nodes than one tile has rows
    ],
)
def test_wide_heads(grid, width, value_heads, spread, layout):
    given = inputs(grid, width=width, value_heads=value_heads, spread=spread)
    plan = plan_for(given[1], given[2], grid, torch.float32)
    assert all(head.nodes for head in plan.heads)
    assert kernels.usable_for_nodes(given[0], torch.float32)
    assert not kernels.usable_for_nodes(given[0].double(), torch.float64)
    above = torch.randn(2, 3, math.prod(grid), width)
    if layout == "tokens first":
        above = above.transpose(1, 2).contiguous().transpose(1, 2)
        given = (given[0].transpose(1, 2).contiguous().transpose(1, 2), *given[1:])
    elif layout == "channels apart":
        above = above.mT.contiguous().mT
        given = (given[0].mT.contiguous().mT, *given[1:])
    found = results(given, grid, plan, above)
    exact = [x.double() for x in given]
    expected = results(exact, grid, "separable", above)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)
    if len(plan.groups) == 1:
        assert found[0].transpose(1, 2).is_contiguous()  # a later "b h n d -> b n (h d)" is a view


def test_gradients_of_values_or_of_heads_alone():
    grid = (40, 30)
    value, center, sharpness = inputs(grid)
    plan = plan_for(center, sharpness, grid, torch.float32)
    assert plan.heads[0].nodes
    above = torch.randn(2, 3, 1200, 20)
    every = results((value, center, sharpness), grid, plan, above)[1:]
    for which in range(3):
        given = [x.detach().requires_grad_(i == which) for i, x in enumerate((value, center, sharpness))]
        (found,) = torch.autograd.grad(gaussian_attention(*given, grid, plan=plan), given[which], above)
        torch.testing.assert_close(found, every[which], atol=1e-6, rtol=1e-5)


def test_queries_off_the_grid():
    grid = (60, 50)
    value, center, sharpness = inputs(grid)
    queries = [torch.tensor([-7.3, 4.5, 31.0, 59.5]), torch.linspace(0.0, 60.0, 5)]
    plan = plan_for(center, sharpness, grid, torch.float32, queries=queries)
    assert plan.heads[0].nodes
    found = gaussian_attention(value, center, sharpness, grid, queries=queries, plan=plan)
    exact = [x.double() for x in (value, center, sharpness)]
    expected = gaussian_attention(*exact, grid, queries=[x.double() for x in queries], plan="separable")
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)
