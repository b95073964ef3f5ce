"""Heads side by side: one thread for each core, in each of which torch's own operations use one thread.

Operations on tiles that fit into a cache are short. Were each of them split among the cores, they would mostly wait for
each other, above all on a machine that does something else, too.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

_lock = threading.Lock()
_users = 0
_before = 1


def each_in_a_thread(function: Callable[[Any], None], items: Sequence[Any], threads: int) -> None:
    """``function(item)`` for all items, at most ``threads`` at a time."""
    count = min(threads, len(items))
    if count < 2:
        for item in items:
            function(item)
        return
    # OpenMP has a number of threads for each thread. torch tells it the process's own when that is first asked for, which
    # products of matrices do not do: they would split among all cores in each of these threads.
    with _single_threaded_operations(), ThreadPoolExecutor(count, initializer=torch.get_num_threads) as pool:
        list(pool.map(function, items))


@contextmanager
def _single_threaded_operations() -> Iterator[None]:
    """The number of threads belongs to the process: the first user changes it, and the last one restores it."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = torch.get_num_threads()
            torch.set_num_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_before)
