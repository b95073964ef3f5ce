"""The check of an overview: what is wrong is noticed, and rounding is not."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.maps.weights import _overview_pass


def _spoiled_rows(add, tile):
    add.overview.mass.copy_(add.overview.mass.flip(-2))


def _spoiled_columns(add, tile):
    add.overview.mass.copy_(add.overview.mass.flip(-1))


def _spoiled_maxima(add, tile):
    add.overview.largest.copy_(add.overview.largest.flip(-1))


def _spoiled_keys(add, tile):
    add.overview.per_key.received.copy_(add.overview.per_key.received.flip(-1))


def _spoiled_places(add, tile):
    add.overview.per_query.where.sub_(1)


@pytest.mark.parametrize("spoil", [_spoiled_rows, _spoiled_columns, _spoiled_maxima, _spoiled_keys, _spoiled_places])
@pytest.mark.parametrize("written", [False, True])
def test_weights_added_to_a_wrong_place_are_noticed(monkeypatch, spoil, written):
    """The sums of rows are blind to it, and so are statistics of queries that are right."""

    class Attention(nn.Module):
        num_heads = 1

        def forward(self, x):
            return F.scaled_dot_product_attention(x, x, x, is_causal=True)

    class Written(nn.Module):
        num_heads = 1

        def forward(self, x):
            hidden = torch.ones(x.shape[2], x.shape[2]).triu(1).bool()
            return torch.softmax((x @ x.mT).masked_fill(hidden, -math.inf), -1) @ x

    add = _overview_pass.Accumulator.add

    def added(self, tile):
        add(self, tile)
        spoil(self, tile)

    torch.manual_seed(0)
    monkeypatch.setattr(_overview_pass.Accumulator, "add", added)
    model = (Written if written else Attention)()
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model, overview=8):
        model(torch.randn(1, 1, 45, 16))


def test_a_weight_that_is_no_number_is_noticed(monkeypatch):
    """Attention written by hand has no sums of rows that must be one."""
    monkeypatch.setattr(_overview_pass, "checked_rows", lambda queries: (0, 1))

    class Written(nn.Module):
        def forward(self, query, key):
            hidden = torch.zeros(20, 20, dtype=torch.bool)
            hidden[7] = True
            return torch.softmax((query @ key.mT).masked_fill(hidden, -math.inf), -1) @ key

    x = torch.randn(1, 2, 20, 4)
    with (
        torch.no_grad(),
        pytest.warns(UserWarning, match="do not reproduce"),
        regard.capture(model := Written(), overview=4) as maps,
    ):
        model(x, x)
    assert not maps[0].agrees


@pytest.mark.parametrize("tokens", [1, 2, 127])
@pytest.mark.parametrize("causal", [False, True])
def test_sharp_heads_are_no_disagreement(tokens, causal):
    """Scores of about 100 are rounded by as much as a weight may be off, also if only few keys add to the rounding."""
    torch.manual_seed(0)
    query, key = 100 * torch.randn(2, 4, tokens, 8), torch.randn(2, 4, tokens, 8)

    class Sharp(nn.Module):
        def forward(self, query, key):
            return F.scaled_dot_product_attention(query, key, key, is_causal=causal)

    with torch.no_grad(), regard.capture(model := Sharp(), overview=8) as maps:
        model(query, key)
    assert maps[0].agrees, maps[0].residual
