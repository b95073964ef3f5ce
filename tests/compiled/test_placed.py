"""Attention by content and position in one compiled graph."""

import pytest
import torch

from regard.functional import placed_attention
from regard.layers import PlacedAttention


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_heads_are_as_exact(dtype, dynamic):
    """A compiler reads no values, so the size of the grid decides whether float64 is needed."""
    compiled = torch.compile(placed_attention, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    generator = torch.Generator().manual_seed(0)
    for size in (300, 200):
        contents = [torch.randn(1, 2, size, 8, generator=generator).to(dtype) for _ in range(3)]
        places = torch.randn(2, 1, generator=generator), torch.full((2,), 2.0)
        results = []
        for function, wide in ((compiled, None), (placed_attention, torch.float64)):
            inputs = [x.to(wide or x.dtype).detach().requires_grad_() for x in (*contents, *places)]
            out = function(*inputs, (size,))
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
        limits = [2 * torch.finfo(dtype).eps] + [1e-5 if dtype is torch.float32 else 1e-2] * 5
        for found, expected, limit in zip(*results, limits, strict=True):
            assert (found.double() - expected).norm() <= limit * expected.norm()


class OnGrid(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = PlacedAttention(12, 3, sharpness=0.01)

    def forward(self, x, keep):
        return self.layer(x, (3, 4), prefix=1, keep=keep)


@pytest.mark.parametrize("strict", [False, True])
def test_exports_for_any_number_of_items(strict):
    """Exports were fixed to the number of items that were shown."""
    network, x, keep = OnGrid().eval(), torch.randn(5, 13, 12), torch.rand(5, 13) < 0.7
    batch = {0: torch.export.Dim("batch", max=64)}
    program = torch.export.export(network, (x[:2], keep[:2]), dynamic_shapes=(batch, batch), strict=strict)
    torch.testing.assert_close(program.module()(x, keep), network(x, keep))
