"""Models whose heads are removed step by step: attention keeps its name, and the last model is that of one step."""

import pytest
import torch
from torch import nn

import regard
from regard.analysis import heads_in, importance, mask_heads


class Cross(nn.Module):
    """Attention of torch inside a model, with a mask for each head."""

    def __init__(self):
        super().__init__()
        self.pool = nn.MultiheadAttention(16, 4, batch_first=True)
        self.head = nn.Linear(16, 3)
        self.register_buffer("mask", (torch.rand(8, 5, 5) > 0.7) & ~torch.eye(5, dtype=torch.bool))

    def forward(self, x):
        return self.head(self.pool(x, x, x, attn_mask=self.mask, need_weights=False)[0].mean(1))


MODELS = {
    "torch, a mask for each head": (Cross, "pool"),
    "torch, a whole encoder": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 4, 8, batch_first=True), 1, enable_nested_tensor=False
        ),
        "layers.0.self_attn",
    ),
    "regard": (lambda: nn.Sequential(regard.MultiHeadAttention(16, 4)), "0"),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", list(MODELS))
def test_pruning_again_is_pruning_more(kind):
    make, name = MODELS[kind]
    model, x = make().double().eval(), torch.randn(2, 5, 16, dtype=torch.float64)
    with mask_heads(model, {name: [0, 2]}):
        want = model(x)
    small = model
    for keep, left in (([1, 2, 3], 3), ([0, 2], 2)):
        small = regard.prune_heads(small, {name: keep})
        assert heads_in(small, lambda small=small: small(x)) == {name: left}
        with regard.capture(small) as maps:
            small(x)
        assert list(maps) == [name]
    torch.testing.assert_close(small(x), want)
    once = regard.prune_heads(model, {name: [1, 3]})
    assert once.state_dict().keys() == small.state_dict().keys()
    for one, other in zip(once.state_dict().values(), small.state_dict().values(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_pooling_head_is_pruned_by_importance_again(transformers, images):
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4}
    config = transformers.SiglipVisionConfig(num_hidden_layers=1, image_size=32, patch_size=16, **sizes)
    model = nn.Sequential(transformers.SiglipVisionModel(config), Pooled()).eval()
    batches = [(images, torch.tensor([0, 1]))]
    first = importance(model, batches)
    small = regard.prune_heads(model, first, 6)
    second = importance(small, batches)
    assert list(second.scores) == list(first.scores)
    assert sum(map(len, regard.analysis.importance(regard.prune_heads(small, second, 3), batches).scores.values())) == 3


class Pooled(nn.Module):
    def forward(self, output):
        return output.pooler_output
