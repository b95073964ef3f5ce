"""Kernels as operators that torch.compile keeps whole."""

import pytest
import torch

from regard.functional import gaussian_attention


@pytest.mark.parametrize(("grid", "value_heads"), [((4, 5), 2), ((4, 5), 1), ((4, 20), 1), ((4, 20), 2)])
@pytest.mark.parametrize("border", ["native", "zeros"])
def test_compiled_as_eager(grid, value_heads, border):
    torch.compiler.reset()
    value = torch.randn(2, value_heads, grid[0] * grid[1], 16, requires_grad=True)
    center, sharpness = torch.randn(2, 2, requires_grad=True), torch.rand(2, requires_grad=True)
    inputs = value, center, sharpness
    padding = None if border == "native" else ((1, 1), (1, 1))
    seen = []

    def attend(v, c, s):
        return gaussian_attention(v, c, s, grid, border=border, padding=padding, plan="separable")

    def backend(module, _):
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    torch.compile(attend, backend=backend, fullgraph=True)(*inputs)
    assert any("_plane" in name or "gaussian_grid" in name for name in seen)
    torch.compiler.reset()
    found = torch.compile(attend, backend="aot_eager", fullgraph=True)(*inputs)
    expected = attend(*inputs)
    torch.testing.assert_close(found, expected)
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), inputs),
        torch.autograd.grad(expected.square().sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
