"""Claims in a terminal: a table of many, or everything about one."""

import shutil
import textwrap
from typing import TYPE_CHECKING

from regard.claims._claim import SOURCES, VERDICTS
from regard.claims._prose import as_line, as_text

if TYPE_CHECKING:
    from regard.claims._run import Row, Verification


def table(found: "Verification", width: int | None = None) -> str:
    """Id, source, verdict and the evidence, wrapped to the width of the terminal."""
    if not len(found):
        return "no claims"
    width = width or max(80, shutil.get_terminal_size((120, 40)).columns)
    names = max(len(row.claim.id) for row in found)
    sources = max(len(row.claim.source) for row in found)
    verdicts = max(map(len, VERDICTS))
    indent = names + sources + verdicts + 6
    head = f"{'claim':{names}}  {'in':{sources}}  {'verdict':{verdicts}}  evidence"
    lines = [head, f"{'─' * names}  {'─' * sources}  {'─' * verdicts}  {'─' * (width - indent)}"]
    for row in found:
        text = row.evidence if row.condition is None else f"[{row.condition}] {row.evidence}"
        wrapped = textwrap.wrap(text, max(30, width - indent)) or [""]
        lines.append(f"{row.claim.id:{names}}  {row.claim.source:{sources}}  {row.verdict:{verdicts}}  {wrapped[0]}")
        lines += [" " * indent + rest for rest in wrapped[1:]]
    return "\n".join([*lines, "", textwrap.fill(summary(found), width)])


def summary(found: "Verification") -> str:
    """How many hold, hold under a condition and fail; and what disagrees."""
    counts = ", ".join(f"{sum(row.verdict == verdict for row in found)} {verdict}" for verdict in VERDICTS)
    waiting = sum(not row.ran for row in found)
    wrong = [row.claim.id for row in found if not row.agrees]
    text = f"{len(found)} claims: {counts}"
    text += f"; {waiting} not run (they train something: --slow)" if waiting else ""
    proved = sum(bool(row.proved) for row in found)
    text += f"; {proved} with machine-checked theorems" if proved else ""
    return text + (
        f"; evidence and record DISAGREE on {', '.join(wrong)}" if wrong else "; evidence agrees with the record"
    )


def details(row: "Row", width: int | None = None) -> str:
    """Everything about one claim: statement, derivation, what is true, and the numbers."""
    width = min(100, width or max(80, shutil.get_terminal_size((100, 40)).columns))
    claim = row.claim
    parts = [
        f"{claim.id}: {row.verdict}",
        f"{SOURCES[claim.source]}, {claim.place}; topic {claim.topic}",
        _block("The statement", claim.statement, width),
    ]
    if claim.true is not None:
        name = "It holds under this condition" if claim.condition is not None else "What is true instead"
        parts.append(_block(name, claim.true.text, width))
    parts.append(_block("Why", claim.derivation, width))
    for name, found in (("the statement", row.says), (_true_name(row), row.true), ("the mutant", row.mutant)):
        if found is None:
            continue
        result = ("accepted" if found.accepted else "rejected") if not row.smoke else "exercised"
        parts.append(f"Evidence on {name}: {result}. {found.line}")
        if found.counterexample and found.counterexample != found.line:
            parts.append(f"  counterexample: {found.counterexample}")
        parts += [f"  {key.replace('_', ' ')}: {number(value)}" for key, value in found.numbers.items()]
    parts.append(f"The mutant says: {as_line(claim.mutant.text)}.")
    if row.proved:
        parts.append("Machine-checked (make proofs):")
        for theorem in row.proved:
            line = f"{theorem.word(claim.id)}: {as_line(theorem.says)} (proofs/{theorem.file}, {theorem.name})"
            parts.append(textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    "))
    if row.says is None or row.smoke:
        parts.append(row.evidence[0].upper() + row.evidence[1:] + ".")
    elif not row.agrees:
        parts.append(f"Evidence and record DISAGREE: {claim.verdict!r} is on record.")
    return "\n".join(parts)


def _true_name(row: "Row") -> str:
    return "the statement with its condition" if row.claim.condition is not None else "what is true instead"


def _block(name: str, markdown: str, width: int) -> str:
    paragraphs = [textwrap.fill(" ".join(as_text(part).split()), width, initial_indent="  ", subsequent_indent="  ")
                  for part in markdown.split("\n\n")]  # fmt: skip
    return f"\n{name}\n" + "\n".join(paragraphs)


def number(value: object) -> str:
    """A measured number, or several, to four digits."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(number, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {number(entry)}" for key, entry in value.items())
    return str(value)
