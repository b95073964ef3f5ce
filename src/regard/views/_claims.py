"""The ledger of claims: what people say about attention, the verdict, why, and the evidence."""

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

from regard.claims import SOURCES, TOPICS, Claim, Evidence, Row, Verification, all_claims, theorems_about
from regard.claims._page import picture
from regard.claims._prose import as_html, as_line, inline_html
from regard.claims._table import number
from regard.views._payload import Payload


def payload(
    claims: str | Sequence[str] | Verification | None = None, *, run: bool = True, pictures: bool = False
) -> Payload:
    """All claims, or some.

    Args:
        claims: as :func:`regard.verify` takes it (default: all), or what it gave.
        run: examine those that are quick (some ten seconds for all). Without it the recorded verdicts stand alone.
        pictures: whether to draw the evidence as well (another twenty seconds for all, and two megabytes).

    >>> payload("hw4-beta-zero").meta["claims"][0]["verdict"]
    'holds'
    """
    from regard.claims import select, verify

    if isinstance(claims, Verification):
        rows = list(claims)
    elif run:
        rows = list(verify(claims))
    else:
        rows = [Row(claim) for claim in (all_claims() if claims is None else select(claims))]
    entries = [
        {**describe(row.claim), **(found(row, pictures=pictures) if row.says is not None else {})} for row in rows
    ]
    topics = [topic for topic in TOPICS if any(entry["topic"] == topic for entry in entries)]
    return Payload("claims", {"claims": entries, "topics": topics, "sources": SOURCES})


def describe(claim: Claim) -> dict[str, Any]:
    """What is on record: formulas as MathML, which browsers draw by themselves."""
    return {
        "id": claim.id,
        "topic": claim.topic,
        "source": claim.source,
        "place": claim.place,
        "verdict": claim.verdict,
        "slow": claim.slow,
        "statement": _tidy(inline_html(claim.statement)),
        "plain": as_line(claim.statement),
        "condition": None if claim.condition is None else _tidy(inline_html(claim.condition.text)),
        "instead": None if claim.instead is None else _tidy(inline_html(claim.instead.text)),
        "mutant": _tidy(inline_html(claim.mutant.text)),
        "derivation": _tidy(as_html(claim.derivation)),
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


def _tidy(page: str) -> str:
    """Brackets as large as their line (browsers stretch them unless told not to), but for those that are meant to grow;
    and some air after the name of a function.

    >>> _tidy("<mo>(</mo><mi>z</mi>")
    '<mo stretchy="false">(</mo><mi>z</mi>'
    """
    page = re.sub(r"(?<!<mrow>)<mo>([(\[|‖])</mo>|<mo>([(\[|‖])</mo>(?!<mrow>)", _still, page)
    page = re.sub(r"(?<!</mrow>)<mo>([)\]])</mo>|<mo>([)\]])</mo>(?!</mrow>)", _still, page)
    return re.sub(
        r"(?<!<msub>)(?<!<msup>)(?<!subsup>)(?<!frac>)" + _FUNCTION, r'\1<mspace width="0.17em"></mspace>', page
    )


_FUNCTION = r'(<mi mathvariant="normal">(?:exp|log|ln|sin|cos|tanh|erf)</mi>)(?=<m(?:i|n|sub|sup|frac|row|munder)\b)'


def _still(bracket: re.Match[str]) -> str:
    return f'<mo stretchy="false">{bracket[1] or bracket[2]}</mo>'


def found(row: Row, *, pictures: bool = True) -> dict[str, Any]:
    """What examining it found: ``evidence`` in a line, and everything that was measured."""
    true = "with its condition" if row.claim.condition is not None else "what is true instead"
    parts = [
        _part(name, evidence)
        for name, evidence in (("the statement", row.says), (true, row.true), ("the wrong variant", row.mutant))
        if evidence is not None
    ]
    return {
        "verdict": row.verdict,
        "found": {
            "agrees": row.agrees,
            "line": row.evidence,
            "seconds": round(row.seconds, 3),
            "parts": parts,
            "picture": _drawn(row) if pictures else None,
        },
    }


def _part(name: str, evidence: Evidence) -> dict[str, Any]:
    numbers = [[key.replace("_", " "), number(value)] for key, value in evidence.numbers.items()]
    return {
        "name": name,
        "accepted": evidence.accepted,
        "line": evidence.line,
        "counterexample": evidence.counterexample if evidence.counterexample != evidence.line else "",
        "numbers": numbers,
    }


def _drawn(row: Row) -> dict[str, Any] | None:
    """The claim's picture as a data: address, with words for those who do not see it."""
    figure = picture(row)
    if figure is None:
        return None
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=110)
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    return {
        "address": f"data:image/png;base64,{base64.b64encode(memory.getvalue()).decode()}",
        "words": " / ".join(titles) or row.claim.id,
    }
