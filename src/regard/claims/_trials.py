"""Random cases in float64, smallest first, and the evidence from them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from regard.claims._claim import Evidence
from regard.figures.style import Figure

TOLERANCE = 1e-9
# A right formula is rejected by one such test with probability 5.7e-7 (two sides of a normal distribution).
STANDARD_ERRORS = 5.0


class Trial:
    """One random case. Sizes grow with the number of the case, so that the first counterexample is small."""

    def __init__(self, number: int, seed: int) -> None:
        self.number = number
        self.random = torch.Generator().manual_seed(1_000_003 * seed + number)

    def size(self, low: int, high: int) -> int:
        top = min(high, low + self.number)
        return int(torch.randint(low, top + 1, (), generator=self.random))

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.random, dtype=torch.float64)

    def uniform(self, low: int | float, high: int | float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.random, dtype=torch.float64))

    def order(self, n: int) -> Tensor:
        return torch.randperm(n, generator=self.random)

    def other_order(self, n: int) -> Tensor:
        """A permutation of two or more that is not the identity."""
        order = self.order(n)
        return order.roll(1) if torch.equal(order, torch.arange(n)) else order


def trials(count: int = 24) -> Iterator[Trial]:
    """Random cases, the same in every run."""
    return (Trial(number, seed=0) for number in range(count))


class Comparison:
    """Collects the differences between computed and expected values, case by case.

    Args:
        tolerance: the largest difference that counts as equal.
        unit: the unit of the differences, if they are not plain numbers.
    """

    def __init__(self, tolerance: float = TOLERANCE, unit: str = "") -> None:
        self.tolerance, self.unit = tolerance, unit
        self.cases, self.failed, self.worst, self.first, self.first_error = 0, 0, 0.0, "", 0.0

    def same(self, got: Any, expected: Any, case: str | Callable[[], str] = "") -> None:
        """Record whether two tensors or numbers are equal; different shapes count as infinitely far apart."""
        got, expected = (torch.as_tensor(x, dtype=torch.float64).detach() for x in (got, expected))
        error = math.inf
        if got.shape == expected.shape:
            error = float((got - expected).abs().max()) if got.numel() else 0.0
        self._add(math.inf if math.isnan(error) else error, case)

    def true(self, condition: bool, case: str | Callable[[], str] = "") -> None:
        """Record a boolean check."""
        self._add(0.0 if condition else math.inf, case)

    def mean(self, samples: Tensor, expected: int | float, case: str | Callable[[], str] = "") -> None:
        """Record how far the mean of independent samples is from its expectation, in standard errors."""
        error = float(samples.std()) / math.sqrt(len(samples))
        self._add(abs(float(samples.mean()) - expected) / error, case)

    def _add(self, error: float, case: str | Callable[[], str]) -> None:
        self.cases += 1
        self.worst = max(self.worst, error)
        if error <= self.tolerance:
            return
        self.failed += 1
        if self.failed == 1:
            self.first, self.first_error = (case() if callable(case) else case), error

    def evidence(
        self, what: str = "random cases", *, draw: Callable[[], Figure] | None = None, **numbers: Any
    ) -> Evidence:
        """Accepted if there were cases and none failed."""
        unit = f" {self.unit}" if self.unit else ""
        if self.failed or not self.cases:
            line = f"{self.failed} of {self.cases} {what} contradict it" if self.cases else "nothing was compared"
            if math.isfinite(self.first_error) and self.cases:
                line += f", the first by {self.first_error:.2g}{unit}"
        elif self.worst == 0:
            line = f"exact in {self.cases} {what}"
        else:
            line = f"at most {self.worst:.1g}{unit} off in {self.cases} {what}"
        found = {"cases": self.cases, "contradicting": self.failed, "error": self.worst, "tolerance": self.tolerance}
        accepted = bool(self.cases) and not self.failed
        return Evidence(accepted, line, {**found, **numbers}, self.first, draw)


def full(value: int | float, *shape: int) -> Tensor:
    """A float64 tensor filled with one number."""
    return torch.full(shape, value, dtype=torch.float64)


def show(x: Tensor | list[Any] | tuple[Any, ...] | int | float, digits: int = 2) -> str:
    """Numbers, rounded, without trailing zeros.

    >>> show(torch.tensor([[1.0, 0.25], [0.0, 2.0]]))
    '((1, 0.25), (0, 2))'
    """
    if isinstance(x, Tensor):
        x = x.detach().tolist()
    if isinstance(x, list | tuple):
        return f"({', '.join(show(entry, digits) for entry in x)})"
    return f"{round(x, digits) + 0.0:g}"  # + 0.0: no negative zero
