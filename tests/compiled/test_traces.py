"""``torch.jit.trace`` gives programs for the sizes that were traced: attention, layers and whole networks."""

import pytest
import torch
from torch import nn

from regard import attention
from regard.layers import AbsolutePositionalEmbedding, DecoderBlock
from regard.models import AttentionPyramid, AttentionSettings, ImageEncoder, TextEncoder, Transformer, VisionTransformer

IMAGES, WORDS = torch.randn(2, 3, 8, 8), torch.randint(0, 20, (2, 7))
SMALL = {"dim": 16, "depth": 1, "heads": 4}
NETWORKS = {
    **{f"vit, {kind}": (VisionTransformer(8, 2, 10, positions=kind, **SMALL), (IMAGES,))
       for kind in ("learned", "sinusoidal", "relative", "placed")},
    **{f"encoder, {kind}": (ImageEncoder(8, 2, 10, attention=AttentionSettings(kind), **SMALL), (IMAGES,))
       for kind in ("gaussian", "gaussian-full", "relative-content", "gated", "content")},
    "pyramid": (AttentionPyramid(8, 10, widths=(8, 8)), (IMAGES,)),
    "text": (TextEncoder(20, length=9, **SMALL), (WORDS,)),
    "transformer": (Transformer(20, dim=16, heads=4, depth=(1, 1)), (WORDS, WORDS)),
    "decoder block": (DecoderBlock(16, 4), (torch.randn(2, 5, 16), torch.randn(2, 3, 16))),
    "one-hot": (AbsolutePositionalEmbedding(8, 6, kind="one-hot", combine="concatenate"), (torch.randn(2, 5, 8),)),
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit:DeprecationWarning")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    network, inputs = NETWORKS[name]
    traced = torch.jit.trace(network.eval(), inputs, check_trace=False)
    torch.testing.assert_close(traced(*inputs), network(*inputs), atol=1e-5, rtol=1e-4)


class Causal(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options

    def forward(self, query, key):
        return attention(query, key, key, causal=True, **self.options)


@pytest.mark.parametrize("keys", [5, 7])
@pytest.mark.parametrize("options", [{}, {"return_weights": True}, {"keep": torch.ones(5, 1, dtype=torch.bool)}])
def test_causal_attention(keys, options):
    inputs = torch.randn(1, 2, 5, 4), torch.randn(1, 2, keys, 4)
    traced = torch.jit.trace(Causal(options), inputs, check_trace=False)
    torch.testing.assert_close(traced(*inputs), Causal(options)(*inputs))
