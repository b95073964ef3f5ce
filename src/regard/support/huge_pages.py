"""Large tensors on a CPU, in huge pages where Linux offers them.

The C library asks the system for new memory for each tensor beyond 32 MiB, and returns it when the tensor is freed. The
system hands this memory out page by page, at the first write to each page: in pages of 4 KiB that takes four times as long
as writing the data. In huge pages (2 MiB) most of this cost is gone.
"""

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache

from torch import Tensor

LARGE = 2**25  # bytes; glibc keeps freed blocks of up to this size for later calls


def empty(*shape: int, like: Tensor) -> Tensor:
    """``like.new_empty(shape)``, in huge pages if it is a large tensor on a CPU.

    >>> empty(2, 3, like=Tensor([1.0])).shape
    torch.Size([2, 3])
    """
    made = like.new_empty(shape)
    if made.device.type == "cpu" and made.nbytes > LARGE:
        prefer_huge_pages(made.data_ptr(), made.nbytes)
    return made


def prefer_huge_pages(address: int, size: int) -> bool:
    """Ask the system for huge pages in this range of memory. Returns whether it agreed; if not, nothing changes."""
    madvise = _madvise()
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (address + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    return madvise is not None and whole > 0 and madvise(first, whole, mmap.MADV_HUGEPAGE) == 0


@cache
def _madvise() -> Callable[[int, int, int], int] | None:
    """The system's function, where it knows huge pages: on Linux."""
    if not sys.platform.startswith("linux") or not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function
