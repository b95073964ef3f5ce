"""Attention that decays with distance, compiled, for axes of one length after the other."""

import torch

from regard.layers import SeparableAttention


def test_lengths_may_change():
    layer = SeparableAttention(8, 2, axes=1, side="before")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in (700, 800, 5000, 30, 513, 64, 4097):  # scans from 513 on; chunks of chunks from 4097 on
        x = torch.randn(1, length, 8)
        torch.testing.assert_close(compiled(x), layer(x))
