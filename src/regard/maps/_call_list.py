"""The calls of one module. Records of some are made when somebody looks."""

from typing import Protocol, runtime_checkable

from regard.maps._record import AttentionRecord


@runtime_checkable
class Recordable(Protocol):
    """A call that was kept without a record."""

    @property
    def agrees(self) -> bool: ...

    def record(self) -> AttentionRecord: ...


class CallList:
    """The part of :class:`regard.maps.Map` that holds the records.

    Attributes:
        later: the latest calls, whose records are made when somebody asks for them.
    """

    def __init__(self, calls: list[AttentionRecord] | None = None) -> None:
        self._calls = calls if calls is not None else []
        self.later: list[Recordable] = []

    @property
    def calls(self) -> list[AttentionRecord]:
        """A record for every call, in order."""
        if self.later:
            later, self.later = self.later, []
            self._calls += [kept.record() for kept in later]
        return self._calls

    @property
    def made(self) -> list[AttentionRecord]:
        """The records that were made so far."""
        return self._calls

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the residuals of all calls."""
        return all(call.agrees for call in self._calls) and all(kept.agrees for kept in self.later)
