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


def laid_out(tensor, layout):
    """The same numbers with other strides, or as a part of a tensor that is NaN elsewhere."""
    if layout == "tokens first":
        return tensor.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "channels apart":
        return tensor.mT.contiguous().mT
    if layout == "among NaN":
        batch, heads, tokens, width = tensor.shape
        whole = torch.full((batch + 1, heads + 1, tokens + 2, width + 2), math.nan)
        whole[1:, :-1, 1:-1, 1:-1] = tensor
        return whole[1:, :-1, 1:-1, 1:-1]
    return tensor


def results(given, grid, plan, above):
    given = [x.detach().requires_grad_() for x in given]
    out = gaussian_attention(*given, grid, plan=plan)
    return out, *torch.autograd.grad(out, given, above.to(out.dtype))


SHAPES = {  # grid, width, heads, heads of values, spread
    "line": ((50,), 20, 3, 3, 0.1),
    "plane": ((38, 21), 64, 2, 2, 0.3),
    "shared values": ((16, 24), 5, 3, 1, 0.1),
    "volume": ((14, 12, 9), 16, 2, 2, 0.002),
    "more nodes than one tile has rows": ((400,), 130, 2, 2, 14.0),
    "one head, one row": ((1, 80), 1, 1, 1, 0.1),
}
LAYOUTS = ["heads first", "tokens first", "channels apart", "among NaN"]


@pytest.mark.parametrize(
    ("shape", "layout"),
    [(shape, layout) for shape in ("line", "shared values", "one head, one row") for layout in LAYOUTS]
    + [("plane", "among NaN"), ("volume", "tokens first")]
    + [("more nodes than one tile has rows", "channels apart")],
)
def test_wide_heads(shape, layout):
    grid, width, heads, value_heads, spread = SHAPES[shape]
    given = inputs(grid, heads, value_heads, width, spread)
    plan = plan_for(given[1], given[2], grid, torch.float32)
    assert all(head.nodes for head in plan.heads)
    assert kernels.usable_for_nodes(given[0], torch.float32)
    assert not kernels.usable_for_nodes(given[0].double(), torch.float64)
    above = laid_out(torch.randn(2, heads, math.prod(grid), width), layout)
    given = (laid_out(given[0], layout), *given[1:])
    found = results(given, grid, plan, above)
    exact = [x.double() for x in given]
    expected = results(exact, grid, "separable", above)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=2e-5)
    if len(plan.groups) == 1:
        assert found[0].transpose(1, 2).is_contiguous()  # a later "b h n d -> b n (h d)" is a view


def test_gradients_of_values_or_of_heads_alone():
    grid = (20, 18)
    value, center, sharpness = inputs(grid, heads=2, width=5, spread=0.1)
    plan = plan_for(center, sharpness, grid, torch.float32)
    assert plan.heads[0].nodes
    above = torch.randn(2, 2, 360, 5)
    every = results((value, center, sharpness), grid, plan, above)[1:]
    for which in range(3):
        given = [x.detach().requires_grad_(i == which) for i, x in enumerate((value, center, sharpness))]
        (found,) = torch.autograd.grad(gaussian_attention(*given, grid, plan=plan), given[which], above)
        torch.testing.assert_close(found, every[which], atol=1e-6, rtol=1e-5)


def test_queries_off_the_grid():
    grid = (40, 30)
    value, center, sharpness = inputs(grid, heads=2, width=5, spread=0.3)
    queries = [torch.tensor([31.0, -7.3, 39.5, 4.5]), torch.linspace(0.0, 35.0, 5)]
    plan = plan_for(center, sharpness, grid, torch.float32, queries=queries)
    assert plan.heads[0].nodes
    found = gaussian_attention(value, center, sharpness, grid, queries=queries, plan=plan)
    exact = [x.double() for x in (value, center, sharpness)]
    expected = gaussian_attention(*exact, grid, queries=[x.double() for x in queries], plan="separable")
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("grid", "spread"), [((60, 50), 0.3), ((300,), 0.3)])
def test_gradients_of_heads_where_values_have_a_mean(grid, spread):
    """A constant in the values changes nothing, but the rounding of it does: less than in the kernels of whole matrices."""
    value, center, sharpness = inputs(grid, width=16, spread=spread)
    above = torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
    given = (value + 30, center, sharpness)
    exact = results([x.double() for x in given], grid, "separable", above)[2:]
    off = {}
    for plan in (plan_for(center, sharpness, grid, torch.float32), "separable"):
        found = results(given, grid, plan, above)[2:]
        off[plan] = max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, exact, strict=True))
    interpolated, matrices = off.values()
    assert interpolated < 0.8 * matrices
