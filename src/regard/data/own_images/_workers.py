"""The threads that decode and read images. Pillow, NumPy and torch release Python's GIL while they work on pixels."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from regard.data.own_images._limits import workers

Result = TypeVar("Result")
UNDER_WAY = 4  # pieces of work per worker, so that a slow worker does not delay the others


@lru_cache(maxsize=2)
def pool(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="regard-data")


def start(work: Callable[[range], Result], count: int, pieces: int) -> list[Future[Result]]:
    """Start ``work`` on the numbers below ``count``, in the given number of consecutive pieces.

    >>> [each.result() for each in start(list, 5, 2)]
    [[0, 1], [2, 3, 4]]
    """
    pieces = min(pieces, count)
    bounds = [count * piece // pieces for piece in range(pieces + 1)] if pieces else []
    return [pool(workers()).submit(work, range(first, last)) for first, last in pairwise(bounds)]


def in_order(work: Callable[[range], Result], count: int, size: int) -> Iterator[Result]:
    """The results of ``work`` on the numbers below ``count``, ``size`` at a time. Only a few run at any time, so that
    little memory is used and an interruption takes effect soon.

    >>> list(in_order(sum, 10, 4))
    [6, 22, 17]
    """
    started: deque[Future[Result]] = deque()
    try:
        for first in range(0, count, size):
            started.append(pool(workers()).submit(work, range(first, min(first + size, count))))
            if len(started) >= UNDER_WAY * workers():
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
    finally:
        for each in started:
            each.cancel()
