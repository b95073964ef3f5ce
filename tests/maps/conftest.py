"""Small networks, and a way to spoil maps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from regard.maps import Capture
from regard.maps.repeats import _learning


@pytest.fixture
def spoiled(monkeypatch):
    """Every map is built wrong by one key: what a check that works must notice."""
    attended = Capture.attended

    def wrong(self, record):
        build = record.computation.weights

        def shifted(rows, heads):
            weights, logsumexp = build(rows, heads)
            return weights.roll(1, -1), logsumexp

        record.computation.weights = shifted
        return attended(self, record)

    monkeypatch.setattr(Capture, "attended", wrong)


@pytest.fixture
def seen(monkeypatch):
    """The names of the functions that the mode of a capture sees."""
    names = []
    usual = _learning.LearningInterceptor.__torch_function__

    def noted(self, func, *args):
        names.append(func.__name__)
        return usual(self, func, *args)

    monkeypatch.setattr(_learning.LearningInterceptor, "__torch_function__", noted)
    return names


@pytest.fixture
def same():
    """Asserts that two captures recorded the same."""

    def compare(a, b):
        assert list(a) == list(b)
        for one, two in zip(a.records, b.records, strict=True):
            assert torch.equal(one.stored, two.stored)
            for name in ("kernel", "layout", "axes", "shape", "kind"):
                assert getattr(one, name) == getattr(two, name)
        assert a.residual == b.residual
        assert not b.missed

    return compare


class Attention(nn.Module):
    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Network(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def networks():
    """A class of small networks with fused attention, by their depth."""
    return Network


@pytest.fixture
def model():
    return Network()


@pytest.fixture
def x():
    return torch.randn(2, 5, 8)
