"""``Check``: the comparison of a map with what the model computed.

Errors stay on the device while the model runs, and are reduced to one number when they are read, so that a capture
never synchronizes with a GPU.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NOT_COMPARED = "nothing: the weights were given"


@dataclass(eq=False)
class Rounding:
    """The error that rounding may cause: ``times`` the largest magnitude of the compared tensor.

    Attributes:
        largest: the largest magnitude.
        times: the factor, from the precision of the dtype.
        sums: the largest sum of a row's weights, if it may exceed one.
    """

    largest: Tensor | float
    times: float
    sums: Tensor | None = None

    def __float__(self) -> float:
        more = 1.0 if self.sums is None else max(1.0, float(self.sums))
        return allowed_by_rounding(float(self.largest) * more, self.times)


def allowed_by_rounding(largest: float, times: float) -> float:
    """``times`` the largest magnitude, at least 1e-30 so that zeros do not have to be exact; NaN stays NaN.

    >>> allowed_by_rounding(2.0, 0.25), allowed_by_rounding(0.0, 1.0)
    (0.5, 1e-30)
    """
    return (largest if math.isnan(largest) else max(1e-30, largest)) * times


class Check:
    """The comparison of a map with what the model computed.

    Attributes:
        against: what the map was compared with: "kernel", "product" (the model's own), "layer" (its whole output), …
        error: max |weights @ V − what was returned|; None if nothing could be compared.
        allowed: how large ``error`` may be by rounding alone.
        logsumexp_error: the same for the logsumexp of the scores, if the kernel returned it.

    >>> check = Check("kernel", torch.tensor([0.1, 0.3]), Rounding(torch.tensor(2.0), 0.25))
    >>> check.error, check.allowed, check.agrees
    (tensor(0.3000), tensor(0.5000), True)
    """

    __slots__ = ("_allowed", "_error", "_logsumexp_error", "_sums", "against")

    def __init__(
        self,
        against: str = NOT_COMPARED,
        error: Tensor | None = None,
        allowed: Tensor | Rounding | None = None,
        logsumexp_error: Tensor | None = None,
    ) -> None:
        self.against, self._error, self._allowed, self._logsumexp_error = against, error, allowed, logsumexp_error
        self._sums: list[Tensor] = []  # sums of rows, which are 1 if the kernel's logsumexp is right

    @property
    def error(self) -> Tensor | None:
        self._error = _largest(self._error)
        return self._error

    @property
    def logsumexp_error(self) -> Tensor | None:
        for sums in self._sums:
            self._logsumexp_error = _larger(self._logsumexp_error, sums.log().abs_())
        self._sums = []
        self._logsumexp_error = _largest(self._logsumexp_error)
        return self._logsumexp_error

    @property
    def allowed(self) -> Tensor | None:
        if isinstance(self._allowed, Rounding):
            self._allowed = torch.tensor(float(self._allowed))
        return self._allowed

    @allowed.setter
    def allowed(self, allowed: Tensor | Rounding | None) -> None:
        self._allowed = allowed

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the error."""
        error, allowed = self.error, self._allowed
        return error is None or allowed is None or float(error) <= float(allowed)

    @classmethod
    def joined(cls, checks: Sequence["Check"], against: str) -> "Check":
        """One check for all parts of a map, with the largest errors. It agrees if every part does: the larger rounding of one
        part does not excuse the error of another.

        >>> small, large = Rounding(0.1, 1e-2), Rounding(100.0, 1e-2)
        >>> wrong, right = Check("kernel", torch.tensor(0.5), small), Check("kernel", torch.tensor(0.7), large)
        >>> wrong.agrees, right.agrees, Check.joined([wrong, right], "kernel").agrees
        (False, True, False)
        """
        whole = cls(against)
        for check in checks:
            whole.add(check.error, check.logsumexp_error)
        allowed = [check.allowed for check in checks if check.allowed is not None]
        exceeded = [check.allowed for check in checks if check.allowed is not None and not check.agrees]
        if exceeded:
            whole.allowed = torch.stack(exceeded).amin()
        elif allowed:
            whole.allowed = torch.stack(allowed).amax()
        return whole

    def add(self, error: Tensor | None, logsumexp_error: Tensor | None) -> None:
        """Add the errors of further rows: a number each, or a tensor of which the largest element counts."""
        self._error = _larger(self._error, error)
        self._logsumexp_error = _larger(self._logsumexp_error, logsumexp_error)

    def add_sums(self, sums: Tensor) -> None:
        """Add further rows, given their sums of exp(scores − the kernel's logsumexp): the logarithm is the error."""
        self._sums = [*self._sums, sums]

    @staticmethod
    def fetch(checks: Sequence["Check"]) -> None:
        """Copy the numbers of all checks to the host, with one copy for each device and dtype."""
        kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
        for check in checks:
            for x in check._numbers():
                if x.device.type != "cpu":
                    kinds[x.device, x.dtype].append(x)
        found: dict[int, Tensor] = {}
        for numbers in kinds.values():
            if len(numbers) > 1:
                host = torch.cat([x.reshape(-1) for x in numbers]).cpu().split([x.numel() for x in numbers])
                found.update({id(x): part for x, part in zip(numbers, host, strict=True)})
        for check in checks if found else ():
            check._replace(found)

    def _numbers(self) -> list[Tensor]:
        numbers = [x for x in (self._error, self._logsumexp_error) if x is not None]
        if isinstance(self._allowed, Rounding) and isinstance(self._allowed.largest, Tensor):
            numbers.append(self._allowed.largest)
        return numbers

    def _replace(self, found: dict[int, Tensor]) -> None:
        self._error = found.get(id(self._error), self._error)
        self._logsumexp_error = found.get(id(self._logsumexp_error), self._logsumexp_error)
        if isinstance(self._allowed, Rounding):
            self._allowed.largest = found.get(id(self._allowed.largest), self._allowed.largest)


def _largest(x: Tensor | None) -> Tensor | None:
    return x if x is None or x.ndim == 0 else x.amax()


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return torch.maximum(a if a.ndim == 0 else a.amax(), b if b.ndim == 0 else b.amax())
