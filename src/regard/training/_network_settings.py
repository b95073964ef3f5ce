"""Settings of the networks that recipes train. A class has the name of the model it builds, plus ``Settings``."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from regard.data import normalize
from regard.models import (
    AttentionPyramid,
    AttentionSettings,
    ImageEncoder,
    PlainVisionTransformer,
    ResNet18,
    Seq2SeqRNN,
    TextEncoder,
    Transformer,
    VisionTransformer,
)
from regard.training.tasks import CaseConversion, ImageTask, MaskedLanguage, Repetition

WHITENING_IMAGES = 5000


@dataclass(frozen=True)
class NetworkSettings:
    """Base class of the networks' settings."""

    def build(self, task: Any) -> nn.Module:
        """A new network that fits the task's inputs and outputs, with random parameters."""
        raise TypeError(f"{type(self).__name__} must define build(task)")

    def fit(self, network: nn.Module, task: Any) -> None:
        """Set parameters that are computed from the training data. Called once, before the first step."""

    def small(self) -> "NetworkSettings":
        """The same kind of network, so small that a step takes milliseconds."""
        return self

    @property
    def attends(self) -> bool:
        """Whether the network has attention maps."""
        return True


@dataclass(frozen=True)
class ImageEncoderSettings(NetworkSettings):
    """Settings of :class:`regard.models.ImageEncoder`.

    Args:
        attention: gaussian, gaussian-diagonal, gaussian-full, signed, relative, relative-content, gated or content;
            depthwise is a depthwise convolution instead.
        patch_size: side of a token, in pixels.
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads of each block.
        head_dim: width of a head; by default dim / heads.
        full_width: every head reads the whole token.
        hidden: width inside the feed-forward networks; by default four times dim.
        init: initial centers of Gaussian heads: random (normal), or on a grid like the taps of a convolution (grid).
        norm: before (pre) or after (post) each sub-layer.
        dropout: probability of dropout, in training.
        second_output: a second linear layer after each attention, as in the 2020 paper's code.
        merge: numbers of the blocks before which 2×2 tokens are merged into one, twice as wide.

    >>> from regard.training import ImageEncoderSettings, ImageTask
    >>> ImageEncoderSettings(dim=18, depth=1).build(ImageTask("fashion-mini")).grid
    (14, 14)
    """

    attention: str = "gaussian"
    patch_size: int = 2
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
    merge: tuple[int, ...] = ()

    def build(self, task: ImageTask) -> nn.Module:
        channels, *size = task.image_shape
        settings = _fields(self)
        names = ("head_dim", "full_width", "init", "second_output")
        attention = AttentionSettings(settings.pop("attention"), **{name: settings.pop(name) for name in names})
        return ImageEncoder(size, num_classes=len(task.class_names), channels=channels, attention=attention, **settings)

    def small(self) -> "ImageEncoderSettings":
        width = None if self.head_dim is None else 4
        merge = (1,) if self.merge else ()
        return dataclasses.replace(self, dim=2 * max(1, self.heads), depth=2, hidden=16, head_dim=width, merge=merge)


@dataclass(frozen=True)
class AttentionPyramidSettings(NetworkSettings):
    """Settings of :class:`regard.models.AttentionPyramid`. Its patches are whitened by the training images.

    Args:
        widths: width of the tokens in each stage.
        depth: number of blocks in each stage.
        heads: attention heads of each block, a square number.
        stride: distance between patches in pixels, 1 or 2.
        directions: how many directions of the whitened patches are kept; by default all.
        mixing: gaussian heads, or a 3×3 convolution instead.

    >>> from regard.training import AttentionPyramidSettings, ImageTask
    >>> AttentionPyramidSettings(widths=(8, 16)).build(ImageTask("fashion-mini")).grid
    (28, 28)
    """

    widths: tuple[int, ...] = (64, 256, 256)
    depth: int = 2
    heads: int = 9
    stride: Literal[1, 2] = 1
    directions: int | None = None
    mixing: Literal["gaussian", "convolution"] = "gaussian"

    def build(self, task: ImageTask) -> nn.Module:
        channels, *size = task.image_shape
        return AttentionPyramid(size, num_classes=len(task.class_names), channels=channels, **_fields(self))

    def fit(self, network: Any, task: ImageTask) -> None:
        examples = task.examples("train", torch.device("cpu"))  # no images beyond the task's limit
        assert examples is not None
        train = examples.set
        some = train.pixels(torch.arange(min(WHITENING_IMAGES, len(train))))
        network.whiten(normalize(some, train.mean, train.std))

    def small(self) -> "AttentionPyramidSettings":
        directions = None if self.directions is None else 2  # patches of one channel have only four
        return dataclasses.replace(self, widths=(8,) * min(2, len(self.widths)), directions=directions)

    @property
    def attends(self) -> bool:
        return self.mixing == "gaussian"


