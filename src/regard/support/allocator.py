"""Limit the memory of a multi-threaded server on systems with glibc."""

import ctypes
import sys

# Parameters of mallopt, from malloc.h.
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
MOST_ARENAS = 2
LARGE = 2**20  # bytes


def limit_arenas(most: int = MOST_ARENAS, large: int = LARGE) -> bool:
    """Let threads that start from now on share ``most`` heaps (arenas), and return large freed blocks to the system.

    glibc gives threads their own heaps, up to eight per core, and memory that one thread frees in its heap is not reused by
    threads of other heaps: a server's memory grows until every heap has served the largest request. It also learns to keep
    freed blocks of up to 32 MiB. Both suit programs whose threads all allocate all the time; Python's threads take turns.

    Returns:
        Whether the C library has these settings. On others (musl, macOS, Windows) nothing changes.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = {_ARENA_MAX: most, _MMAP_THRESHOLD: large, _TRIM_THRESHOLD: large}
    return all(mallopt(name, value) == 1 for name, value in settings.items())
