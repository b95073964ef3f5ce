"""A cache of the last few responses, so that unchanged data are not computed again."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any


class RecentAnswers:
    """Keeps the most recently requested responses.

    Args:
        most: how many to keep.
        lock: held while a response is computed, so that a second request for it waits for the first.

    >>> recent = RecentAnswers(1)
    >>> recent.get("run", lambda: b"first", state=1), recent.get("run", lambda: b"second", state=1)
    (b'first', b'first')
    >>> recent.get("run", lambda: b"third", state=2)
    b'third'
    """

    def __init__(self, most: int, lock: AbstractContextManager[Any] | None = None) -> None:
        self.most = most
        self._lock = lock or threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[Hashable, bytes]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], bytes], *, state: Hashable = None) -> bytes:
        """The response for a key. It is computed again if ``state``, that of the files it depends on, has changed."""
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None or kept[0] != state:
                kept = state, make()
            self._kept[key] = kept
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
            return kept[1]
