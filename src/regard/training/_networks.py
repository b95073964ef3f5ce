"""The settings of the networks that the recipes train."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.training._recipe import Network
from regard.training._sequences import CaseConversion, MaskedLanguage
from regard.training._tasks import ImageTask


@dataclass(frozen=True)
class Encoder(Network):
    """An :class:`regard.models.ImageEncoder`; see there for what the fields mean. ``full_width`` is its
    ``head_dim="full"``.

    >>> from regard.training import Encoder, ImageTask
    >>> Encoder(dim=18, depth=1).build(ImageTask("fashion-mini")).grid
    (14, 14)
    """

    attention: str = "gaussian"
    patch: int = 2
    dim: int = 384
    depth: int = 6
    heads: int = 9
    head_dim: int | None = None
    full_width: bool = False
    hidden: int | None = None
    init: Literal["normal", "grid"] = "normal"
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.0
    second_output: bool = False

    def build(self, task: ImageTask) -> nn.Module:
        from regard.models import ImageEncoder

        channels, *size = task.shape
        settings = _fields(self)
        if settings.pop("full_width"):
            settings["head_dim"] = "full"
        return ImageEncoder(size, task.classes, channels=channels, **settings)

    def small(self) -> "Encoder":
        width = None if self.head_dim is None else 4
        return dataclasses.replace(self, dim=2 * self.heads, depth=2, hidden=16, head_dim=width)


@dataclass(frozen=True)
class Vision(Network):
    """A :class:`regard.models.VisionTransformer`; see there for what the fields mean."""

    patch: int = 4
    dim: int = 64
    depth: int = 5
    heads: int = 4
    hidden: int | None = None
    pool: Literal["class", "average", "attention"] = "class"
    positions: Literal["learned", "sinusoidal", "relative"] = "learned"
    dropout: float = 0.0

    def build(self, task: ImageTask) -> nn.Module:
        from regard.models import VisionTransformer

        channels, *size = task.shape
        return VisionTransformer(size, classes=task.classes, channels=channels, **_fields(self))

    def small(self) -> "Vision":
        return dataclasses.replace(self, dim=4 * self.heads, depth=2, hidden=16)


@dataclass(frozen=True)
class ResNet(Network):
    """A :class:`regard.models.ResNet18`, the convolutional baseline."""

    width: int = 64

    def build(self, task: ImageTask) -> nn.Module:
        from regard.models import ResNet18

        return ResNet18(task.classes, channels=task.shape[0], width=self.width)

    def small(self) -> "ResNet":
        return dataclasses.replace(self, width=4)


@dataclass(frozen=True)
class Recurrent(Network):
    """A :class:`regard.models.Seq2SeqRNN`; see there for what the fields mean."""

    cell: Literal["rnn", "gru", "lstm"] = "gru"
    attention: Literal["none", "dot", "additive"] = "additive"
    dim: int = 64
    hidden: int = 128
    depth: int = 1
    dropout: float = 0.0

    def build(self, task: CaseConversion) -> nn.Module:
        from regard.models import Seq2SeqRNN

        return Seq2SeqRNN(len(task.vocabulary), **_fields(self))

    def small(self) -> "Recurrent":
        return dataclasses.replace(self, dim=8, hidden=8)


@dataclass(frozen=True)
class EncoderDecoder(Network):
    """A :class:`regard.models.Transformer`; see there for what the fields mean."""

    dim: int = 64
    heads: int = 4
    hidden: int | None = None
    encoder_depth: int = 2
    decoder_depth: int = 2
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    dropout: float = 0.0

    def build(self, task: CaseConversion) -> nn.Module:
        from regard.models import Transformer

        return Transformer(len(task.vocabulary), **_fields(self))

    def small(self) -> "EncoderDecoder":
        return dataclasses.replace(self, dim=8, heads=2, encoder_depth=1, decoder_depth=1)


@dataclass(frozen=True)
class Text(Network):
    """A :class:`regard.models.TextEncoder`; see there for what the fields mean."""

    dim: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int | None = None
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.1

    def build(self, task: MaskedLanguage) -> nn.Module:
        from regard.models import TextEncoder

        return TextEncoder(len(task.vocabulary), length=task.length + 1, **_fields(self))

    def small(self) -> "Text":
        return dataclasses.replace(self, dim=8, depth=1, heads=2)


def _fields(settings: Network) -> dict[str, Any]:
    """Where they have the names of the model's own arguments."""
    return {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
