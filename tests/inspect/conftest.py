"""Other people's models, built tiny from their own configurations, and a way to spoil maps."""

import importlib
import importlib.util

import pytest
import torch

from regard.inspect import Capture


@pytest.fixture(scope="session")
def transformers(timm):
    """Hugging Face transformers (which import torchvision too, so timm's stand-in for its operators comes first)."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed (extra: parity)")
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    return module


@pytest.fixture
def spoiled(monkeypatch):
    """Every map is built wrong by one key: what a check that works must notice."""
    record = Capture._record

    def wrong(self, seen, rows, heads, device):
        build = seen.build

        def shifted(rows, heads):
            weights, logsumexp = build(rows, heads)
            return weights.roll(1, -1), logsumexp

        seen.build = shifted
        return record(self, seen, rows, heads, device)

    monkeypatch.setattr(Capture, "_record", wrong)


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (2, 7))


@pytest.fixture
def images():
    return torch.randn(2, 3, 32, 32)
