"""What ``edit`` takes as queries, keys, heads and weights, and what it refuses."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard


class Attention(nn.Module):
    def __init__(self, heads=3):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(12, 36)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Signed(nn.Module):
    """Each token minus the one before it."""

    def forward(self, x):
        weights = torch.eye(x.shape[1]) - torch.eye(x.shape[1]).roll(1, 0).tril()
        return regard.maps.observe(self, (weights @ x)[:, None], lambda: weights[None, None], value=x[:, None])[:, 0]


WRONG = {
    "queries must be a whole number": {"queries": "all"},
    "heads must be a whole number": {"heads": 1.5},
    "weights must be a number": {"weights": "maps"},
    "name the edges to block": {},
    "renormalize=False needs weights": {"keys": 0, "renormalize": False},
    "heads=9: 'Attention' has 3 heads": {"heads": 9},
    r"heads=\[0, 9\]: no edited attention has a head 9, the most are 3": {"heads": [0, 9], "keys": 1},
    "heads must be different numbers": {"heads": [1, 1], "keys": 1},
    r"keys=\[0, 7\]: no edited attention has a key 7, the most are 5": {"keys": [0, 7]},
    r"queries=\[-6, 4\]: no edited attention has a query -6": {"queries": [-6, 4], "keys": 0},
    "queries must be different numbers": {"queries": np.array([3, 3])},
    "queries must be a whole number, .* bool tensor": {"queries": torch.tensor([True, False])},
    "keys must be a slice of whole numbers": {"keys": slice(None, None, -1)},
    "weights must be finite, but 1 of 5": {"weights": torch.tensor([0, 0, math.nan, 0, 0])},
    "weights must be finite, but 2 of 2": {"keys": [0, 1], "weights": torch.tensor([math.inf, -math.inf])},
    "weights has negative numbers, down to -0.5, but 'Attention'": {"weights": torch.tensor([0.5, 0, -0.5, 0, 1])},
    "weights has negative numbers, down to -1, but 'Attention'": {"keys": 2, "weights": -1},
    "keys must be different numbers": {"keys": [2, 0, 2]},
    "weights has shape .2,., 2 keys, but 1 keys": {"keys": [4, -1], "weights": torch.rand(2)},
    "3 queries, but 5 queries of 'Attention' are edited": {"weights": torch.ones(3, 5)},
    "no edge was changed: .* queries=7": {"queries": 7, "keys": 0},
    "than the row has": {"keys": 0, "weights": 2.0, "renormalize": True},
    "must return such a tensor": {"weights": lambda weights: weights[0]},
}


@pytest.mark.parametrize("message", list(WRONG))
def test_wrong_arguments_are_named(message, user_errors):
    model = Attention()
    with pytest.raises((ValueError, TypeError), match=message), regard.edit(model, "Attention", **WRONG[message]):
        model(torch.randn(1, 5, 12))


@pytest.mark.parametrize("kind", [tuple, torch.tensor, np.array, lambda some: range(min(some), max(some) + 1)])
def test_numbers_are_taken_in_any_form(kind):
    model, x = Attention(), torch.randn(1, 5, 12)
    found = []
    for form in (list, kind):
        with regard.edit(model, "*", queries=form([2, 3]), keys=form([0, 1, 2]), heads=form([1, 2])) as edited:
            found.append(model(x))
        assert edited.edges == {"Attention": 12}
    with regard.edit(model, "*", queries=slice(kind([2])[0], 4), keys=form([0, 1, 2]), heads=form([1, 2])):
        found.append(model(x))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_negative_weights_are_set_where_the_map_has_some():
    model = Signed()
    x = torch.randn(1, 2, 3)
    with regard.edit(model, "*", weights=torch.tensor([[0.0, 1.0], [-1.0, 0.0]])):
        out = model(x)
    torch.testing.assert_close(out, torch.stack([x[:, 1], -x[:, 0]], 1))


def test_numbers_may_name_tokens_of_different_calls():
    model = Attention()
    with regard.edit(model, "*", keys=[1, 5]):  # the first call has 4 tokens
        model(torch.randn(1, 4, 12))
        model(torch.randn(1, 6, 12))
    with (
        pytest.raises(ValueError, match="no edited attention has a key 5, the most are 4"),
        regard.edit(model, "*", keys=[1, 5]),
    ):
        model(torch.randn(1, 4, 12))


def test_a_head_that_some_layers_have_is_edited_there():
    model = nn.Sequential(Attention(heads=2), Attention(heads=3))
    with regard.edit(model, "*", heads=[0, 2], keys=[4, -1]) as edited:
        model(torch.randn(1, 5, 12))
    assert list(edited.edges.values()) == [5, 10]  # the newest token has both numbers
