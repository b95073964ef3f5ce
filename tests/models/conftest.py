"""A small one of every model, with an input for it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from regard.models import (
    AttentionSettings,
    ImageEncoder,
    Pretrained,
    ResNet18,
    Seq2SeqRNN,
    TextEncoder,
    Transformer,
    VisionTransformer,
    character_gpt,
)
from regard.models._image_attention import ATTENTIONS

PAPER = AttentionSettings(full_width=True, second_output=True)


class Case(NamedTuple):
    model: Pretrained
    inputs: tuple[Tensor | None, ...]
    options: dict[str, Any]

    def run(self, model: Any = None, **options: Any) -> Any:
        return (self.model if model is None else model)(*self.inputs, **self.options, **options)


def _image() -> Tensor:
    return torch.randn(2, 3, 8, 8)


def _tokens(count: int) -> Tensor:
    return torch.randint(11, (2, count))


def _keep() -> Tensor:
    return torch.arange(7) < torch.tensor([[7], [4]])


def _image_encoder(attention: str) -> Callable[[], Case]:
    return lambda: Case(ImageEncoder(8, 2, 3, dim=18, depth=2, heads=9, attention=attention), (_image(),), {})


MODELS: dict[str, Callable[[], Case]] = {
    "vit": lambda: Case(VisionTransformer(8, 4, 3, dim=16, depth=2, heads=2), (_image(),), {}),
    "vit-relative": lambda: Case(
        VisionTransformer(8, (4, 2), 3, dim=16, depth=2, heads=2, positions="relative", pool="attention", registers=1),
        (_image(),),
        {},
    ),
    "vit-placed": lambda: Case(
        VisionTransformer(8, (4, 2), 3, dim=16, depth=2, heads=2, positions="placed", registers=1), (_image(),), {}
    ),
    **{f"image-{kind}": _image_encoder(kind) for kind in ATTENTIONS},
    "image-paper": lambda: Case(
        ImageEncoder(8, 2, 3, dim=10, depth=2, heads=9, attention=PAPER, norm="post"), (_image(),), {}
    ),
    "image-merged": lambda: Case(ImageEncoder(8, 2, 3, dim=18, depth=2, heads=9, merge=(1,)), (_image(),), {}),
    "text": lambda: Case(
        TextEncoder(11, num_classes=3, length=7, dim=16, depth=2, heads=2), (_tokens(7),), {"keep": _keep()}
    ),
    "transformer": lambda: Case(
        Transformer(11, dim=16, depth=2, heads=2, hidden=24, source_vocab_size=12),
        (_tokens(7), _tokens(5)),
        {"source_keep": _keep()},
    ),
    "gpt": lambda: Case(character_gpt(11, dim=16, depth=2, heads=2), (None, _tokens(5)), {}),
    "rnn": lambda: Case(Seq2SeqRNN(11, dim=8, hidden=12, cell="rnn", attention="none"), (_tokens(7), _tokens(5)), {}),
    "gru-dot": lambda: Case(
        Seq2SeqRNN(11, dim=8, hidden=12, attention="dot", positions="one-hot", length=9),
        (_tokens(7), _tokens(5)),
        {"source_keep": _keep()},
    ),
    "lstm-additive": lambda: Case(
        Seq2SeqRNN(11, dim=8, hidden=12, depth=2, cell="lstm", positions="sine", source_vocab_size=12),
        (_tokens(7), _tokens(5)),
        {"source_keep": _keep()},
    ),
    "resnet": lambda: Case(ResNet18(3, width=4), (_image(),), {}),
}


def _build(name: str) -> Case:
    """In evaluation mode, every parameter away from the zeros and ones that would hide a lost one."""
    torch.manual_seed(0)
    case = MODELS[name]()
    for parameter_name, parameter in case.model.named_parameters():
        if not parameter_name.endswith("log_sharpness"):
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn_like(parameter))
    case.model.eval()
    return case


@pytest.fixture
def build() -> Callable[[str], Case]:
    return _build


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return _build(request.param)
