"""Reuses the memory of large freed maps on a CPU for the next map of the same size.

The operating system hands out memory page by page, at the first write to each page. These page faults take longer than
writing the data: about half the time of capturing long texts. So the memory of a freed map is kept and marked with
``MADV_FREE``. If the system runs short of memory, it takes the pages back; until then, the next map can use them
without page faults.
"""

import math
import mmap
import threading
import weakref

import torch
from torch import Tensor

LARGE = 2**22  # bytes from which on a map gets its own memory mapping
KEPT = 2**30  # bytes of freed memory that are kept at most


class FreedMemory:
    """A pool of freed memory, of ``most`` bytes at most.

    A tensor may be freed at any point in any thread, even inside of these methods. Waiting for the lock could then be a
    deadlock, so no method waits: without the lock, ``take`` finds nothing and freed memory is not kept.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._kept: list[mmap.mmap] = []  # the oldest first
        self._lock = threading.Lock()
        self._lent: dict[int, weakref.ref[memoryview]] = {}  # keeps the callbacks of lent memory alive

    @property
    def size(self) -> int:
        """The number of bytes in the pool."""
        return sum(len(memory) for memory in list(self._kept))

    def take(self, size: int) -> mmap.mmap | None:
        """Memory of this size, with arbitrary content; None if the pool has none."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            place = next((i for i, memory in enumerate(self._kept) if len(memory) == size), None)
            return None if place is None else self._kept.pop(place)
        finally:
            self._lock.release()

    def lend(self, memory: mmap.mmap) -> memoryview:
        """A view of the memory, from which to make a tensor. When the tensor and its views are freed, the memory returns here."""
        view = memoryview(memory)
        number = id(view)

        def freed(_: object) -> None:
            self._lent.pop(number, None)
            self._keep(memory)

        self._lent[number] = weakref.ref(view, freed)
        return view

    def _keep(self, memory: mmap.mmap) -> None:
        """Add freed memory to the pool, and release the oldest if the pool is too large."""
        if not hasattr(mmap, "MADV_FREE") or len(memory) > self._most or not self._lock.acquire(blocking=False):
            return
        try:
            memory.madvise(mmap.MADV_FREE)
            self._kept.append(memory)
            while self.size > self._most:
                del self._kept[0]
        except OSError:  # the system does not support it: the memory is released instead
            pass
        finally:
            self._lock.release()


_freed = FreedMemory()


def zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """``torch.zeros`` with faster allocation of large maps on a CPU.

    New memory from the system is zero already, and pages that are never written cost nothing. Causal maps leave up to half of
    their memory untouched, while ``torch.zeros`` would write all of it.

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
