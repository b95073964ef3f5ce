"""Networks with our layers on the Hugging Face hub's mixin, offline: save, load, model card."""

import pytest
import torch
from torch import nn

import regard
from regard.models import ImageEncoder

hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.usefixtures("user_errors")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class OwnNetwork(nn.Module, hub.PyTorchModelHubMixin, library_name="regard", tags=["gaussian-attention"]):
    """A network of a user, with our layer in it."""

    def __init__(self, dim: int, heads: int, classes: int = 3) -> None:
        super().__init__()
        self.attention = regard.GaussianAttention(dim, heads)
        self.classify = nn.Linear(dim, classes)

    def forward(self, images):
        return self.classify(self.attention(images).mean((1, 2)))


class EncoderOnHub(hub.PyTorchModelHubMixin, ImageEncoder, library_name="regard"):
    """One of our models: the mixin comes first."""


@pytest.mark.parametrize(
    ("kind", "options", "shape"),
    [
        (OwnNetwork, {"dim": 8, "heads": 4}, (2, 5, 6, 8)),
        (EncoderOnHub, {"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 8, "depth": 1, "heads": 4}, (2, 3, 8, 8)),
    ],
)  # fmt: skip
def test_it_is_saved_and_loaded_with_a_model_card(kind, options, shape, tmp_path):
    model, x = kind(**options).eval(), torch.randn(shape)
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    card = hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "regard"
    again = kind.from_pretrained(str(tmp_path))
    assert torch.equal(again(x), model(x))
