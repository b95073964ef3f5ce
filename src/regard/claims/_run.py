"""Run claims: collect evidence on the statement, on what is true and on the mutant, and compare with the record."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import torch

from regard.claims._claim import SOURCES, TOPICS, Claim, Effort, Evidence, all_claims
from regard.claims._row import Row
from regard.claims._table import html_table, table
from regard.support.checks import check_flag, describe, is_iterable

Report = Callable[[Claim], None]


class Verification(Sequence[Row]):
    """The result of :func:`verify`: a sequence of rows that prints as a table. ``agrees`` is False if evidence and record
    differ for any claim."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = tuple(rows)

    @property
    def agrees(self) -> bool:
        return all(row.agrees for row in self.rows)

    @overload
    def __getitem__(self, index: int | str) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "Verification": ...
    def __getitem__(self, index: int | str | slice) -> "Row | Verification":
        """A row by its index or by the id of its claim."""
        if isinstance(index, slice):
            return Verification(self.rows[index])
        if isinstance(index, str):
            found = [row for row in self.rows if row.claim.id == index]
            if not found:
                raise KeyError(f"{index!r} is not among the claims {', '.join(row.claim.id for row in self.rows)}")
            return found[0]
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def as_json(self) -> list[dict[str, Any]]:
        """One dictionary per claim, as ``regard verify --json`` prints them: ``id``, ``topic``, ``source``, ``statement``,
        ``verdict``, ``condition`` or ``instead`` (None where the verdict has none), ``evidence``, ``mutant_rejected``,
        ``slow``, ``ran``, and ``proved``: the machine-checked theorems, each with its name (``theorem``), whether it
        ``does`` prove or refute, and what it ``says``."""
        return [row.as_json() for row in self.rows]

    def __str__(self) -> str:
        return table(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self)


def select(what: str | Sequence[str] | None = None) -> tuple[Claim, ...]:
    """The claims of a source, of a topic or with an id. Several words select the union.

    >>> from regard.claims import select
    >>> [claim.id for claim in select("ex05") if claim.topic == "scaling"]
    ['ex05-scale']
    """
    claims = all_claims()
    if what is None:
        return claims
    words = [what] if isinstance(what, str) else list(what) if is_iterable(what) else [what]
    if any(not isinstance(word, str) for word in words):
        raise TypeError(f"what must be a source, a topic or an id, or several of these, got {describe(what)}")
    for word in words:
        if not any(word in (claim.id, claim.topic, claim.source) for claim in claims):
            raise ValueError(
                f"no claim is called {word!r}: pass a source ({', '.join(SOURCES)}), a topic ({', '.join(TOPICS)}) "
                f"or an id, such as {claims[0].id!r}"
            )
    return tuple(claim for claim in claims if {claim.id, claim.topic, claim.source} & set(words))


def verify(
    what: str | Sequence[str] | None = None, *, slow: bool = False, smoke: bool = False, report: Report | None = None
) -> Verification:
    """Check statements about attention, and compare the evidence with the recorded verdicts.

    Args:
        what: a source (``"c182"``), a topic (``"temperature"``), the id of a claim, or a list of these; default: all.
        slow: whether to run claims that train a model, up to three minutes each.
        smoke: run those at a tiny scale instead, to test their code; they count as not run.
        report: called with each claim before it is examined, to show progress.

    Returns the rows; ``.agrees`` is True if record and evidence agree for all.

    >>> found = regard.verify("hw4-softargmax-sign")
    >>> found[0].verdict, found.agrees
    ('fails', True)
    """
    check_flag("slow", slow)
    check_flag("smoke", smoke)
    rows = []
    for claim in select(what):
        if claim.slow and not (slow or smoke):
            rows.append(Row(claim))
            continue
        if report is not None:
            report(claim)
        rows.append(examine(claim, "smoke" if claim.slow and not slow else "full"))
    return Verification(rows)


def examine(claim: Claim, effort: Effort = "full") -> Row:
    """Collect the evidence on one claim."""
    start = time.perf_counter()
    says = _evidence(claim, claim.says, effort)
    true = None if claim.true is None else _evidence(claim, claim.true.candidate, effort)
    mutant = _evidence(claim, claim.mutant.candidate, effort)
    seconds = time.perf_counter() - start
    return Row(claim, says, true, mutant, seconds, smoke=effort == "smoke")


def _evidence(claim: Claim, candidate: Any, effort: Effort) -> Evidence:
    """An error in a check is no evidence. A smoke run raises it, because there the code itself is tested."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # layers draw their first weights from it
            return claim.examine(candidate, effort)
    except Exception as error:
        if effort == "smoke" or isinstance(error, ImportError):
            raise
        return Evidence(False, f"the check raised {type(error).__name__}: {error}", broke=True)
