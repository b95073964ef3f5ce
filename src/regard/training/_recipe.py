"""A recipe: everything a run's result depends on, as one frozen dataclass that JSON can hold."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import Augmentation, Examples
from regard.support.checks import check_choice, check_positive, check_probability, describe
from regard.training._optimizers import AdamW, Optimizer
from regard.training._schedule import Schedule

Precision = Literal["fp32", "tf32", "bf16"]
Split = Literal["train", "validation", "test"]


class Outcome(NamedTuple):
    """Of one batch: the sum of the losses of its targets, and how many of them are predicted right."""

    loss: Tensor
    correct: Tensor


@dataclass(frozen=True)
class Task:
    """What is to be learned: data, and what a network's answer to a batch of it is worth. A base class."""

    def examples(self, split: Split, device: torch.device) -> Examples[Any] | None:
        """The samples of a split, on the device; None where nothing is held out for validation."""
        raise TypeError(f"{type(self).__name__} does not say what its examples are")

    def targets(self, batch: Any) -> Tensor | int:
        """How many predictions a batch asks for."""
        return len(batch.indices)

    def outcome(self, network: nn.Module, batch: Any) -> Outcome:
        """What the network makes of the batch. ``network.training`` says whether it is being trained."""
        raise TypeError(f"{type(self).__name__} does not say what its outcome is")

    def pictures(self, network: nn.Module, examples: Any) -> dict[str, Any]:
        """Figures of what the network does with the first of the examples, by name."""
        return {}

    def small(self) -> "Task":
        """The same in a few samples that need no download, to try a recipe out in seconds."""
        return self


@dataclass(frozen=True)
class Network:
    """The settings of a network. A base class."""

    def build(self, task: Any) -> nn.Module:
        """The network that fits the task's inputs and outputs, newly drawn."""
        raise TypeError(f"{type(self).__name__} does not say how to build its network")

    def small(self) -> "Network":
        """The same kind, small enough for a step to take milliseconds."""
        return self


@dataclass(frozen=True)
class Recipe:
    """Everything the result of a training run depends on.

    Args:
        name: what the recipe goes by.
        task: data and loss.
        network: what is trained.
        optimizer: :class:`AdamW`, :class:`SGD` or :class:`Muon`, with the peak learning rates.
        schedule: how the learning rates get to their peak and away from it, step by step.
        epochs: how often each sample is seen.
        batch_size: samples in a step, over all processes together.
        accumulate: parts that each process cuts its share of a batch into, one after the other; the step is the same
            but for rounding, except that dropout draws otherwise and BatchNorm takes its statistics of each part.
        clip: largest norm of the gradient, all parameters together; None leaves it as it is.
        average: decay of an exponential moving average of the parameters, which is then what is evaluated and kept;
            0 is no averaging.
        precision: ``"fp32"``, ``"tf32"`` (fp32 whose products may round as NVIDIA's TF32 does) or ``"bf16"``
            (products in bfloat16, parameters in float32).
        compile: whether ``torch.compile`` is used; the time it takes is measured apart.
        non_finite: ``"stop"`` at a loss or gradient that is not finite, or ``"skip"`` such steps (which waits for the
            device in every step).
        evaluate_every: epochs between evaluations on what is held out.
        seed: of the parameters, of the order, of augmentation and of dropout.
    """

    name: str
    task: Task
    network: Network
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Schedule = field(default_factory=Schedule)
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
        for name, kind in (("task", Task), ("network", Network), ("optimizer", Optimizer), ("schedule", Schedule)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {describe(getattr(self, name))}")
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every"):
            check_positive(name, getattr(self, name))
        if self.batch_size % self.accumulate:
            raise ValueError(f"batch_size is {self.batch_size}, which accumulate={self.accumulate} does not divide")
        if self.clip is not None and not (isinstance(self.clip, int | float) and self.clip > 0):
            raise ValueError(f"clip must be a positive number or None, got {describe(self.clip)}")
        check_probability("average", self.average)
        check_choice("precision", self.precision, ("fp32", "tf32", "bf16"))
        check_choice("non_finite", self.non_finite, ("stop", "skip"))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"seed must be a whole number of 0 or more, got {describe(self.seed)}")

    def smoke(self) -> "Recipe":
        """The recipe in small: the same parts, a few steps, in seconds on one core, without a download."""
        return dataclasses.replace(
            self,
            task=self.task.small(),
            network=self.network.small(),
            epochs=2,
            batch_size=8 * self.accumulate,
            evaluate_every=1,
            compile=False,
        )


