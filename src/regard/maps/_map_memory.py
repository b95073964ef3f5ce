"""Memory of large maps on a CPU, used again by the next map of the same size.

A system hands out memory page by page, and to be given a page takes longer than to fill it: about half of what it costs to
capture long texts. So the memory of a map that was freed is kept. It is marked as free (``MADV_FREE``): if the system needs
memory it takes the pages back, and until then the next map gets them without asking.
"""

import math
import mmap
import threading
import weakref

import torch
from torch import Tensor

LARGE = 2**22  # bytes of a map that is given pages of its own
KEPT = 2**30  # bytes that are kept at most


class FreedMemory:
    """Memory of maps that were freed, ``most`` bytes at most.

    A tensor may be freed at any point of any thread, also inside of these methods. So the lock is never waited for: who does
    not get it finds nothing here, and keeps nothing.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._kept: list[mmap.mmap] = []  # the oldest first
        self._lock = threading.Lock()
        self._lent: dict[int, weakref.ref[memoryview]] = {}

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(len(memory) for memory in list(self._kept))

    def take(self, size: int) -> mmap.mmap | None:
        """Memory of this size, in which something may be written; None if there is none."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            place = next((i for i, memory in enumerate(self._kept) if len(memory) == size), None)
            return None if place is None else self._kept.pop(place)
        finally:
            self._lock.release()

    def lend(self, memory: mmap.mmap) -> memoryview:
        """The memory for a tensor. When the tensor and all its views are gone, it is kept here."""
        view = memoryview(memory)
        number = id(view)

        def freed(_: object) -> None:
            self._lent.pop(number, None)
            self._keep(memory)

        self._lent[number] = weakref.ref(view, freed)
        return view

    def _keep(self, memory: mmap.mmap) -> None:
        if not hasattr(mmap, "MADV_FREE") or len(memory) > self._most or not self._lock.acquire(blocking=False):
            return
        try:
            memory.madvise(mmap.MADV_FREE)
            self._kept.append(memory)
            while self.size > self._most:
                del self._kept[0]
        except OSError:  # a system that does not take pages back one by one: all of them are returned
            pass
        finally:
            self._lock.release()


_freed = FreedMemory()


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. New memory of a CPU is not touched until something else is written to it: causal maps leave up to half of theirs
    empty, and ``torch.zeros`` would write all of it.

    >>> zeros((2, 3), torch.float32, torch.device("cpu"))
    tensor([[0., 0., 0.],
            [0., 0., 0.]])
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = _freed.take(size)
    used = memory is not None
    if memory is None:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    made = torch.frombuffer(_freed.lend(memory), dtype=dtype).view(shape)
    return made.zero_() if used else made
