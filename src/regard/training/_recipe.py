"""A recipe: everything that the result of a run depends on, as one frozen dataclass."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from regard.support.checks import check_choice, check_positive, check_probability, describe
from regard.training._network_settings import NetworkSettings
from regard.training._optimizer_settings import AdamWSettings, OptimizerSettings
from regard.training._schedule import ScheduleSettings
from regard.training.tasks import Task

Precision = Literal["fp32", "tf32", "bf16"]
PARTS = {"task": Task, "network": NetworkSettings, "optimizer": OptimizerSettings, "schedule": ScheduleSettings}


@dataclass(frozen=True)
class Recipe:
    """Everything the result of a training run depends on.

    Args:
        name: the recipe's name.
        task: data and loss.
        network: settings of the network that is trained.
        optimizer: :class:`AdamWSettings`, :class:`SGDSettings` or :class:`MuonSettings`, with peak learning rates.
        schedule: the factor on the learning rates at each step.
        epochs: passes over the training set.
        batch_size: samples in a step, over all processes together.
        accumulate: number of parts into which each process divides its share of a batch (gradient accumulation). The step
            is the same up to rounding, but dropout draws differ and BatchNorm computes its statistics from each part.
        clip: largest norm of the gradient of all parameters together; None does not clip.
        average: decay of an exponential moving average of the parameters, which is then evaluated and kept; 0 does not
            average.
        precision: ``"fp32"``, ``"tf32"`` (fp32 whose products may be rounded like NVIDIA's TF32) or ``"bf16"``
            (products in bfloat16, parameters in float32).
        compile: whether to use ``torch.compile``; the time it takes is reported separately.
        non_finite: ``"stop"`` at a loss or gradient that is not finite, or ``"skip"`` such steps (which synchronizes
            with the device in every step).
        evaluate_every: epochs between evaluations on the validation set.
        seed: seed of the parameters, the order of samples, augmentation and dropout.
    """

    name: str
    task: Task
    network: NetworkSettings
    optimizer: OptimizerSettings = field(default_factory=AdamWSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    epochs: int = 10
    batch_size: int = 128
    accumulate: int = 1
    clip: float | None = None
    average: float = 0.0
    precision: Precision = "fp32"
    compile: bool = False
    non_finite: Literal["stop", "skip"] = "stop"
    evaluate_every: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in PARTS.items():
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be of type {kind.__name__}, got {describe(getattr(self, name))}")
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every"):
            check_positive(name, getattr(self, name))
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size is {self.batch_size}, but accumulate={self.accumulate} must divide it")
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise ValueError(f"clip must be a positive number or None, got {describe(self.clip)}")
        check_probability("average", self.average)
        check_choice("precision", self.precision, ("fp32", "tf32", "bf16"))
        check_choice("non_finite", self.non_finite, ("stop", "skip"))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed must be a whole number of 0 or more, got {describe(self.seed)}")

    def smoke(self) -> "Recipe":
        """A small version of the recipe: the same parts and a few steps, in seconds on one core, without a download."""
        return dataclasses.replace(
            self,
            task=self.task.small(),
            network=self.network.small(),
            epochs=2,
            batch_size=8 * self.accumulate,
            evaluate_every=1,
            compile=False,
        )
