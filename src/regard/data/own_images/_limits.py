"""Limits on memory and threads for your images, set by environment variables."""

import os

from regard.data.own_images._errors import UnsuitableDataError
from regard.support.text import parse_size


def memory_limit() -> int:
    """Bytes of pixels that are kept in memory: ``REGARD_DATA_MEMORY``, by default 2 GiB. Larger sets are streamed.

    >>> memory_limit() >= 0
    True
    """
    try:
        return parse_size(os.environ.get("REGARD_DATA_MEMORY", "2GiB"), "REGARD_DATA_MEMORY")
    except ValueError as error:
        raise UnsuitableDataError(str(error)) from error


def workers() -> int:
    """How many threads decode and read: ``REGARD_DATA_WORKERS``, or the cores this process may use."""
    chosen = os.environ.get("REGARD_DATA_WORKERS", "")
    if chosen:
        if not chosen.isdigit() or int(chosen) < 1:
            raise UnsuitableDataError(f"REGARD_DATA_WORKERS must be a whole number of 1 or more, got {chosen!r}")
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def caches() -> bool:
    """Whether large sets are decoded once into a file: ``REGARD_DATA_CACHE``, on, or off to decode in every epoch."""
    chosen = os.environ.get("REGARD_DATA_CACHE", "on").lower()
    if chosen not in ("on", "off"):
        raise UnsuitableDataError(f"REGARD_DATA_CACHE must be on or off, got {chosen!r}")
    return chosen == "on"