def encode(value: Any) -> Any:
    """What JSON takes: a dataclass becomes its fields and its class's name.

    >>> encode(Schedule(decay="linear"))
    {'kind': 'Schedule', 'warm_up': 0.05, 'decay': 'linear', 'final': 0.0}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: encode(getattr(value, each.name)) for each in dataclasses.fields(value)}
        return {"kind": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [encode(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a recipe holds numbers, words, tuples and dataclasses of such, not {describe(value)}")


def decode(value: Any) -> Any:
    """What :func:`encode` took. Only the known kinds of recipes' parts are made.

    >>> decode(encode(Schedule(decay="linear")))
    Schedule(warm_up=0.05, decay='linear', final=0.0)
    """
    if isinstance(value, list):
        return tuple(decode(each) for each in value)
    if not isinstance(value, dict):
        return value
    kinds = {kind.__name__: kind for kind in _kinds()}
    kind = kinds.get(value.get("kind", ""))
    if kind is None:
        raise ValueError(
            f"a recipe's part is of the kind {value.get('kind')!r}, which is not known here; there are "
            f"{', '.join(sorted(kinds))} (import the module that defines another one first)"
        )
    known = {each.name for each in dataclasses.fields(kind)}
    if unknown := value.keys() - known - {"kind"}:
        raise ValueError(
            f"{kind.__name__} has no field {', '.join(sorted(unknown))}: was this written by another version?"
        )
    needed = [each.name for each in dataclasses.fields(kind) if _has_no_default(each)]
    if missing := [name for name in needed if name not in value]:
        raise ValueError(f"{kind.__name__} lacks {', '.join(missing)}: is the file whole?")
    fields = {name: decode(each) for name, each in value.items() if name != "kind"}
    try:
        return kind(**fields)
    except TypeError as error:  # of a wrong type in the file, not in somebody's program
        raise ValueError(f"{kind.__name__}: {error}") from error


def _has_no_default(each: "dataclasses.Field[Any]") -> bool:
    return each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING


def differences(left: Any, right: Any, path: str = "") -> list[str]:
    """Where two encoded recipes differ, as ``"optimizer.learning_rate: 0.1 and 0.2"``.

    >>> differences(encode(Schedule()), encode(Schedule(final=0.1)))
    ['final: 0.0 and 0.1']
    """
    if isinstance(left, dict) and isinstance(right, dict) and left.get("kind") == right.get("kind"):
        names = dict.fromkeys((*left, *right))
        found = [differences(left.get(name), right.get(name), f"{path}.{name}" if path else name) for name in names]
        return [line for lines in found for line in lines]
    return [] if left == right else [f"{path}: {_brief(left)} and {_brief(right)}"]


def described(recipe: Recipe, followed: Recipe, smoke: bool = False) -> str:
    """A recipe's name, with what was changed: a result of two epochs is not one of two hundred.

    >>> from dataclasses import replace
    >>> demo = regard.recipes.get("demo")
    >>> described(replace(demo, epochs=2, clip=None, seed=7), demo)
    'demo (epochs 2, clip None)'
    """
    then, now = (encode(dataclasses.replace(each, seed=0)) for each in (followed, recipe))
    changes = [f"{text.partition(': ')[0]} {text.rpartition(' and ')[2]}" for text in differences(then, now)]
    changes = ["smoke"] * smoke + changes
    return f"{recipe.name} ({', '.join(changes)})" if changes else recipe.name


def _brief(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else value


def _kinds() -> Iterator[Any]:
    pending: list[Any] = [Recipe, Schedule, Augmentation, Task, Network, Optimizer]
    while pending:
        kind = pending.pop()
        yield kind
        pending += kind.__subclasses__()
