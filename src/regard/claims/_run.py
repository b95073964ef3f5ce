"""Running claims: evidence for the statement, for what is true, and against the mutant; then the verdict."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch

from regard.claims._claim import SOURCES, TOPICS, Claim, Effort, Evidence, Verdict, all_claims
from regard.claims._proofs import Theorem, theorems_about
from regard.claims._prose import as_line

Report = Callable[[Claim], None]


@dataclass(frozen=True)
class Row:
    """One claim and what was found.

    Attributes:
        claim: what was examined.
        says: evidence for the statement as the source has it; None where it was not run.
        true: evidence for the statement under its condition, or for what is true instead.
        mutant: evidence for the wrong variant.
        seconds: how long it took.
        smoke: the code was only exercised, at a scale that says nothing about the claim.
    """

    claim: Claim
    says: Evidence | None = None
    true: Evidence | None = None
    mutant: Evidence | None = None
    seconds: float = 0.0
    smoke: bool = False

    @property
    def ran(self) -> bool:
        return self.says is not None and not self.smoke

    @property
    def computed(self) -> Verdict | None:
        """The verdict that the evidence gives, whatever is on record; None where there is no evidence."""
        if self.says is None or self.smoke:
            return None
        if self.says.accepted:
            return "holds"
        if self.claim.condition is not None and self.true is not None and self.true.accepted:
            return "holds under"
        return "fails"

    @property
    def verdict(self) -> Verdict:
        """Computed where it ran, else the recorded one."""
        return self.computed or self.claim.verdict

    @property
    def mutant_rejected(self) -> bool | None:
        return None if self.mutant is None or self.smoke else not self.mutant.accepted

    @property
    def agrees(self) -> bool:
        """Record and evidence agree: the verdict, the correction where there is one, and the mutant's rejection."""
        if not self.ran:
            return True
        if any(found is not None and found.broke for found in (self.says, self.true, self.mutant)):
            return False
        # A statement that fails needs its correction proved.
        proved = self.computed != "fails" or (
            self.claim.instead is not None and self.true is not None and self.true.accepted
        )
        return self.computed == self.claim.verdict and proved and bool(self.mutant_rejected)

    @property
    def condition(self) -> str | None:
        """Under which condition it holds, where it needs one."""
        return as_line(self.claim.condition.text) if self.claim.condition and self.verdict == "holds under" else None

    @property
    def proved(self) -> tuple[Theorem, ...]:
        """The machine-checked theorems about the claim."""
        return theorems_about(self.claim.id)

    @property
    def evidence(self) -> str:
        """In one line."""
        claim, says = self.claim, self.says
        if says is None:
            return "not run: it trains something (--slow)"
        if self.smoke:
            return "code exercised on a tiny scale, which says nothing about the claim (--slow runs it)"
        line = says.line
        if not says.accepted:
            if says.counterexample and says.counterexample != line:
                line = says.counterexample
            if self.true is not None and claim.true is not None:
                name = "under the condition" if claim.condition is not None else f"instead {as_line(claim.true.text)}"
                line += f"; {name}: {self.true.line}"
        if not self.agrees:
            line = f"DISAGREES with the record, {claim.verdict!r}: {line}" + (
                "; the mutant was not rejected" if self.mutant_rejected is False else ""
            )
        return " ".join(line.split())

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.claim.id,
            "topic": self.claim.topic,
            "source": self.claim.source,
            "verdict": self.verdict,
            "condition": self.condition,
            "evidence": self.evidence,
            "mutant_rejected": self.mutant_rejected,
            "slow": self.claim.slow,
            "ran": self.ran,
            "proved": [
                {"theorem": theorem.title, "does": theorem.does(self.claim.id), "says": theorem.says}
                for theorem in self.proved
            ],
        }


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

    def as_html(self) -> str:
        """A page that needs nothing else: texts, formulas, numbers and pictures."""
        from regard.claims._page import page

        return page(self)

    def __str__(self) -> str:
        from regard.claims._table import table

        return table(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from regard.claims._page import html_table

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
