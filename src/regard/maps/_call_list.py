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
    """The part of :class:`regard.maps.Map` that holds the records."""

    def __init__(self, calls: list[AttentionRecord] | None = None) -> None:
        self._calls = calls if calls is not None else []
        self._later: list[Recordable] = []

    @property
    def calls(self) -> list[AttentionRecord]:
        """A record for every call, in order."""
        if self._later:
            later, self._later = self._later, []
            self._calls += [kept.record() for kept in later]
        return self._calls

    @property
    def made(self) -> list[AttentionRecord]:
        """The records that were made so far."""
        return self._calls

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the residuals of all calls."""
        return all(call.agrees for call in self._calls) and all(call.agrees for call in self._later)

    def keep(self, call: Recordable) -> None:
        """Add a call whose record is made later."""
        self._later.append(call)
