"""The settings of the networks that the recipes train."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from torch import nn

from regard.training._recipe import Network
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
        return ImageEncoder(
            size,
            task.classes,
            channels=channels,
            patch=self.patch,
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            hidden=self.hidden,
            attention=self.attention,
            head_dim="full" if self.full_width else self.head_dim,
            init=self.init,
            norm=self.norm,
            dropout=self.dropout,
            second_output=self.second_output,
        )

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
        return VisionTransformer(
            size,
            self.patch,
            task.classes,
            channels=channels,
            dim=self.dim,
            depth=self.depth,
            heads=self.heads,
            hidden=self.hidden,
            pool=self.pool,
            positions=self.positions,
            dropout=self.dropout,
        )

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
