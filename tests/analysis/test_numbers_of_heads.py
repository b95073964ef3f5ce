"""Heads are chosen by their numbers: as a list, and as the tensors and arrays that statistics of heads are."""

import numpy as np
import pytest
import torch

import regard
from regard.analysis import accuracy, importance, mask_heads, pruning_curve


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.head = regard.MultiHeadAttention(12, 4), torch.nn.Linear(12, 3)

    def forward(self, x):
        return self.head((x + self.attn(x)).tanh().mean(1))


@pytest.fixture
def model():
    return Small().double().eval()


@pytest.fixture
def x():
    return torch.randn(2, 5, 12, dtype=torch.float64)


@pytest.mark.parametrize("kind", [torch.tensor, np.array, lambda some: list(torch.tensor(some)), tuple])
def test_heads_are_taken_in_any_form(kind, model, x):
    with mask_heads(model, {"attn": [0, 3]}):
        want = model(x)
    with mask_heads(model, {"attn": kind([3, 0])}):
        assert torch.equal(model(x), want)
    torch.testing.assert_close(regard.prune_heads(model, {"attn": kind([2, 1])})(x), want)
    batches = [(x, torch.tensor([0, 1]))]
    curve = pruning_curve(model, batches, [("attn", head) for head in kind([3, 0, 1, 2])], points=3)
    with mask_heads(model, {"attn": [0, 3]}):
        assert curve[1].accuracy == accuracy(model, batches)


@pytest.mark.parametrize(
    "heads", [[0.0], torch.tensor([True]), torch.tensor([4]), torch.tensor([1, 1]), np.array([-1])]
)
def test_other_numbers_are_refused(heads, model, x, user_errors):
    with pytest.raises(ValueError, match="must be different numbers below 4"), mask_heads(model, {"attn": heads}):
        model(x)
    with pytest.raises(ValueError, match="must be different numbers below 4"):
        regard.prune_heads(model, {"attn": heads})


def test_no_head_is_no_head(model, x):
    with mask_heads(model, {"attn": torch.tensor([]).long()}):
        assert torch.equal(model(x), model.eval()(x))
    with pytest.raises(ValueError, match="keep names no head of 'attn'"):
        regard.prune_heads(model, {"attn": torch.tensor([]).long()})


def test_an_order_names_heads_by_numbers(model, x, user_errors):
    with pytest.raises(TypeError, match=r"order must name heads by their numbers, got \('attn', '0'\)"):
        pruning_curve(model, [(x, torch.tensor([0, 1]))], [("attn", 1), ("attn", "0")])


@pytest.mark.parametrize("shape", [(2, 1), (1,), (2, 2), (2, 3), ()])
def test_labels_that_are_not_one_class_for_each_sample_are_refused(shape, model, x, user_errors):
    """Compared with the predictions they would be broadcast, and the accuracy that of all pairs."""
    batches = [(x, torch.zeros(2).long()), (x, torch.zeros(shape).long())]
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    replaced = regard.replace_heads(model, regard.locality(maps, (5,)))
    for measure in (
        lambda: accuracy(model, batches),
        lambda: pruning_curve(model, batches, [("attn", 0)], points=2),
        lambda: replaced.measure(batches),
    ):
        with pytest.raises(ValueError, match="batches: labels must be class numbers, one for each of 2 samples"):
            measure()


def test_numbers_that_are_not_numbers_are_said(model, x, user_errors):
    """NaN has no order, and its largest entry is no class."""
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    maps[0].latest.stored[1, 2, 3] = torch.nan
    for search in (lambda: regard.find_heads(maps, "first"), lambda: regard.locality(maps, (5,))):
        with pytest.raises(ValueError, match="'attn' has weights that are NaN or infinite, in 1 of 40 rows"):
            search()
    x[1, 0, 0] = torch.nan
    batches = [(x, torch.tensor([int(model(x)[0].argmax()), int(model(x)[1].argmax())]))]
    assert accuracy(model, batches) == 0.5
    for method in ("gate", "leave_out"):
        with pytest.raises(ValueError, match="the importance of heads of attn is NaN or infinite"):
            importance(model, batches, method=method)
