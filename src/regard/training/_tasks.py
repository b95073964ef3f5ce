"""What the recipes train for: classes of images."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import Augmentation, AugmentedImages, DataSet, ImageBatch, ImageSet, load
from regard.support.checks import check_positive, check_probability
from regard.training._recipe import Outcome, Split, Task


@dataclass(frozen=True)
class ImageTask(Task):
    r"""Say the class of an image: cross-entropy with smoothed labels.

    .. math:: L = -\sum_c \bigl((1 - s)\, y_c + s / C\bigr) \log p_c

    Args:
        data: ``"cifar10"``, ``"fashion-mnist"`` or ``"fashion-mini"``.
        validation: how much of the training set is held out, a share or a number of images; 0 trains on everything.
        augmentation: what happens to training images.
        label_smoothing: s, in training.
        channels_last: memory layout of the images.
        limit: train and validate on so many images at most.

    >>> from regard.training import ImageTask
    >>> task = ImageTask("fashion-mini", validation=100)
    >>> task.shape, task.classes, len(task.examples("validation", torch.device("cpu")))
    ((1, 28, 28), 10, 100)
    """

    data: str = "cifar10"
    validation: int | float = 0.1
    augmentation: Augmentation = field(default_factory=Augmentation)
    label_smoothing: float = 0.0
    channels_last: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        check_probability("label_smoothing", self.label_smoothing)
        if self.limit is not None:
            check_positive("limit", self.limit)
        self.data_set  # noqa: B018  # an unknown name is refused here

    @property
    def data_set(self) -> DataSet:
        return load(self.data, validation=self.validation)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of an image."""
        return self.data_set.shape

    @property
    def classes(self) -> int:
        return len(self.data_set.classes)

    def examples(self, split: Split, device: torch.device) -> AugmentedImages | None:
        data = self.data_set
        if split == "validation" and not data.validation_count:
            return None
        images = data.test() if split == "test" else getattr(data, split)
        if self.limit is not None and split != "test":
            images = _first(images, self.limit)
        augmentation = self.augmentation if split == "train" else None
        return AugmentedImages(images, augmentation, device=device, channels_last=self.channels_last)

    def outcome(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        logits: Tensor = network(batch.images).float()
        smoothing = self.label_smoothing if network.training else 0.0
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(-1)
        return Outcome(loss, (logits.argmax(-1) == labels).sum().float())

    def pictures(self, network: nn.Module, examples: Any) -> dict[str, Any]:
        from regard.training._pictures import image_attention

        if not isinstance(examples, AugmentedImages):
            return {}
        figures = {}
        for number in range(min(2, len(examples))):
            batch = examples.batch(torch.tensor([number], device=examples.index_device), seed=0, epoch=0)
            figure = image_attention(network, batch.images, examples.set.images[number])
            if figure is not None:
                figures[f"attention/image_{number}"] = figure
        return figures

    def small(self) -> "ImageTask":
        return dataclasses.replace(self, data="fashion-mini", validation=40, limit=32)


def _first(images: ImageSet, count: int) -> ImageSet:
    return images.select(torch.arange(min(count, len(images))))
