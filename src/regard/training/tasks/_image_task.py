"""Image classification."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import (
    Augmentation,
    AugmentedImages,
    DataMissingError,
    DataSet,
    ImageBatch,
    ImageSet,
    OwnDataSet,
    StreamedSet,
    UnsuitableDataError,
    normalize,
    open_data,
    own_path,
)
from regard.support.checks import check_positive, check_probability
from regard.training.tasks._attention_maps import best_guesses, captured, on_device_of
from regard.training.tasks._scores import checked_scores
from regard.training.tasks._task import Outcome, Sample, SampleAttention, Split, Task


@dataclass(frozen=True)
class ImageTask(Task):
    r"""Classify images; the loss is cross-entropy with label smoothing.

    .. math:: L = -\sum_c \bigl((1 - s)\, y_c + s / C\bigr) \log p_c

    Args:
        data: ``"cifar10"``, ``"fashion-mnist"``, ``"fashion-mini"``, or the path of your own images (a folder with train
            and test or of classes alone, .npz, .safetensors, a copy of CIFAR; see docs/guides/your_images.md).
        validation: size of the validation set, a share of the training set or a number of images; 0 trains on everything.
        augmentation: augmentation of the training images.
        label_smoothing: s, the share of each target that is spread over all classes, in training.
        channels_last: memory layout of the images.
        limit: use at most this many images for training and for validation.
        image_size: side of your own images in pixels: the short side is scaled to it and the center is cropped. By
            default the common size of all images.

    >>> from regard.training import ImageTask
    >>> task = ImageTask("fashion-mini", validation=100)
    >>> task.image_shape, task.class_names[:2], len(task.examples("validation", torch.device("cpu")))
    ((1, 28, 28), ('T-shirt/top', 'Trouser'), 100)
    """

    data: str = "cifar10"
    validation: int | float = 0.1
    augmentation: Augmentation = field(default_factory=Augmentation)
    label_smoothing: float = 0.0
    channels_last: bool = False
    limit: int | None = None
    image_size: int | None = None

    kind = "image"
    target_name = "images"
    metric_names = {  # noqa: RUF012  # a constant of the class, as the base declares it
        "accuracy": "test accuracy",
        "accuracy_flip": "test accuracy, averaged over each image and its mirror image",
    }
    has_fixed_shapes = True

    def __post_init__(self) -> None:
        check_probability("label_smoothing", self.label_smoothing)
        if self.limit is not None:
            check_positive("limit", self.limit)
        if self.image_size is not None:
            check_positive("image_size", self.image_size)
        path = own_path(self.data)
        if path is None:
            self.data_set  # noqa: B018  # a wrong number of validation images is refused here
        else:  # an absolute path works from any working directory
            object.__setattr__(self, "data", path)

    @property
    def data_set(self) -> DataSet | OwnDataSet:
        return self._open()

    def _open(self, *, recheck: bool = False) -> DataSet | OwnDataSet:
        """The data set. A training keeps the one that it began with, whatever is written meanwhile."""
        return open_data(self.data, validation=self.validation, image_size=self.image_size, recheck=recheck)

    def check(self) -> tuple[str, ...]:
        return self._open(recheck=True).notes

    def data_facts(self) -> dict[str, Any]:
        data = None if own_path(self.data) is None else self.data_set
        return {"classes": list(data.classes), "images": data.fingerprint} if isinstance(data, OwnDataSet) else {}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.data_set.shape

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.data_set.classes

    @property
    def memory_format(self) -> torch.memory_format | None:
        return torch.channels_last if self.channels_last else None

    def examples(self, split: Split, device: torch.device) -> AugmentedImages | None:
        data = self._open(recheck=split == "test")  # which is used after training, or without any
        if split == "validation" and not data.validation_count:
            return None
        images = data.test() if split == "test" else getattr(data, split)
        augmentation = self.augmentation if split == "train" else None
        return AugmentedImages(
            self._limited(images, split), augmentation, device=device, channels_last=self.channels_last
        )

    def outcome(self, network: nn.Module, batch: ImageBatch) -> Outcome:
        logits = checked_scores(network(batch.images), (len(batch.images),), "batch, classes", len(self.class_names))
        smoothing = self.label_smoothing if network.training else 0.0
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=smoothing, reduction="sum")
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels.argmax(-1)
        return Outcome(loss, (logits.argmax(-1) == labels).sum().float())

    def metrics(self, network: nn.Module, examples: Any, accuracy: Callable[[nn.Module], float]) -> dict[str, float]:
        return {"accuracy_flip": accuracy(FlipAveraged(network))}

    def small(self) -> "ImageTask":
        return dataclasses.replace(self, data="fashion-mini", validation=40, limit=32, image_size=None)

    @property
    def shown_split(self) -> Split:
        return "validation" if self.data_set.validation_count else "train"

    def count(self, split: Split) -> int:
        try:
            return len(self._present(split))
        except (DataMissingError, UnsuitableDataError, OSError):
            return 0

    def batch(self, split: Split, indices: Sequence[int]) -> ImageBatch:
        images = AugmentedImages(self._present(split))
        return images.batch(torch.tensor(list(indices)), seed=0, epoch=0)

    def sample(self, split: Split, index: int) -> Sample:
        images = self._present(split)
        label = images.classes[int(images.labels[index])]
        return Sample(self.batch(split, [index]), images.pixels(torch.tensor([index]))[0], label)

    def read_image(self, pixels: Tensor) -> Sample:
        inputs = normalize(pixels[None], self.data_set.mean, self.data_set.std)
        unknown = torch.zeros(1, dtype=torch.long)
        return Sample(ImageBatch(inputs, unknown, unknown), pixels)

    def attend(self, network: nn.Module, sample: Sample) -> SampleAttention:
        images = on_device_of(network, sample.batch).images
        scores: list[Tensor] = []
        maps = captured(network, lambda: scores.append(network(images)))
        chances = scores[0][0].float().softmax(-1).cpu()
        return SampleAttention(maps, image=sample.image, answer={"guesses": best_guesses(chances, self.class_names)})

    def labeled(self, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        return batch.images, batch.labels

    def _present(self, split: Split) -> ImageSet | StreamedSet:
        """The images of a split, if their files are on this machine."""
        if own_path(self.data) is None:
            return self._limited(_read(self.data, self.validation, split), split)
        data = self.data_set  # keeps what it has read
        return self._limited(data.test() if split == "test" else getattr(data, split), split)

    def _limited(self, images: ImageSet | StreamedSet, split: Split) -> ImageSet | StreamedSet:
        if self.limit is None or split == "test":
            return images
        return images.select(torch.arange(min(self.limit, len(images))))


@lru_cache(maxsize=4)
def _read(name: str, validation: int | float, split: Split) -> ImageSet | StreamedSet:
    data = open_data(name, validation=validation, download=False)
    found: ImageSet | StreamedSet = data.test() if split == "test" else getattr(data, split)
    return found


class FlipAveraged(nn.Module):
    """The mean of a network's class probabilities for an image and for its mirror image, as logits.

    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> images = torch.randn(2, 1, 1, 4)
    >>> torch.allclose(FlipAveraged(network)(images), FlipAveraged(network)(images.flip(-1)))
    True
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n classes"]:
        both = torch.stack([self.network(images), self.network(images.flip(-1))])
        return both.float().softmax(-1).mean(0).log()
