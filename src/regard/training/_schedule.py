"""The learning rate as a function of the step."""

import math
from dataclasses import dataclass
from typing import Literal

from regard.support.checks import check_choice, check_positive, describe

Decay = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True)
class ScheduleSettings:
    r"""The factor on the peak learning rates at each step: a linear warm-up, then a decay.

    With w = warm_up · total steps and p = (step − w) / (total − w), the factor is (step + 1) / w during the first w
    steps, then :math:`f + (1 - f)\,\frac{1 + \cos \pi p}{2}` (cosine), :math:`f + (1 - f)(1 - p)` (linear) or 1.

    Args:
        warm_up: share of the steps that the warm-up takes.
        decay: ``"cosine"``, ``"linear"`` or ``"constant"``.
        final: f, the factor that the decay ends at.

    >>> from regard.training import ScheduleSettings
    >>> [ScheduleSettings(warm_up=0.4, decay="linear").factor(step, total=5) for step in range(5)]
    [0.5, 1.0, 1.0, 0.6666666666666667, 0.33333333333333337]
    """

    warm_up: float = 0.05
    decay: Decay = "cosine"
    final: float = 0.0

    def __post_init__(self) -> None:
        check_choice("decay", self.decay, ("cosine", "linear", "constant"))
        for name in ("warm_up", "final"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ValueError(f"{name} must be a share in [0, 1], got {describe(value)}")

    def factor(self, step: int, total: int) -> float:
        """The factor at a step from 0 to total − 1."""
        check_positive("total", total)
        warm = round(self.warm_up * total)
        if step < warm:
            return (step + 1) / warm
        if self.decay == "constant":
            return 1.0
        progress = (step - warm) / max(total - warm, 1)
        left = (1 + math.cos(math.pi * progress)) / 2 if self.decay == "cosine" else 1 - progress
        return self.final + (1 - self.final) * left
