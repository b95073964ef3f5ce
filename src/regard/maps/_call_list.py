"""The list of a module's calls. Records of repeated calls are made lazily, when the list is first read."""

from typing import Any, Protocol, runtime_checkable

from regard.maps._record import AttentionRecord


@runtime_checkable
class Recordable(Protocol):
    """A call whose record is made later, such as :class:`regard.maps.repeats._quick_calls.KeptCall`."""

    @property
    def agrees(self) -> bool: ...

    def record(self) -> AttentionRecord: ...


@runtime_checkable
class UnreadChecks(Protocol):
    """Checks whose numbers are still on a GPU, such as :class:`regard.maps._unread_checks.ChecksOnDevice`."""

    def read(self, asked: "CallList") -> None:
        """Bring them to the host, and warn about maps that do not agree. ``asked``: the list that is being read."""
        ...


class CallList:
    """The part of :class:`regard.maps.Map` that holds the records.

    Attributes:
        later: the latest calls, whose records are made when :attr:`calls` is read.
        unread: reads the checks from the device, before anything else is read; None if that was done.
    """

    unread: "UnreadChecks | None" = None

    def __init__(self, calls: list[AttentionRecord] | None = None) -> None:
        self._calls = calls if calls is not None else []
        self.later: list[Recordable] = []

    @property
    def calls(self) -> list[AttentionRecord]:
        """A record for every call, in order."""
        if self.unread is not None:
            self.unread.read(self)
        if self.later:
            later, self.later = self.later, []
            self._calls += [kept.record() for kept in later]
        return self._calls

    def __getstate__(self) -> dict[str, Any]:
        """What ``copy`` and ``pickle`` take: all records. Calls whose records are not made refer to the code of the model."""
        calls = self.calls
        return {**vars(self), "_calls": list(calls), "later": []}

    @property
    def made(self) -> list[AttentionRecord]:
        """The records that exist already, without those of :attr:`later`."""
        return self._calls

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the residuals of all calls."""
        if self.unread is not None:
            self.unread.read(self)
        return all(call.agrees for call in self._calls) and all(call.agrees for call in self.later)
