"""Changes and derivatives that do not reach the model are refused: in checkpoints, without gradients, in fixed outputs."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointError, checkpoint

import regard
from regard.analysis import importance, mask_heads


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


class Frozen(nn.Module):
    """Attention whose own gradients are off: by a reentrant checkpoint, or by no_grad."""

    def __init__(self, way):
        super().__init__()
        self.attn, self.way = regard.MultiHeadAttention(8, 2), way

    def forward(self, x):
        if self.way in ("plain", "no_grad"):
            with torch.set_grad_enabled(self.way == "plain"):
                return self.attn(x).sum(1)
        return checkpoint(self.attn, x, use_reentrant=self.way == "reentrant").sum(1)


def test_attention_is_changed_without_gradients_also_if_the_input_needs_some():
    model, x = Frozen("reentrant"), torch.randn(2, 5, 8, requires_grad=True)
    with torch.no_grad(), mask_heads(model, {"attn": [1]}):
        changed = model(x)
    assert not torch.allclose(changed, model(x))


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("way", ["reentrant", "no_grad"])
@pytest.mark.parametrize("needed", [True, False])
def test_derivatives_of_attention_without_gradients_are_refused_and_not_zero(way, needed):
    model, batches = Frozen(way), [(torch.randn(2, 5, 8, requires_grad=needed), torch.tensor([0, 3]))]
    with pytest.raises(ValueError, match=r"'attn' runs where gradients are off .*leave it out with only="):
        regard.relevance(model, batches[0][0], 0)
    with pytest.raises(ValueError, match=r"'attn' runs where gradients are off .*pass method='leave_out'"):
        importance(model, batches)
    found = importance(model, batches, method="leave_out").scores["attn"]
    model.way = "plain"
    torch.testing.assert_close(found, importance(model, batches, method="leave_out").scores["attn"])


def test_derivatives_in_other_checkpoints_are_those_of_the_model_or_refused():
    model, x = Frozen("other"), torch.randn(2, 5, 8)
    torch.testing.assert_close(regard.relevance(model, x, 0), regard.relevance(model.attn, x, lambda out: out[:, :, 0]))
    with pytest.raises(ValueError, match=r"checkpoints in the model run it again .*pass method='leave_out'"):
        importance(model, [(x, torch.tensor([0, 3]))])


def test_heads_of_attention_in_blocks_are_not_taken_for_changed(transformers):
    """Longformer's layer goes on with its own output: silencing its heads changed nothing, without an error."""
    options = {"attention_window": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}
    config = transformers.LongformerConfig(**options, intermediate_size=8, vocab_size=30, num_labels=2)
    model, ids = transformers.LongformerForSequenceClassification(config).eval(), torch.randint(3, 30, (2, 8))
    name = "longformer.encoder.layer.0.attention.self"
    refused = f"'{name}' does not let its output be replaced"
    with pytest.raises(ValueError, match=refused), mask_heads(model, {name: [0]}):
        model(ids)
    for method in ("gate", "leave_out"):
        with pytest.raises(ValueError, match=refused):
            importance(model, [({"input_ids": ids}, torch.tensor([0, 1]))], method=method)
    with pytest.raises(ValueError, match=f"{refused} .*leave it out with only="):
        regard.relevance(model, {"input_ids": ids})
