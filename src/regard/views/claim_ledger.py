"""The ledger of claims: each statement about attention with its verdict, its derivation and the evidence."""

from collections.abc import Sequence
from typing import Any

from regard.claims import SOURCES, TOPICS, Claim, Evidence, Row, Verification, picture, select, theorems_about, verify
from regard.claims.prose import as_html, as_line, inline_html
from regard.support.text import format_number
from regard.views._payload import Payload
from regard.views.page import picture_address


def payload(
    claims: str | Sequence[str] | Verification | None = None, *, run: bool | None = None, pictures: bool = False
) -> Payload:
    """All claims, or some.

    Args:
        claims: what :func:`regard.verify` takes (default: all claims) or returns.
        run: check the quick claims now (about ten seconds for all). Otherwise only the recorded verdicts are shown. By
            default, named claims are checked, and a ledger of all claims shows the recorded verdicts.
        pictures: also draw the evidence (for all claims another twenty seconds and two megabytes).

    >>> payload("hw4-beta-zero").meta["claims"][0]["verdict"]
    'holds'
    """
    if isinstance(claims, Verification):
        rows = list(claims)
    else:
        examined = claims is not None if run is None else run
        rows = list(verify(claims)) if examined else [Row(claim) for claim in select(claims)]
    entries = [
        {**_recorded(row.claim), **({} if row.says is None else claim_evidence(row, pictures=pictures))} for row in rows
    ]
    topics = [topic for topic in TOPICS if any(entry["topic"] == topic for entry in entries)]
    return Payload("claims", {"claims": entries, "topics": topics, "sources": SOURCES})


def _recorded(claim: Claim) -> dict[str, Any]:
    """The recorded part of a claim, with formulas as MathML, which browsers display natively."""
    return {
        "id": claim.id,
        "topic": claim.topic,
        "source": claim.source,
        "place": claim.place,
        "verdict": claim.verdict,
        "slow": claim.slow,
        "statement": inline_html(claim.statement),
        "plain": as_line(claim.statement),
        "condition": None if claim.condition is None else inline_html(claim.condition.text),
        "instead": None if claim.instead is None else inline_html(claim.instead.text),
        "mutant": inline_html(claim.mutant.text),
        "derivation": as_html(claim.derivation),
        "proved": [
            {
                "name": theorem.name,
                "file": theorem.file,
                "says": inline_html(theorem.says),
                "does": theorem.does(claim.id),
            }
            for theorem in theorems_about(claim.id)
        ],
    }


def claim_evidence(row: Row, *, pictures: bool = True) -> dict[str, Any]:
    """The verdict and all measured numbers."""
    true = "with its condition" if row.claim.condition is not None else "what is true instead"
    variants = (("the statement", row.says), (true, row.true), ("the wrong variant", row.mutant))
    return {
        "verdict": row.verdict,
        "found": {
            "agrees": row.agrees,
            "line": row.evidence,
            "seconds": round(row.seconds, 3),
            "parts": [_part(name, evidence) for name, evidence in variants if evidence is not None],
            "picture": _drawn(row) if pictures else None,
        },
    }


def _part(name: str, evidence: Evidence) -> dict[str, Any]:
    return {
        "name": name,
        "accepted": evidence.accepted,
        "line": evidence.line,
        "counterexample": evidence.counterexample if evidence.counterexample != evidence.line else "",
        "numbers": [[key.replace("_", " "), format_number(value)] for key, value in evidence.numbers.items()],
    }


def _drawn(row: Row) -> dict[str, Any] | None:
    """The claim's figure, and a description for readers who cannot see it."""
    figure = picture(row)
    if figure is None:
        return None
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    return {"address": picture_address(figure), "words": " / ".join(titles) or row.claim.id}