@dataclass(frozen=True)
class VisionTransformerSettings(NetworkSettings):
    """Settings of :class:`regard.models.VisionTransformer`.

    Args:
        patch_size: side of a patch.
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks; by default four times dim.
        pool: what the class is computed from: a class token, the average over tokens, or attention pooling.
        positions: learned, sinusoidal, relative, or placed (heads look for content near a learned offset).
        dropout: probability of dropout, in training.
    """

    patch_size: int = 4
    dim: int = 64
    depth: int = 5
    heads: int = 4
    hidden: int | None = None
    pool: Literal["class", "average", "attention"] = "class"
    positions: Literal["learned", "sinusoidal", "relative", "placed"] = "learned"
    dropout: float = 0.0

    def build(self, task: ImageTask) -> nn.Module:
        channels, *size = task.image_shape
        return VisionTransformer(size, num_classes=len(task.class_names), channels=channels, **_fields(self))

    def small(self) -> "VisionTransformerSettings":
        return dataclasses.replace(self, dim=4 * max(1, self.heads), depth=2, hidden=16)


@dataclass(frozen=True)
class PlainVisionTransformerSettings(NetworkSettings):
    """Settings of :class:`regard.models.PlainVisionTransformer`: one head, no norms.

    Args:
        patch_size: side of a patch.
        dim: width of a token.
        depth: number of blocks.
    """

    patch_size: int = 4
    dim: int = 64
    depth: int = 5

    def build(self, task: ImageTask) -> nn.Module:
        channels, *size = task.image_shape
        return PlainVisionTransformer(size, num_classes=len(task.class_names), channels=channels, **_fields(self))

    def small(self) -> "PlainVisionTransformerSettings":
        return dataclasses.replace(self, dim=16, depth=2)


@dataclass(frozen=True)
class ResNet18Settings(NetworkSettings):
    """Settings of :class:`regard.models.ResNet18`, the convolutional baseline.

    Args:
        width: channels of the first stage.
    """

    width: int = 64

    def build(self, task: ImageTask) -> nn.Module:
        return ResNet18(len(task.class_names), channels=task.image_shape[0], width=self.width)

    @property
    def attends(self) -> bool:
        return False

    def small(self) -> "ResNet18Settings":
        return dataclasses.replace(self, width=4)


@dataclass(frozen=True)
class Seq2SeqRNNSettings(NetworkSettings):
    """Settings of :class:`regard.models.Seq2SeqRNN`.

    Args:
        cell: rnn (tanh), gru or lstm.
        attention: none, dot or additive.
        dim: width of a character's embedding.
        hidden: width of the hidden state.
        depth: number of recurrent layers.
        dropout: probability of dropout, in training.
    """

    cell: Literal["rnn", "gru", "lstm"] = "gru"
    attention: Literal["none", "dot", "additive"] = "additive"
    dim: int = 64
    hidden: int = 128
    depth: int = 1
    dropout: float = 0.0

    def build(self, task: CaseConversion) -> nn.Module:
        return Seq2SeqRNN(len(task.vocabulary), **_fields(self))

    @property
    def attends(self) -> bool:
        return self.attention != "none"

    def small(self) -> "Seq2SeqRNNSettings":
        return dataclasses.replace(self, dim=8, hidden=8)


@dataclass(frozen=True)
class TransformerSettings(NetworkSettings):
    """Settings of :class:`regard.models.Transformer`.

    Args:
        dim: width of a token.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks; by default four times dim.
        encoder_depth: blocks of the encoder; 0 for a language model, which has none.
        decoder_depth: blocks of the decoder.
        norm: before (pre) or after (post) each sub-layer.
        positions: sinusoidal or none.
        dropout: probability of dropout, in training.
    """

    dim: int = 64
    heads: int = 4
    hidden: int | None = None
    encoder_depth: int = 2
    decoder_depth: int = 2
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["sinusoidal", "none"] = "sinusoidal"
    dropout: float = 0.0

    def build(self, task: CaseConversion | Repetition) -> nn.Module:
        settings = _fields(self)
        depth = (settings.pop("encoder_depth"), settings.pop("decoder_depth"))
        return Transformer(len(task.vocabulary), depth=depth, **settings)

    def small(self) -> "TransformerSettings":
        depth = min(1, self.encoder_depth)
        return dataclasses.replace(self, dim=2 * max(1, self.heads), hidden=16, encoder_depth=depth, decoder_depth=1)


@dataclass(frozen=True)
class TextEncoderSettings(NetworkSettings):
    """Settings of :class:`regard.models.TextEncoder`.

    Args:
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks; by default four times dim.
        norm: before (pre) or after (post) each sub-layer.
        dropout: probability of dropout, in training.
    """

    dim: int = 128
    depth: int = 4
    heads: int = 4
    hidden: int | None = None
    norm: Literal["pre", "post"] = "pre"
    dropout: float = 0.1

    def build(self, task: MaskedLanguage) -> nn.Module:
        return TextEncoder(len(task.vocabulary), length=task.length + 1, **_fields(self))

    def small(self) -> "TextEncoderSettings":
        return dataclasses.replace(self, dim=2 * max(1, self.heads), hidden=16, depth=1)


def _fields(settings: NetworkSettings) -> dict[str, Any]:
    """All fields by name; the model has arguments of the same names."""
    return {each.name: getattr(settings, each.name) for each in dataclasses.fields(settings)}
