"""The evidence that was found for one claim, and the verdict that follows from it."""

from dataclasses import dataclass
from typing import Any

from regard.claims._claim import Claim, Evidence, Verdict
from regard.claims._proofs import Theorem, theorems_about
from regard.claims.prose import as_line


@dataclass(frozen=True)
class Row:
    """One claim and its evidence.

    Attributes:
        claim: the claim that was examined.
        says: evidence for the statement as in its source; None if it did not run.
        true: evidence for the statement under its condition, or for what is true instead.
        mutant: evidence for the wrong variant.
        seconds: the run time.
        smoke: whether the check only ran at a tiny scale, which says nothing about the claim.
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
        """The verdict that follows from the evidence; None without evidence."""
        if self.says is None or self.smoke:
            return None
        if self.says.accepted:
            return "holds"
        if self.claim.condition is not None and self.true is not None and self.true.accepted:
            return "holds under"
        return "fails"

    @property
    def verdict(self) -> Verdict:
        """The computed verdict, or the recorded one if the check did not run."""
        return self.computed or self.claim.verdict

    @property
    def mutant_rejected(self) -> bool | None:
        return None if self.mutant is None or self.smoke else not self.mutant.accepted

    @property
    def agrees(self) -> bool:
        """Whether record and evidence agree: same verdict, correction accepted (if there is one), mutant rejected."""
        if not self.ran:
            return True
        if any(found is not None and found.broke for found in (self.says, self.true, self.mutant)):
            return False
        # The correction of a false statement must be accepted.
        proved = self.computed != "fails" or (
            self.claim.instead is not None and self.true is not None and self.true.accepted
        )
        return self.computed == self.claim.verdict and proved and bool(self.mutant_rejected)

    @property
    def condition(self) -> str | None:
        """The condition under which it holds, if it needs one."""
        return as_line(self.claim.condition.text) if self.claim.condition and self.verdict == "holds under" else None

    @property
    def instead(self) -> str | None:
        """What is true instead, if the statement fails."""
        return as_line(self.claim.instead.text) if self.claim.instead and self.verdict == "fails" else None

    @property
    def proved(self) -> tuple[Theorem, ...]:
        """The machine-checked theorems about the claim."""
        return theorems_about(self.claim.id)

    @property
    def evidence(self) -> str:
        """In one line."""
        claim, says = self.claim, self.says
        if says is None:
            return "not run: it trains a model (--slow)"
        if self.smoke:
            return "run at a tiny scale, which says nothing about the claim (--slow runs it in full)"
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
            "statement": as_line(self.claim.statement),
            "verdict": self.verdict,
            "condition": self.condition,
            "instead": self.instead,
            "evidence": self.evidence,
            "mutant_rejected": self.mutant_rejected,
            "slow": self.claim.slow,
            "ran": self.ran,
            "proved": [
                {"theorem": theorem.title, "does": theorem.does(self.claim.id), "says": theorem.says}
                for theorem in self.proved
            ],
        }
