"""The pages of the theory that are generated: every claim by topic, decided anew at each build, and the misconceptions."""

import io
from functools import cache

from regard.claims import SOURCES, TOPICS, Row, Theorem, Verification, answers, misconceptions, picture, verify
from regard.claims.prose import inline_html

WORDS = {
    "temperature": "The inverse temperature β, from uniform weights to a hard choice.",
    "scaling": "Why scores are divided by √d, and what attention costs.",
    "heads": "What one head can and cannot do, what several heads add, and which heads can be removed.",
    "positions": "Order, and the encodings that give attention access to it.",
    "sequences": "Recurrent networks, the bottleneck, and the transformer.",
    "encoders": "Vision transformers and text encoders, parameter by parameter.",
    "convolution": "When attention is convolution, in both directions, with bounds.",
}


@cache
def found() -> Verification:
    """Every claim that trains nothing, examined; a disagreement with the record stops the build."""
    verification = verify()
    wrong = [row.claim.id for row in verification if not row.agrees]
    if wrong:
        raise RuntimeError(f"evidence and record disagree on {', '.join(wrong)}")
    return verification


def pages() -> dict[str, str]:
    """The Markdown of every page, by its path under ``docs``."""
    made = {f"theory/{topic}.md": _topic(topic) for topic in TOPICS}
    made["theory/claims.md"] = _ledger()
    made["misconceptions.md"] = misconceptions(found())
    made |= {f"questions/{name}.md": text for name, text in answers(found()).items()}
    return made


@cache
def pictures() -> dict[str, bytes]:
    """The pictures of those claims that draw one of their own, as PNG, by path."""
    made = {}
    for row in found():
        if any(evidence is not None and evidence.draw is not None for evidence in (row.says, row.true)):
            figure = picture(row)
            if figure is not None:
                memory = io.BytesIO()
                figure.savefig(memory, format="png", dpi=80)
                made[f"theory/pictures/{row.claim.id}.png"] = memory.getvalue()
    return made


def _ledger() -> str:
    counts = {verdict: sum(row.verdict == verdict for row in found()) for verdict in ("holds", "holds under", "fails")}
    sources = "\n".join(f"- **{short}**: {name}" for short, name in SOURCES.items())
    lines = [
        "---\nhide: [toc]\n---\n",  # there are no sections, and formulas need the room
        "# The ledger of claims\n",
        f"{len(found())} statements about attention, from five sets of good teaching material. Each is decided by a check "
        f"that also rejects a wrong variant of it: {counts['holds']} hold, {counts['holds under']} hold under a condition "
        f"that the source does not state, {counts['fails']} fail as they stand. This page was computed when the site was built; "
        f"`regard verify` runs the checks on your machine. {sum(bool(row.proved) for row in found())} statements have theorems "
        f"that a [proof assistant](proofs.md) has checked.\n",
        sources + "\n",
        "| claim | in | verdict | machine-checked | the statement |",
        "|---|---|---|---|---|",
    ]
    for row in found():
        link = f"[`{row.claim.id}`]({row.claim.topic}.md#{row.claim.id})"
        checked = f"[{len(row.proved)}]({row.claim.topic}.md#{row.claim.id})" if row.proved else ""
        lines.append(f"| {link} | {row.claim.source} | {_verdict(row)} | {checked} | {_cell(row.claim.statement)} |")
    return "\n".join(lines) + "\n"


def _topic(topic: str) -> str:
    parts = [f"# {topic.capitalize()}\n", f"{WORDS[topic]} Checked with `regard verify {topic}`.\n"]
    return "\n".join([*parts, *(_entry(row) for row in found() if row.claim.topic == topic)])


def _entry(row: Row) -> str:
    claim = row.claim
    parts = [
        f"## {claim.id} {{ #{claim.id} }}\n",
        f"{_verdict(row)} · {SOURCES[claim.source]}, {claim.place}\n",
        f"**The statement.** {claim.statement}\n",
    ]
    if claim.true is not None:
        name = "It holds under this condition" if claim.condition is not None else "What is true instead"
        parts.append(f"**{name}.** {claim.true.text}.\n")
    parts.append(f"{claim.derivation}\n")
    path = f"pictures/{claim.id}.png"
    if f"theory/{path}" in pictures():
        parts.append(f"![What was measured for {claim.id}]({path})\n")
    evidence = "it trains a model: `regard verify --slow --id " + claim.id + "`" if not row.ran else _code(row.evidence)
    parts.append(f"*Evidence:* {evidence}\n")
    rejected = "" if row.mutant is None else f" {_code(row.mutant.line)}"
    parts.append(f"*Rejected by the same check:* {claim.mutant.text}.{rejected}\n")
    if row.proved:
        parts.append("*Machine-checked:*\n")
        parts.append("".join(f"- {_checked(theorem, claim.id)}\n" for theorem in row.proved))
    return "\n".join(parts)


def _checked(theorem: Theorem, claim: str) -> str:
    says = " ".join(inline_html(theorem.says).split()).replace("*", "&#42;").replace("_", "&#95;")
    return f"{theorem.word(claim)}: {says} ([{theorem.title}](proofs.md#{theorem.name}))"


def _verdict(row: Row) -> str:
    return f'<span class="verdict {row.verdict.replace(" ", "-")}">{row.verdict}</span>'


def _cell(markdown: str) -> str:
    """HTML in one line, formulas in MathML, in which Markdown and its tables find nothing to read."""
    text = " ".join(inline_html(markdown).split())
    return text.replace("|", "&#124;").replace("*", "&#42;").replace("_", "&#95;")


def _code(line: str) -> str:
    """A line of measured numbers, as it is: nothing in it is Markdown."""
    return f"`{line.replace('`', chr(39))}`"
