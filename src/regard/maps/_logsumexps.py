"""Follows what a model computes from the logsumexp of its scores.

A factor of an attention's output belongs to the map only if it was computed from this logsumexp, as a learned sink or a
share of the softmax is. Any other factor (a gate, a scale) does not.
"""

from typing import Any

from torch import Tensor

from regard.maps._living_tensors import LivingTensors

# Functions whose result has more elements and still one number per row.
_LARGER = frozenset({"expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave"})


class FromLogsumexp:
    """The living tensors that were computed from a logsumexp and have one number per row.

    Attributes:
        known: these tensors.
    """

    def __init__(self) -> None:
        self.known = LivingTensors[bool]()

    def __contains__(self, x: Any) -> bool:
        return self.known.of(x) is not None

    def add(self, x: Any) -> None:
        for part in _tensors((x,)):
            if part.is_floating_point() and part.ndim:
                self.known.note(part, True)

    def follow(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Add the result of a function if it still has one number per row.

        Only sizes are compared: scores minus their logsumexp, or an output times a factor, have more elements.
        """
        given = [x for x in _tensors((*args, *kwargs.values())) if x in self]
        if not given:
            return
        most = sum(x.numel() for x in given)
        parts = out if isinstance(out, tuple | list) else (out,)
        self.add([x for x in parts if isinstance(x, Tensor) and (x.numel() <= most or function in _LARGER)])

    def is_beside_another(self, args: tuple[Any, ...], out: Any) -> bool:
        """Whether such a tensor was multiplied with one of another kind that has more elements, as an output has."""
        found = [x in self for x in _tensors(args)]
        return any(found) and not all(found) and out not in self

    def clear(self) -> None:
        self.known.clear()


def _tensors(args: tuple[Any, ...]) -> list[Tensor]:
    nested = (part for x in args for part in (x if isinstance(x, tuple | list) else (x,)))
    return [x for x in nested if isinstance(x, Tensor)]
