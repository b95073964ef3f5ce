"""Runs a function for many heads in parallel: one thread per core, and in each of them single-threaded torch operators.

Operators on tiles that fit into a cache are short. If each of them were split among all cores, the cores would mostly
wait for each other, above all on a busy machine.
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
    """Call ``function(item)`` for all items, in at most ``threads`` threads."""
    count = min(threads, len(items))
    if count < 2:
        for item in items:
            function(item)
        return
    # OpenMP has its own number of threads in each new thread. torch sets it when get_num_threads is first called there. Matrix
    # products do not call it, so without the initializer each of them would be split among all cores.
    with _single_threaded_operations(), ThreadPoolExecutor(count, initializer=torch.get_num_threads) as pool:
        list(pool.map(function, items))


@contextmanager
def _single_threaded_operations() -> Iterator[None]:
    """Let torch's operators use one thread. The setting is global: the first user changes it, the last one restores it."""
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
