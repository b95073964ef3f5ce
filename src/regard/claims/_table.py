"""Claims as text: a table of many, or everything about one. In a notebook the table is HTML."""

import shutil
import textwrap
from collections.abc import Sequence
from html import escape

from regard.claims._claim import SOURCES, VERDICTS
from regard.claims._row import Row
from regard.claims.prose import as_line, as_text, inline_html
from regard.support.tables import text_table
from regard.support.text import format_number


def table(found: Sequence[Row], width: int | None = None) -> str:
    """Id, source, verdict and evidence, wrapped to the width of the terminal."""
    if not len(found):
        return "no claims"
    width = width or max(80, shutil.get_terminal_size((120, 40)).columns)
    rows = [("claim", "in", "verdict", "evidence")]
    for row in found:
        condition = "" if row.condition is None else f"[{row.condition}] "
        rows.append((row.claim.id, row.claim.source, row.verdict, condition + row.evidence))
    return "\n".join([*text_table(rows, width=width), "", textwrap.fill(summary(found), width)])


def html_table(found: Sequence[Row]) -> str:
    """The same table as HTML, which a notebook shows."""
    lines = []
    for row in found:
        verdict = f'<span class="verdict {row.verdict.replace(" ", "-")}">{row.verdict}</span>'
        verdict += "<br>machine-checked" if row.proved else ""
        condition = "" if row.claim.condition is None else f"[{inline_html(row.claim.condition.text)}] "
        cells = (row.claim.id, row.claim.source, verdict, condition + escape(row.evidence))
        lines.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "<tr><th>claim</th><th>in</th><th>verdict</th><th>evidence</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def summary(found: Sequence[Row]) -> str:
    """How many claims hold, hold under a condition and fail; and where evidence and record disagree."""
    counts = ", ".join(f"{sum(row.verdict == verdict for row in found)} {verdict}" for verdict in VERDICTS)
    waiting = sum(not row.ran for row in found)
    wrong = [row.claim.id for row in found if not row.agrees]
    text = f"{len(found)} claims: {counts}"
    text += f"; {waiting} not run (they train a model: --slow)" if waiting else ""
    proved = sum(bool(row.proved) for row in found)
    text += f"; {proved} with machine-checked theorems" if proved else ""
    return text + (
        f"; evidence and record DISAGREE on {', '.join(wrong)}" if wrong else "; evidence agrees with the record"
    )


def details(row: Row, width: int | None = None) -> str:
    """Everything about one claim: statement, what is true, derivation and measurements."""
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
        result = ("accepted" if found.accepted else "rejected") if not row.smoke else "only run at a tiny scale"
        parts.append(f"Evidence on {name}: {result}. {found.line}")
        if found.counterexample and found.counterexample != found.line:
            parts.append(f"  counterexample: {found.counterexample}")
        parts += [f"  {key.replace('_', ' ')}: {format_number(value)}" for key, value in found.numbers.items()]
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


def _true_name(row: Row) -> str:
    return "the statement with its condition" if row.claim.condition is not None else "what is true instead"


def _block(name: str, markdown: str, width: int) -> str:
    paragraphs = [textwrap.fill(" ".join(as_text(part).split()), width, initial_indent="  ", subsequent_indent="  ")
                  for part in markdown.split("\n\n")]  # fmt: skip
    return f"\n{name}\n" + "\n".join(paragraphs)
