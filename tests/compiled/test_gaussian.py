"""Gaussian attention in one compiled graph and as an exported program of any size."""

import pytest
import torch

from regard.functional import gaussian_attention, plan_for


def heads():
    generator = torch.Generator().manual_seed(0)
    center = torch.randn(3, 2, generator=generator) * 2
    sharpness = torch.rand(3, generator=generator) + torch.tensor([5.0, 5.0, 0.0])
    return center.requires_grad_(), sharpness.requires_grad_()


@pytest.mark.parametrize("frozen", [False, True])
def test_compiles_to_one_graph(frozen):
    center, sharpness = heads()
    plan = plan_for(center, sharpness, (40, 40)) if frozen else "auto"
    value = torch.randn(1, 3, 1600, 4, requires_grad=True)
    run = lambda v, c, s: gaussian_attention(v, c, s, (40, 40), plan=plan)  # noqa: E731
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    results = []
    for function in (run, compiled):
        out = function(value, center, sharpness)
        results.append([out, *torch.autograd.grad(out.square().sum(), (value, center, sharpness))])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("alphas", [(1e-4, 2e-3, 3e-4), (1e-4, 3.0, 1e-4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_heads_compile_to_one_graph(dtype, alphas):
    center, sharpness = heads()[0], torch.tensor(alphas, requires_grad=True)
    plan = plan_for(center, sharpness, (40, 40), dtype)
    assert plan.heads[0].nodes
    value = torch.randn(1, 3, 1600, 4, dtype=dtype, requires_grad=True)
    run = lambda v, c, s: gaussian_attention(v, c, s, (40, 40), plan=plan)  # noqa: E731
    results = []
    for function in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        out = function(value, center, sharpness)
        results.append([out, *torch.autograd.grad(out.square().sum(), (value, center, sharpness))])
    for found, expected in zip(*results, strict=True):
        scale = expected.abs().max().item() * torch.finfo(dtype).eps
        torch.testing.assert_close(found, expected, atol=16 * scale, rtol=0)


@pytest.mark.parametrize("shape", [(2,), (2, 2), (2, 2, 2)])
def test_dynamic_sizes_with_as_many_heads_as_axes(shape):
    """The check of sharpness' shape failed to find it among those that fit, and broke the graph."""
    value, center = torch.randn(2, 2, 30, 4), torch.randn(2, 2)
    sharpness = torch.eye(2).expand(2, 2, 2).clone() if len(shape) == 3 else torch.rand(shape)
    run = lambda v, c, s: gaussian_attention(v, c, s, (5, 6))  # noqa: E731
    compiled = torch.compile(run, fullgraph=True, backend="eager", dynamic=True)
    torch.testing.assert_close(compiled(value, center, sharpness), run(value, center, sharpness))


class Heads(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        center, sharpness = heads()
        self.center, self.sharpness = torch.nn.Parameter(center.detach()), torch.nn.Parameter(sharpness.detach())

    def forward(self, image):  # (batch, heads, rows, columns, width)
        grid = tuple(image.shape[2:4])
        # torch.export cannot flatten and unflatten an input of dynamic size with nothing in between; a projection is.
        return gaussian_attention(image.flatten(2, 3) * 2, self.center, self.sharpness, grid)


def test_exports_with_dynamic_sizes():
    rows, columns = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("columns", min=2, max=64)
    program = torch.export.export(
        Heads(), (torch.randn(2, 3, 7, 8, 4),), dynamic_shapes=({2: rows, 3: columns},)
    ).module()
    other = torch.randn(2, 3, 11, 5, 4)
    torch.manual_seed(0)
    torch.testing.assert_close(program(other), Heads()(other), atol=1e-5, rtol=1e-5)
