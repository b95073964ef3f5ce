"""The last few answers, so that what did not change is not computed again."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from typing import Any


class RecentAnswers:
    """Keeps a bounded number of answers, the ones asked for last.

    Args:
        most: how many are kept.
        lock: held while an answer is made, so that a second request for the same waits for the first one.

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
        """The answer of this key, made again where it was made in another state (of the files that it depends on)."""
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None or kept[0] != state:
                kept = state, make()
            self._kept[key] = kept
            if len(self._kept) > self.most:
                self._kept.popitem(last=False)
            return kept[1]
