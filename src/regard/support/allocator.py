"""Memory of a server that answers from many threads, where the C library is glibc."""

import ctypes
import sys

# Parameters of mallopt, from malloc.h.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
MOST_ARENAS = 2
LARGE = 2**20  # bytes


def limit_arenas(most: int = MOST_ARENAS, large: int = LARGE) -> bool:
    """Let the threads that start from now on share ``most`` heaps, and return large blocks to the system when freed.

    glibc gives threads heaps of their own, up to eight for each core, and what one thread frees in its heap no other uses:
    a server's memory grows until each heap has met the largest request. It also learns to keep freed blocks of up to
    32 MiB. Both suit programs that allocate all the time in all threads. Python's threads take turns anyway.

    Returns:
        Whether the C library has these settings. Others (musl, macOS, Windows) are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_ARENA_MAX: most, _MMAP_THRESHOLD: large, _TRIM_THRESHOLD: large}
    return all(mallopt(name, value) == 1 for name, value in settings.items())
