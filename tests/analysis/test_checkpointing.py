"""Changed attention in activation checkpoints: no gradients of the unchanged model."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

import regard
from regard.analysis import mask_heads


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.attn, self.reentrant = nn.Linear(8, 8), regard.MultiHeadAttention(8, 2), reentrant

    def forward(self, x):
        return checkpoint(self.attn, self.first(x), use_reentrant=self.reentrant)


CHANGES = {
    "edit": lambda model: regard.edit(model, "attn", keys=0),
    "mask_heads": lambda model: mask_heads(model, {"attn": [1]}),
}


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("change", list(CHANGES))
def test_gradients_through_a_reentrant_checkpoint_are_refused(change):
    model, x = Checkpointed(True), torch.randn(2, 5, 8)
    with pytest.raises(ValueError, match="'attn' cannot be changed in a reentrant checkpoint"), CHANGES[change](model):
        model(x)
    with torch.no_grad(), CHANGES[change](model):
        changed = model(x)
    assert not torch.allclose(changed, model(x))


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("inside", [True, False])
def test_other_checkpoints_notice_that_the_change_is_gone(change, inside):
    model = Checkpointed(False)
    with CHANGES[change](model):
        out = model(torch.randn(2, 5, 8)).sum()
        if inside:
            with pytest.raises(CheckpointError):
                out.backward()
    with nullcontext() if inside else pytest.raises(CheckpointError):
        _ = None if inside else out.backward()


def test_what_is_not_changed_runs_in_a_checkpoint():
    model, x = Checkpointed(True), torch.randn(2, 5, 8)
    with mask_heads(model, {"attn": []}):
        model(x).sum().backward()
    assert model.first.weight.grad is not None
