"""Claims as one HTML page that needs nothing else: no script, no font, no request."""

import base64
import io
from html import escape
from typing import TYPE_CHECKING

from regard.claims._claim import SOURCES, TOPICS, Evidence
from regard.claims._pictures import errors
from regard.claims._prose import as_html, inline_html
from regard.claims._table import number, summary
from regard.figures._figure import Figure

if TYPE_CHECKING:
    from regard.claims._run import Row, Verification

_STYLE = """
:root { color-scheme: light dark; --rule: #8884; --quiet: #777; --holds: #0072b2; --under: #b07000; --fails: #c04a00; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem .35rem 0; border-bottom: 1px solid var(--rule); }
article { border-top: 1px solid var(--rule); padding: 1rem 0; }
article h3 { margin: 0 0 .2rem; font-family: ui-monospace, monospace; font-size: 1.05rem; }
.verdict { font-weight: 600; white-space: nowrap; }
.holds { color: var(--holds); } .holds-under { color: var(--under); } .fails { color: var(--fails); }
.quiet { color: var(--quiet); font-size: .9rem; }
.wrong { background: #c0000022; padding: .3rem .6rem; }
math[display="block"] { margin: .8rem 0; }
img { max-width: 100%; height: auto; background: #fff; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; font-size: .9rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; }
@media (max-width: 40rem) { dl { display: block; } table { display: block; overflow-x: auto; } }
"""


def page(found: "Verification") -> str:
    """The whole page: a table of all, then each claim with its derivation, numbers and picture."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Claims about attention</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{_STYLE}</style></head><body><h1>Claims about attention</h1><p>{escape(summary(found))}.</p>",
        html_table(found),
    ]
    for topic in TOPICS:
        rows = [row for row in found if row.claim.topic == topic]
        if rows:
            parts.append(f"<section><h2>{topic.capitalize()}</h2>{''.join(map(_article, rows))}</section>")
    return "".join([*parts, "</body></html>\n"])


def html_table(found: "Verification") -> str:
    """The table alone, as a notebook shows it."""
    lines = [
        f'<tr><td><a href="#{row.claim.id}">{row.claim.id}</a></td><td>{row.claim.source}</td>'
        f"<td>{_verdict(row)}{_checked(row)}</td><td>{_condition(row)}{escape(row.evidence)}</td></tr>"
        for row in found
    ]
    head = "<tr><th>claim</th><th>in</th><th>verdict</th><th>evidence</th></tr>"
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>"


def picture(row: "Row") -> Figure | None:
    """The claim's own picture, or how far each variant of it is from what was measured."""
    # What was said beside what was measured tells the most.
    for evidence in (row.says, row.true):
        if evidence is not None and evidence.draw is not None:
            return evidence.draw()
    names = {"the statement": row.says, "what is true": row.true, "the mutant": row.mutant}
    draw = errors(row.claim.id, {name: evidence.numbers for name, evidence in names.items() if evidence is not None})
    return None if draw is None else draw()


def _article(row: "Row") -> str:
    claim = row.claim
    parts = [
        f'<article id="{claim.id}"><h3>{claim.id}</h3><p class="quiet">{_verdict(row)} · '
        f"{escape(SOURCES[claim.source])}, {escape(claim.place)}</p>",
        "" if row.agrees else f'<p class="wrong">Evidence and record disagree: {claim.verdict!r} is on record.</p>',
        f"<p><strong>The statement.</strong> {inline_html(claim.statement)}</p>",
    ]
    if claim.true is not None:
        name = "It holds under this condition" if claim.condition is not None else "What is true instead"
        parts.append(f"<p><strong>{name}.</strong> {inline_html(claim.true.text)}.</p>")
    parts.append(as_html(claim.derivation))
    figure = picture(row)
    if figure is not None:
        alt = f"Picture for {claim.id}: {' / '.join(axes.get_title() for axes in figure.axes if axes.get_title())}"
        parts.append(f'<p><img src="{_data(figure)}" alt="{escape(alt)}"></p>')
    parts.append(f'<p class="quiet">{escape(row.evidence)}</p>')
    parts.append(_numbers("The statement", row.says, row.smoke))
    parts.append(_numbers("With its condition" if row.condition else "What is true", row.true, row.smoke))
    parts.append(_numbers("The mutant", row.mutant, row.smoke, f"{inline_html(claim.mutant.text)}."))
    parts.append(_proofs(row))
    return "".join([*parts, "</article>"])


def _numbers(name: str, evidence: Evidence | None, smoke: bool, text: str = "") -> str:
    if evidence is None:
        return ""
    result = "exercised only" if smoke else "accepted" if evidence.accepted else "rejected"
    lines = {"evidence": evidence.line, "counterexample": evidence.counterexample, **evidence.numbers}
    shown = "".join(
        f"<dt>{escape(key.replace('_', ' '))}</dt><dd>{escape(number(value))}</dd>"
        for key, value in lines.items()
        if value != ""
    )
    return f"<details><summary>{name}: {result}. {text}</summary><dl>{shown}</dl></details>"


def _checked(row: "Row") -> str:
    """A link to the claim's machine-checked theorems, where it has some."""
    return f'<br><a class="quiet" href="#{row.claim.id}-proofs">machine-checked</a>' if row.proved else ""


def _proofs(row: "Row") -> str:
    lines = "".join(
        f"<dt>{theorem.word(row.claim.id)}</dt><dd>{inline_html(theorem.says)} "
        f'<code class="quiet">proofs/{theorem.file}: {theorem.name}</code></dd>'
        for theorem in row.proved
    )
    return f'<div id="{row.claim.id}-proofs"><strong>Machine-checked.</strong><dl>{lines}</dl></div>' if lines else ""


def _verdict(row: "Row") -> str:
    style = row.verdict.replace(" ", "-")
    return f'<span class="verdict {style}">{row.verdict}</span>'


def _condition(row: "Row") -> str:
    return "" if row.claim.condition is None else f"[{inline_html(row.claim.condition.text)}] "


def _data(figure: Figure) -> str:
    memory = io.BytesIO()
    figure.savefig(memory, format="png", dpi=100)
    return f"data:image/png;base64,{base64.b64encode(memory.getvalue()).decode()}"
