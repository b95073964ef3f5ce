"""``LivingTensors``: what is known of single tensors, as long as they live."""

import weakref
from typing import Any, Generic, TypeVar

from torch import Tensor

T = TypeVar("T")


class LivingTensors(dict[int, tuple[weakref.ref[Tensor], T]], Generic[T]):
    """A table of tensors, which are recognized by identity and not kept alive.

    Its keys are the ids of the tensors: ``bool(table)`` and ``id(x) in table`` are cheap questions, and an id that is missing
    is that of a tensor of which nothing is known.

    >>> import torch
    >>> x, table = torch.ones(2), LivingTensors()
    >>> table.note(x, "ones")
    >>> table.of(x), table.of(torch.ones(2))
    ('ones', None)
    >>> del x
    >>> table
    {}
    """

    def of(self, x: Any) -> T | None:
        """What is known of ``x``; None if nothing is."""
        entry = self.get(id(x))
        return entry[1] if entry is not None and entry[0]() is x else None

    def note(self, x: Tensor, known: T) -> None:
        """Note what is known of a tensor. It may live longer than what owns this table, so its callback refers to no more."""
        key = id(x)
        self[key] = (weakref.ref(x, lambda _: self.pop(key, None)), known)


_LISTS = (list, tuple)


def are_among(
    args: tuple[Any, ...], kwargs: dict[str, Any] | None, first: LivingTensors[Any], second: LivingTensors[Any]
) -> bool:
    """Whether one of these arguments of a function, or a tensor in a list among them, is in one of two tables.

    This is asked for nearly each function of a model, so it must be fast.
    """
    for x in (*args, *kwargs.values()) if kwargs else args:
        if id(x) in first or id(x) in second:
            return True
        if isinstance(x, _LISTS):
            for y in x:
                if id(y) in first or id(y) in second:
                    return True
    return False
