"""Checks that stay on the GPU when a capture ends, and are read together with the first map.

Reading a number from a GPU waits for all that the model computes there. So a capture does not ask at its end whether its
maps agree with the model. The first reader of any of them does, and is warned as at the end of a capture on a CPU.
"""

import sys
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from regard.maps._call_list import CallList
from regard.maps._check import Check
from regard.maps._container import Map, Maps
from regard.maps.repeats._check_buffers import CheckBuffers
from regard.observation import unobserved


class ChecksOnDevice:
    """The checks of a capture that ended, which all of its maps share until one of them is read.

    It refers weakly to the maps, which refer to it: a cycle would keep them on the GPU until the next garbage collection.
    """

    def __init__(self, maps: Maps, numbers: CheckBuffers) -> None:
        self._maps, self._numbers = weakref.ref(maps), numbers
        for found in maps.values():
            found.unread = self

    def read(self, asked: CallList) -> None:
        """Copy the numbers to the host, and warn about maps that do not agree. If only one map is left: about that one."""
        maps = self._maps()
        lists: Sequence[Any] = [asked] if maps is None else list(maps.values())
        asked.unread = None
        for found in lists:
            found.unread = None
        with torch._C.DisableTorchFunction():
            wrong = unobserved(disagreeing, lists, self._numbers)
        warn_of(wrong, len(lists), _outside())


def disagreeing(maps: Iterable[Map], numbers: CheckBuffers | None) -> list[str]:
    """The names of the maps that do not agree with the model, after all their checks were brought to the host."""
    if numbers is not None:
        numbers.fetch()
    maps = list(maps)
    checks = [record.check for found in maps for record in found.made]
    if checks:
        Check.fetch(checks)
    return [found.name for found in maps if not found.agrees]


def warn_of(wrong: Sequence[str], count: int, level: int) -> None:
    """Warn about the maps of these names, of ``count`` in all. ``level``: see ``warnings.warn``."""
    if wrong:
        warnings.warn(
            f"{len(wrong)} of {count} maps do not reproduce what the model computed: "
            f"{', '.join(wrong[:5])}; see their .residual",
            stacklevel=level + 1,
        )


def _outside() -> int:
    """How many frames lie between the caller and the code that uses this package, as ``warnings.warn`` counts them."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("regard", "jaxtyping"):
        frame, level = frame.f_back, level + 1
    return level
