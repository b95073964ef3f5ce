"""Rows of many keys: sums of float32 numbers must not lose the many small weights beside a large one."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard


class Attention(nn.Module):
    def forward(self, query, key, value, mask=None):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


@pytest.fixture
def with_sink():
    """Query, key and value of a head that gives 98 % to the first of 80,000 keys, and the same to all others."""
    keys = 80_000
    query, key = torch.full((1, 1, 6, 16), 15.2 / 4), torch.zeros(1, 1, keys, 16)
    key[:, :, 0] = 1.0
    generator = torch.Generator().manual_seed(0)
    key[:, :, 1:] += 0.01 * torch.randn(1, 1, keys - 1, 16, generator=generator)
    return query, key, torch.randn(1, 1, keys, 16, generator=generator)


def masks(query, key):
    keep = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    keep[2, 5:] = False
    keep[4] = False
    return {"none": None, "keep": keep, "bias": torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)}


@pytest.mark.parametrize("mask", ["none", "keep", "bias"])
@pytest.mark.parametrize("options", [{}, {"rows": [0, 2, 4]}], ids=["whole", "rows"])
def test_rows_with_a_sink_are_exact(with_sink, mask, options):
    query, key, value = with_sink
    keep = masks(query, key)[mask]
    model = Attention()
    with torch.no_grad(), regard.capture(model, **options) as maps:
        model(query, key, value, keep)
    scores = query.double() @ key.double().mT / 4
    if keep is not None:
        scores = scores + torch.zeros(keep.shape).double().masked_fill(~masks(query, key)["keep"], -torch.inf)
    expected = scores.softmax(-1).nan_to_num(0.0)[:, :, options.get("rows", slice(None))]
    found = maps[0].weights.double()
    assert maps[0].agrees
    # 4e-6 is what rounding of scores of this size makes of the weights.
    assert (found - expected).abs().max() < 4e-6
    assert ((found - expected).abs() <= 1e-5 * expected).all()


def test_overview_of_rows_with_a_sink_agrees(with_sink):
    model = Attention()
    with torch.no_grad(), regard.capture(model, overview=64) as maps:
        model(*with_sink)
    assert maps[0].agrees
    assert maps[0].residual < 1e-4
    assert maps[0].logsumexp_residual < 1e-5
