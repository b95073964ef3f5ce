"""Running claims: evidence for the statement, for what is true, and against the mutant; then the verdict."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, overload

import torch

from regard.claims._claim import SOURCES, TOPICS, Claim, Effort, Evidence, all_claims
from regard.claims._row import Row
from regard.claims._table import html_table, table

Report = Callable[[Claim], None]


class Verification(Sequence[Row]):
    """What :func:`verify` found: its rows, in order. It prints as a table; ``agrees`` is False where evidence and record
    differ anywhere."""

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
        """By number, or by a claim's id."""
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
        """One entry per claim, as ``regard verify --json`` prints them."""
        return [row.as_json() for row in self.rows]

    def __str__(self) -> str:
        return table(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self)


def select(what: str | Sequence[str] | None = None) -> tuple[Claim, ...]:
    """The claims of a source, of a topic, or with an id; several such words select the claims of any of them.

    >>> from regard.claims import select
    >>> [claim.id for claim in select("ex05") if claim.topic == "scaling"]
    ['ex05-scale']
    """
    claims = all_claims()
    if what is None:
        return claims
    words = [what] if isinstance(what, str) else list(what)
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
    """Decide statements about attention by evidence, and compare with what is on record.

    Args:
        what: a source (``"c182"``), a topic (``"temperature"``), a claim's id, or a list of such; default all.
        slow: also run those that train something, up to three minutes each.
        smoke: exercise the code of the slow ones on a tiny scale instead; they then count as not run.
        report: called with each claim before it is examined, for showing progress.

    Returns the rows; ``.agrees`` says whether record and evidence agree everywhere.

    >>> found = regard.verify("hw4-softargmax-sign")
    >>> found[0].verdict, found.agrees
    ('fails', True)
    """
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
    """All the evidence for one claim."""
    start = time.perf_counter()
    says = _evidence(claim, claim.says, effort)
    true = None if claim.true is None else _evidence(claim, claim.true.candidate, effort)
    mutant = _evidence(claim, claim.mutant.candidate, effort)
    seconds = time.perf_counter() - start
    return Row(claim, says, true, mutant, seconds, smoke=effort == "smoke")


def _evidence(claim: Claim, candidate: Any, effort: Effort) -> Evidence:
    """A check that breaks down is evidence of nothing; in a smoke run it is an error, for there the code is what is tried."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # layers draw their first weights from it
            return claim.examine(candidate, effort)
    except Exception as error:
        if effort == "smoke" or isinstance(error, ImportError):
            raise
        return Evidence(False, f"the check raised {type(error).__name__}: {error}", broke=True)
