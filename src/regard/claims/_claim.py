"""A claim: a statement, a check that computes evidence for it, and a wrong variant that the check must reject."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from typing import Any, Literal

from regard.figures.style import Figure

Verdict = Literal["holds", "holds under", "fails"]
VERDICTS: tuple[Verdict, ...] = ("holds", "holds under", "fails")
Effort = Literal["full", "smoke"]

SOURCES = {
    "hw4": "Deep learning, homework 4 (October 2023)",
    "c182": "Data C182, discussion 06 (fall 2024)",
    "ex05": "Exercise 05 (November 2024)",
    "a6": "Assignment 6, attention and transformers (2023)",
    "e182": "EECS 182, discussion 8 (spring 2023)",
    "regard": "regard's own theory page",
}
TOPICS = ("temperature", "scaling", "heads", "positions", "sequences", "encoders", "convolution")


@dataclass(frozen=True)
class Evidence:
    """The result of a check of one variant of a statement.

    Attributes:
        accepted: whether the evidence supports the variant.
        line: the evidence in one line.
        numbers: the measurements, by name.
        counterexample: the smallest counterexample, if the variant is not accepted.
        draw: draws the figure.
        broke: whether the check raised an error; the result then says nothing about the statement.
    """

    accepted: bool
    line: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    counterexample: str = ""
    draw: Callable[[], Figure] | None = None
    broke: bool = False


@dataclass(frozen=True)
class Variant:
    """A statement in words, and as the argument of the check: a formula, a number, a set of cases."""

    text: str
    candidate: Any


@dataclass(frozen=True)
class Claim:
    """One statement of a source, and the check that decides it.

    Attributes:
        id: the source and a short name.
        topic: one of :data:`TOPICS`.
        place: its place in the source.
        verdict: the recorded verdict, which is compared with the evidence.
        statement: the statement in our words, Markdown with LaTeX.
        derivation: why the verdict is what it is, Markdown with LaTeX.
        says: the statement as the argument of the check.
        condition: the statement with the condition that it needs.
        instead: what is true instead.
        mutant: a wrong variant of what is true, which the same check must reject.
        check: a function from a variant's candidate to evidence.
        slow: whether the check trains a model.
    """

    id: str
    topic: str
    place: str
    verdict: Verdict
    statement: str
    derivation: str
    says: Any
    condition: Variant | None
    instead: Variant | None
    mutant: Variant
    check: Callable[..., Evidence]
    slow: bool

    @property
    def true(self) -> Variant | None:
        """What is true, if that is not the statement itself."""
        return self.condition or self.instead

    @property
    def source(self) -> str:
        """The short name of its source, a key of :data:`SOURCES`."""
        return self.id.split("-")[0]

    def examine(self, candidate: Any, effort: Effort = "full") -> Evidence:
        """Run the check on the statement or a variant of it. ``effort="smoke"`` runs slow checks at a tiny scale."""
        return self.check(candidate, effort) if self.slow else self.check(candidate)


_CLAIMS: dict[str, Claim] = {}
Check = Callable[..., Evidence]
Text = tuple[str, Any]


def holds(id: str, place: str, *, says: Any, mutant: Text, slow: bool = False) -> Callable[[Check], Check]:
    """Record a true statement. Decorates its check; the first paragraph of the check's docstring is the statement, the
    rest its derivation."""
    return _recorder(id, place, "holds", says, None, None, mutant, slow)


def holds_under(
    id: str, place: str, *, says: Any, condition: Text, mutant: Text, slow: bool = False
) -> Callable[[Check], Check]:
    """Record a statement that is true only under a condition, which its source leaves out. The check must reject it
    without the condition and accept it with the condition."""
    return _recorder(id, place, "holds under", says, Variant(*condition), None, mutant, slow)


def fails(
    id: str, place: str, *, says: Any, instead: Text, mutant: Text, slow: bool = False
) -> Callable[[Check], Check]:
    """Record a false statement together with what is true instead. The check must reject the first and accept the
    second."""
    return _recorder(id, place, "fails", says, None, Variant(*instead), mutant, slow)


def _recorder(
    id: str,
    place: str,
    verdict: Verdict,
    says: Any,
    condition: Variant | None,
    instead: Variant | None,
    mutant: Text,
    slow: bool,
) -> Callable[[Check], Check]:
    def record(check: Check) -> Check:
        if id in _CLAIMS:
            raise ValueError(f"there are two claims called {id!r}")
        statement, _, derivation = cleandoc(check.__doc__ or "").partition("\n\n")
        if not (statement and derivation):
            raise ValueError(f"the check of {id!r} needs a docstring: the statement, an empty line, the derivation")
        _CLAIMS[id] = Claim(
            id=id,
            topic=check.__module__.split(".")[2],  # regard.claims.<topic>…
            place=place,
            verdict=verdict,
            statement=" ".join(statement.split()),
            derivation=derivation.strip(),
            says=says,
            condition=condition,
            instead=instead,
            mutant=Variant(*mutant),
            check=check,
            slow=slow,
        )
        return check

    return record


def all_claims() -> tuple[Claim, ...]:
    """All claims, sorted by topic, source and place.

    >>> from regard.claims import all_claims
    >>> len(all_claims())
    77
    """
    sources = list(SOURCES)
    order = {
        claim.id: (TOPICS.index(claim.topic), sources.index(claim.source), claim.place) for claim in _CLAIMS.values()
    }
    return tuple(sorted(_CLAIMS.values(), key=lambda claim: order[claim.id]))
