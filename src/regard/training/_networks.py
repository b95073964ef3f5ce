"""The settings of the networks that the recipes train."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from regard.data import normalize
from regard.training._recipe import Network
from regard.training._sequences import CaseConversion, MaskedLanguage
from regard.training._tasks import ImageTask

WHITENING_IMAGES = 5000  # that the squares' directions are measured on


@dataclass(frozen=True)
class Encoder(Network):
    """An :class:`regard.models.ImageEncoder`.

    Args:
        attention: gaussian, gaussian-diagonal, gaussian-full, relative, relative-content, gated or content; depthwise
            puts a convolution in its place.
        patch: side of a token's square of pixels.
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads of each.
        head_dim: width of a head; by default they share the token.
        full_width: every head reads the whole token.
        hidden: width inside the feed-forward networks; by default four times dim.
        init: where Gaussian heads start: anywhere (normal), or as the taps of a convolution (grid).
        norm: before (pre) or after (post) each sub-layer.
        dropout: probability of dropping, in training.
        second_output: another linear layer after each attention's own, as the 2020 paper's code has.
        merge: numbers of the blocks before which squares of 2×2 tokens become one, twice as wide.

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
    merge: tuple[int, ...] = ()

    def build(self, task: ImageTask) -> nn.Module:
        from regard.models import ImageEncoder

        channels, *size = task.shape
        settings = _fields(self)
        if settings.pop("full_width"):
            settings["head_dim"] = "full"
        return ImageEncoder(size, task.classes, channels=channels, **settings)

    def small(self) -> "Encoder":
        width = None if self.head_dim is None else 4
        merge = (1,) if self.merge else ()
        return dataclasses.replace(self, dim=2 * self.heads, depth=2, hidden=16, head_dim=width, merge=merge)


@dataclass(frozen=True)
class Pyramid(Network):
    """An :class:`regard.models.AttentionPyramid`, its squares whitened by the training images.

    Args:
        widths: of the tokens, one for each stage.
        depth: blocks of a stage.
        heads: of each block, a square number.
        stride: pixels from one 2×2 square to the next, 1 or 2.
        directions: of the whitened squares that are kept; by default all.
        mixing: gaussian heads, or a convolution in their place.

    >>> from regard.training import ImageTask, Pyramid
    >>> Pyramid(widths=(8, 16)).build(ImageTask("fashion-mini")).grid
    (28, 28)
    """

    widths: tuple[int, ...] = (64, 256, 256)
    depth: int = 2
    heads: int = 9
    stride: Literal[1, 2] = 1
    directions: int | None = None
    mixing: Literal["gaussian", "convolution"] = "gaussian"

    def build(self, task: ImageTask) -> nn.Module:
        from regard.models import AttentionPyramid

        channels, *size = task.shape
        network = AttentionPyramid(size, task.classes, channels=channels, **_fields(self))
        train = task.data_set.train
        network.whiten(normalize(train.images[:WHITENING_IMAGES], train.mean, train.std))
        return network

    def small(self) -> "Pyramid":
        directions = None if self.directions is None else 2  # images of one channel have four
        return dataclasses.replace(self, widths=(8,) * min(2, len(self.widths)), directions=directions)


@dataclass(frozen=True)
class Vision(Network):
    """A :class:`regard.models.VisionTransformer`.

    Args:
        patch: side of a patch.
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads of each.
        hidden: width inside the feed-forward networks; by default four times dim.
        pool: what the class is read from: a class token, the average of all, or attention to all.
        positions: learned, sinusoidal or relative.
        dropout: probability of dropping, in training.
    """

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
    """A :class:`regard.models.ResNet18`, the convolutional baseline.

    Args:
        width: channels of the first stage.
    """

    width: int = 64

    def build(self, task: ImageTask) -> nn.Module:
        from regard.models import ResNet18

        return ResNet18(task.classes, channels=task.shape[0], width=self.width)

    def small(self) -> "ResNet":
        return dataclasses.replace(self, width=4)


@dataclass(frozen=True)
class Recurrent(Network):
    """A :class:`regard.models.Seq2SeqRNN`.

    Args:
        cell: rnn (tanh), gru or lstm.
        attention: none, dot or additive.
        dim: width of an embedded character.
        hidden: width of the state.
        depth: recurrent layers on top of each other.
        dropout: probability of dropping, in training.
    """

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
    """A :class:`regard.models.Transformer`.

    Args:
        dim: width of a token.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks; by default four times dim.
        encoder_depth: blocks that read.
        decoder_depth: blocks that write.
        norm: before (pre) or after (post) each sub-layer.
        positions: sinusoidal or none.
        dropout: probability of dropping, in training.
    """

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
    """A :class:`regard.models.TextEncoder`.

    Args:
        dim: width of a token.
        depth: number of blocks.
        heads: attention heads of each.
        hidden: width inside the feed-forward networks; by default four times dim.
        norm: before (pre) or after (post) each sub-layer.
        dropout: probability of dropping, in training.
    """

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
