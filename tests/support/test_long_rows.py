"""Rows of many entries: no sum of float32 numbers may lose the many small weights beside a large one."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.functional import DecayProfile, TableProfile, gaussian_weights
from regard.layers import AdditiveAttention
from regard.support.long_rows import LONG_COLUMN, LONG_ROW, softmax, softmax_in_place

KEYS = 70_000


def scores_with_sink(keys=KEYS):
    """One entry gets most of the weight, and all others the same."""
    scores = torch.full((3, keys), -7.3)
    scores[:, 0] = 4.0
    return scores


def assert_accurate(weights, expected, tolerance=2e-6):
    weights, expected = weights.double(), expected.double()
    assert ((weights - expected).abs() <= tolerance * expected + 1e-30).all()


@pytest.mark.parametrize("dim", [-1, 1, 0])
def test_softmax_is_accurate_along_every_axis(dim):
    scores = scores_with_sink() if dim else scores_with_sink().mT
    expected = scores.double().softmax(dim)
    assert ((scores.softmax(dim) - expected).abs() > 2e-5 * expected).any()  # torch's own
    assert_accurate(softmax(scores, dim), expected)
    assert_accurate(regard.softargmax(scores, dim=dim), expected)
    assert_accurate(regard.softargmax(scores, keep=torch.ones_like(scores, dtype=torch.bool), dim=dim), expected)
    if dim:
        assert_accurate(softmax_in_place(scores), expected)


@pytest.mark.parametrize("dim", [-1, 0])
def test_gradients_are_accurate(dim):
    scores = scores_with_sink() if dim else scores_with_sink().mT.contiguous()
    grad = torch.ones_like(scores)
    grad.select(dim, 0).fill_(3.0)

    def gradient(dtype):
        x = scores.to(dtype).requires_grad_()
        return torch.autograd.grad(softmax(x, dim), x, grad.to(dtype))[0].double()

    expected = gradient(torch.float64)
    assert (gradient(torch.float32) - expected).abs().max() < 2e-6 * expected.abs().max()


def test_ordinary_rows_are_those_of_torch():
    row, column = torch.randn(2, LONG_ROW), torch.randn(LONG_COLUMN, 2)
    assert torch.equal(softmax(row), row.softmax(-1))
    assert torch.equal(softmax(column, 0), column.softmax(0))
    assert torch.equal(softmax(row.bfloat16().repeat(1, 2)), row.bfloat16().repeat(1, 2).softmax(-1))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["plain", "keep", "bias", "beta", "causal"])
def test_weights_of_attention(kind, grad):
    query, key = torch.full((1, 1, 2, 16), 3.8), torch.zeros(1, 1, KEYS, 16)
    key[..., 0, :] = 0.75
    options = {
        "keep": {"keep": (torch.arange(KEYS) != 5).expand(2, KEYS)},
        "bias": {"bias": torch.zeros(2, KEYS)},
        "beta": {"beta": torch.tensor(0.25)},
        "causal": {"causal": True},
    }.get(kind, {})
    weights = regard.attention(query.requires_grad_(grad), key, key, return_weights=True, **options)[1]
    wide = {name: x.double() if name in ("bias", "beta") else x for name, x in options.items()}
    expected = regard.attention(query.double(), key.double(), key.double(), return_weights=True, **wide)[1]
    assert_accurate(weights, expected, 1e-5)


@pytest.mark.parametrize("grad", [False, True])
def test_weights_of_long_self_attention(grad):
    """Calls without options take a path of their own."""
    query = torch.zeros(1, 1, 6000, 8)
    key = query.clone()
    query[..., 0], key[:, :, 0, 0], key[:, :, 1:, 0] = 12.0, 0.9, -0.1
    weights = regard.attention(query.requires_grad_(grad), key, query, beta=1.0, return_weights=True)[1]
    expected = torch.tensor([10.8] + [-1.2] * 5999).double().softmax(0)
    assert_accurate(weights[0, 0, ::500], expected.expand(12, -1), 3e-6)


def test_axes_of_many_tokens():
    """The weights of few queries on a long axis, by every profile and border."""
    center, sharpness = torch.zeros(1, 1), torch.tensor([1e-8])
    queries = [torch.tensor([0.0])]
    for options in ({}, {"border": "reflect", "padding": ((2, 2),)}):
        found = gaussian_weights(center, sharpness, (KEYS,), queries=queries, **options)
        wide = gaussian_weights(center.double(), sharpness.double(), (KEYS,), queries=queries, **options)
        assert_accurate(found[..., :20_000], wide[..., :20_000])
        full = gaussian_weights(center, sharpness[:, None, None], (KEYS,), queries=queries, **options)
        assert_accurate(full[..., :20_000], wide[..., :20_000])


def test_profiles_of_many_tokens():
    size = 4500
    scores = torch.full((1, 2 * size - 1), -1.2)
    scores[:, size - 1] = 10.8
    for profile in (TableProfile(scores), DecayProfile(torch.tensor([1e-6]))):
        wide = type(profile)(profile[0].double(), *profile[1:])
        found, expected = (each.matrix(size)[:, ::300] for each in (profile, wide))
        assert_accurate(found, expected, 1e-6)


def test_additive_attention_over_many_keys():
    layer = AdditiveAttention(2, 2, 2)
    with torch.no_grad():
        layer.score.weight.fill_(6.0)
        layer.key.weight.copy_(100.0 * torch.eye(2))
        layer.query.weight.zero_()
        layer.query.bias.zero_()
    key = torch.full((1, KEYS, 2), -0.0001)
    key[:, 0] = 1.0
    query = torch.zeros(1, 1, 2)
    expected = torch.tanh(100.0 * key.double()).sum(-1).mul(6.0).softmax(-1)[:, None]
    for keep in (None, torch.ones(1, KEYS, dtype=torch.bool)):
        weights = layer(query, key, keep=keep, return_weights=True)[1]
        assert_accurate(weights, expected, 3e-6)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kind", ["wider values", "learned bias", "dropout"])
def test_outputs_where_the_kernel_of_torch_stores_its_map(kind, grad):
    """With torch.softmax, outputs were off by as much as weights."""
    query, key = torch.full((1, 1, 4, 16), 3.8), torch.zeros(1, 1, KEYS, 16)
    key[..., 0, :] = 0.75
    value = torch.ones(1, 1, KEYS, 32 if kind == "wider values" else 16)
    options = {
        "wider values": {},
        "learned bias": {"bias": torch.zeros(4, KEYS, requires_grad=True)},
        "dropout": {"dropout": 1e-12},
    }[kind]
    out = regard.attention(query.requires_grad_(grad), key, value, **options)
    assert ((out - 1).abs() < 1e-5).all()


@pytest.mark.parametrize("tokens", [99, 101])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_only_long_rows_leave_the_kernel_of_torch(tokens, dropout, monkeypatch):
    monkeypatch.setattr("regard.support.long_rows.LONG_ROW", 100)
    calls = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *x, **y: calls.append(x) or kernel(*x, **y))
    query = torch.randn(1, 2, tokens, 8)
    regard.attention(query, query, query, dropout=dropout)
    assert bool(calls) == (tokens < 100 or not dropout)
