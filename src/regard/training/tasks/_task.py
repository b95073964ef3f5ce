"""The base class of all tasks: the interface for training, evaluation, reports and the studio."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import DataMissingError, Examples
from regard.maps import Maps
from regard.training.tasks._attention_maps import captured, on_device_of

Split = Literal["train", "validation", "test"]
Kind = Literal["image", "case", "text", "other"]


class Outcome(NamedTuple):
    """For one batch: the sum of the losses over its targets, and the number of correct predictions."""

    loss: Tensor
    correct: Tensor


@dataclass(frozen=True)
class Sample:
    """One input of a task.

    Attributes:
        batch: a batch with only this sample, as :meth:`Task.outcome` takes it.
        image: its pixels for display, uint8 (channels, height, width); None for other inputs.
        label: the correct answer as text; None if it is unknown.
    """

    batch: Any
    image: Tensor | None = None
    label: str | None = None


@dataclass(frozen=True)
class SampleAttention:
    """The attention of a network on one sample, and its answer.

    Attributes:
        maps: the attention maps of one pass.
        image: the image that the maps belong to, or None.
        grid: the grid of tokens on the image, if the maps do not declare it.
        tokens: the text that the maps belong to: a list, or a pair of lists (read, written); None without a text.
        decoder_input: the tokens that the decoder attends to, one step behind those written.
        alignment: weights (written, read) of the last layer that attends from ``tokens[1]`` to ``tokens[0]``.
        answer: the network's answer, as JSON values. The studio shows ``"guesses"``, a list of {"label", "chance"};
            ``"masked"``, such a list for each masked token; and ``"said"``, ``"answer"`` and ``"right"``.
    """

    maps: Maps
    image: Tensor | None = None
    grid: tuple[int, int] | None = None
    tokens: Sequence[str] | tuple[Sequence[str], Sequence[str]] | None = None
    decoder_input: Sequence[str] | None = None
    alignment: Tensor | None = None
    answer: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What a network learns: the data, and how to score its predictions.

    A task of your own is a frozen dataclass that defines :meth:`examples` and :meth:`outcome`. That is enough to train,
    evaluate, report and list it in the studio. The other methods have defaults; override those that should do more.

    >>> import torch.nn.functional as F
    >>> from dataclasses import dataclass
    >>> from regard.data import AugmentedImages, load
    >>> from regard.training import Outcome, Task
    >>> @dataclass(frozen=True)
    ... class Shoes(Task):
    ...     '''Shoe or no shoe?'''
    ...     def examples(self, split, device):
    ...         data = load("fashion-mini")
    ...         return AugmentedImages(data.test() if split == "test" else getattr(data, split), device=device)
    ...     def outcome(self, network, batch):
    ...         is_shoe = ((batch.labels == 5) | (batch.labels == 7) | (batch.labels == 9)).long()
    ...         scores = network(batch.images)
    ...         loss = F.cross_entropy(scores, is_shoe, reduction="sum")
    ...         return Outcome(loss, (scores.argmax(-1) == is_shoe).sum().float())
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 2))
    >>> sample = Shoes().sample("validation", 3)
    >>> Shoes().outcome(network, sample.batch).loss.shape, len(Shoes().attend(network, sample).maps)
    (torch.Size([]), 0)
    """

    kind: ClassVar[Kind] = "other"
    target_name: ClassVar[str] = "samples"
    metric_names: ClassVar[Mapping[str, str]] = {"accuracy": "test accuracy"}
    has_fixed_shapes: ClassVar[bool] = False  # whether all batches of one size have the same shapes

    # Training and evaluation.

    def examples(self, split: Split, device: torch.device) -> Examples[Any] | None:
        """The samples of a split, on the device; None if there is no validation set."""
        raise TypeError(f"{type(self).__name__} must define examples(split, device)")

    def outcome(self, network: nn.Module, batch: Any) -> Outcome:
        """Loss and correct predictions of the network on a batch. ``network.training`` is False in evaluation."""
        raise TypeError(f"{type(self).__name__} must define outcome(network, batch)")

    def targets(self, batch: Any) -> Tensor | int:
        """The number of predictions in a batch."""
        return len(batch.indices)

    def metrics(self, network: nn.Module, examples: Any, accuracy: Callable[[nn.Module], float]) -> dict[str, float]:
        """Further metrics on the test set, all that ``metric_names`` names. Shares from 0 to 1 are shown in per cent.

        ``accuracy`` measures the accuracy of a network on ``examples``, over all processes.
        """
        return {}

    def check(self) -> Sequence[str]:
        """Problems of the data, one sentence each, printed before training. Unusable data raises an error."""
        return ()

    def data_facts(self) -> dict[str, Any]:
        """The facts about the data that must not change during a run, as JSON; empty for data that never change.

        ``"classes"`` are the names of the classes. ``"images"`` identifies the images by content; if it is the same, a
        run can be resumed even if the field ``data`` of its task has another path.
        """
        return {}

    def small(self) -> "Task":
        """The same task with a few samples and no download, to try a recipe in seconds."""
        return self

    @property
    def memory_format(self) -> torch.memory_format | None:
        """The memory layout that the network is converted to."""
        return None

    # Samples, and a network's attention on them.

    def batch(self, split: Split, indices: Sequence[int]) -> Any:
        """Samples as one batch on the CPU, without augmentation."""
        examples = self.examples(split, torch.device("cpu"))
        if examples is None:
            raise ValueError(f"{type(self).__name__} has no {split} samples")
        return examples.batch(torch.tensor(list(indices), device=examples.index_device), seed=0, epoch=0)

    def sample(self, split: Split, index: int) -> Sample:
        """One sample of a split, without augmentation."""
        return Sample(self.batch(split, [index]))

    def describe(self, sample: Sample) -> str:
        """The sample in a few words; by default its label."""
        return sample.label or ""

    def attend(self, network: nn.Module, sample: Sample) -> SampleAttention:
        """The network's attention on a sample, and its answer. By default the maps of :meth:`outcome`."""
        batch = on_device_of(network, sample.batch)
        return SampleAttention(captured(network, lambda: self.outcome(network, batch)))

    def count(self, split: Split) -> int:
        """How many samples of a split are available without a download."""
        try:
            return len(self.examples(split, torch.device("cpu")) or ())
        except (DataMissingError, OSError):
            return 0

    @property
    def shown_split(self) -> Split:
        """The split whose samples reports show: validation, or training if nothing is held out."""
        return "train" if self.examples("validation", torch.device("cpu")) is None else "validation"

    # Images: tasks whose input is an image.

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of the images that the network takes; None if it takes no images."""
        return None

    @property
    def class_names(self) -> tuple[str, ...]:
        return ()

    def read_image(self, pixels: Tensor) -> Sample:
        """A sample of an image given as uint8 of the shape ``image_shape``."""
        raise ValueError(f"{type(self).__name__} does not take images")

    def labeled(self, batch: Any) -> tuple[Tensor, Tensor] | None:
        """(inputs, labels) if the network's output is class scores; None for other tasks."""
        return None

    # Text: tasks whose input is a sentence.

    @property
    def suggestion(self) -> str | None:
        """A sentence to try the network on; None if it takes no text."""
        return None

    def read_text(self, text: str, variant: str) -> Sample:
        """A sample of a sentence that the user typed. ``variant`` is "upper" or "lower" for case conversion."""
        raise ValueError(f"{type(self).__name__} does not take text")

    @property
    def trained_lengths(self) -> tuple[int, int] | None:
        """The shortest and the longest sentence in training; None if length does not matter."""
        return None

    def by_length(self, network: nn.Module, lengths: Sequence[int], samples: int = 200) -> dict[int, dict[str, float]]:
        """Metrics on new sentences of each length."""
        raise ValueError(f"{type(self).__name__} has no sentences of different lengths")
