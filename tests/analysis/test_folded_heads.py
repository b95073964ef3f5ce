"""Changing heads that a model folds into the axis of the samples, as ``nn.MultiheadAttention`` does if it returns weights."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.analysis import importance, mask_heads


class Folded(nn.Module):
    """Attention over ``(samples · heads)`` or ``(heads · samples)``, by hand or by the fused kernel, and a class score."""

    def __init__(self, first="samples", fused=False, heads=2, shown=True):
        super().__init__()
        self.first, self.fused, self.num_heads, self.shown = first, fused, heads, shown
        self.qkv, self.output, self.head = nn.Linear(12, 36), nn.Linear(12, 12), nn.Linear(12, 3)

    def attend(self, x, gates=None):
        batch, tokens, _ = x.shape
        order = (2, 0, 1, 3) if self.first == "heads" else (0, 2, 1, 3)
        parts = self.qkv(x).view(batch, tokens, 3, self.num_heads, -1).unbind(2)
        query, key, value = (part.permute(order).flatten(0, 1) for part in parts)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value)
        else:
            mixed = torch.bmm((torch.bmm(query, key.mT) * query.shape[-1] ** -0.5).softmax(-1), value)
        if not self.shown:
            return mixed.square().mean((-1, -2)).reshape(-1, batch).sum(0)
        sizes = (self.num_heads, batch) if self.first == "heads" else (batch, self.num_heads)
        mixed = mixed.view(*sizes, tokens, -1).permute((1, 2, 0, 3) if self.first == "heads" else (0, 2, 1, 3))
        mixed = mixed if gates is None else mixed * gates
        return self.output(mixed.reshape(batch, tokens, -1))

    def forward(self, x, gates=None):
        out = self.attend(x, gates)
        return self.head(out.mean(1)) if self.shown else out


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("batch", "heads", "keys"), [(2, 2, 5), (3, 2, 5), (2, 3, 4), (4, 4, 6)])
def test_torchs_layer_is_edited_whether_or_not_it_returns_weights(batch, heads, keys, batch_first):
    layer = nn.MultiheadAttention(12, heads, batch_first=batch_first).double().eval()
    sizes = ((batch, 4, 12), (batch, keys, 12)) if batch_first else ((4, batch, 12), (keys, batch, 12))
    query, key = (torch.randn(size, dtype=torch.float64) for size in sizes)
    outs = []
    for needed in (True, False):
        with regard.edit(layer, "*", queries=1, keys=[0, 2], heads=1) as edited:
            outs.append(layer(query, key, key, need_weights=needed)[0])
        assert edited.edges.total() == 2
    torch.testing.assert_close(*outs)
    assert not torch.allclose(outs[0], layer(query, key, key)[0])


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("batch", [2, 3])
def test_silencing_folded_heads_is_a_gate_of_zero(batch, fused):
    model, x = Folded(fused=fused).double().eval(), torch.randn(batch, 5, 12, dtype=torch.float64)
    want = model(x, torch.tensor([0.0, 1.0], dtype=torch.float64)[:, None])
    with mask_heads(model, {"Folded": [0]}):
        torch.testing.assert_close(model(x), want)
    with regard.edit(model, "*", heads=0, weights=0.0):
        torch.testing.assert_close(model(x), want)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("first", "shown"), [("heads", True), ("heads", False)])
@pytest.mark.parametrize("batch", [2, 3])
def test_heads_that_come_before_the_samples_are_not_taken_for_samples(batch, first, shown, fused):
    model, x = Folded(first, fused, shown=shown).eval(), torch.randn(batch, 5, 12)
    with pytest.raises(ValueError, match="heads of 'Folded' cannot be changed"), mask_heads(model, {"Folded": [0]}):
        model(x)
    with (
        pytest.raises(ValueError, match="not edited: Folded: its heads and samples"),
        regard.edit(model, "*", heads=0, weights=0.0),
    ):
        model(x)
    if shown:
        for method in ("gate", "leave_out"):
            with pytest.raises(ValueError, match="cannot be changed"):
                importance(model, [(x, torch.zeros(batch, dtype=torch.long))], method=method)
    with mask_heads(model, {"Folded": []}):  # nothing is changed
        model(x)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("batch", [2, 3])
def test_relevance_does_not_depend_on_what_is_folded_first(batch, fused):
    model, x = Folded("heads", fused).double().eval(), torch.randn(batch, 5, 12, dtype=torch.float64)
    other = Folded("samples", fused).double().eval()
    other.load_state_dict(model.state_dict())
    together = regard.relevance(model, x, 1)
    torch.testing.assert_close(together, regard.relevance(other, x, 1))
    torch.testing.assert_close(together, torch.cat([regard.relevance(model, one[None], 1) for one in x]))
    silent = Folded("heads", fused, shown=False).double().eval()
    with pytest.raises(ValueError, match="nothing shows which comes first"):
        regard.relevance(silent, x, lambda out: out)
