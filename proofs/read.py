"""Read the proofs as text: every statement, the sentence above it, and words that no finished proof contains.

Used by the tests and by the page of the documentation; nothing here needs Coq.
"""

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
STATED = ("Theorem", "Corollary")  # what is meant to be read; a Lemma is a step on the way
# Whatever would let a theorem rest on something unproved, or switch a check of Coq's off.
FORBIDDEN = (
    "Admitted", "admit", "give_up", "Abort", "Axiom", "Axioms", "Parameter", "Parameters", "Conjecture", "Conjectures",
    "Declare Module", "Unset Guard Checking", "Unset Positivity Checking", "Unset Universe Checking", "bypass_check",
    "Obligation", "Undo",
)  # fmt: skip
# Allowed inside a section alone, where closing it turns them into hypotheses of the theorem.
LOCAL = ("Variable", "Variables", "Hypothesis", "Hypotheses", "Context")
_COMMENT = re.compile(r"\(\*.*?\*\)", re.DOTALL)
_STATEMENT = re.compile(
    r"^(?P<kind>Theorem|Corollary|Lemma)\s+(?P<name>[A-Za-z_][\w']*)(?P<statement>.*?)\.\s*\nProof\b",
    re.DOTALL | re.MULTILINE,
)
_ABOVE = re.compile(r"\(\*\*(?P<text>(?:(?!\*\)).)*)\*\)\s*\Z", re.DOTALL)


class Statement(NamedTuple):
    """One statement of a file: its kind, name, text in Coq with the hypotheses of the sections that it stands in, and the
    sentence above it ("" where there is none)."""

    file: str
    kind: str
    name: str
    coq: str
    says: str


def files() -> list[str]:
    """The files that are built, in order: those that ``_CoqProject`` names."""
    return re.findall(r"^\w+\.v$", (HERE / "_CoqProject").read_text("utf-8"), re.MULTILINE)


def source(file: str) -> str:
    return (HERE / file).read_text("utf-8")


def statements(file: str, text: str | None = None) -> list[Statement]:
    """Every theorem, corollary and lemma of a file, in order."""
    text = source(file) if text is None else text
    found = []
    for match in _STATEMENT.finditer(text):
        above = _ABOVE.search(text, 0, match.start())
        says = "" if above is None else " ".join(above["text"].split())
        coq = "".join(f"{line}\n" for line in _hypotheses(text[: match.start()]))
        coq += f"{match['kind']} {match['name']}{match['statement']}."
        found.append(Statement(file, match["kind"], match["name"], coq, re.sub(r"\[([^][]+)\]", r"`\1`", says)))
    return found


def _hypotheses(before: str) -> list[str]:
    """The hypotheses that are in force at the end of a text: those of the sections that are still open."""
    stack: list[list[str]] = [[]]
    for match in re.finditer(r"^(Section|End|Hypothes[ei]s) .*?\.$", before, re.DOTALL | re.MULTILINE):
        if match[1] == "Section":
            stack.append([])
        elif match[1] == "End" and len(stack) > 1:
            stack.pop()
        else:
            stack[-1].append(match[0])
    return [line for lines in stack for line in lines]


def sentence(statement: Statement) -> str:
    """What a statement says, without the id of the claim that a counterexample begins with."""
    return re.sub(r"^[a-z]\w*-[a-z0-9-]+: ", "", statement.says)


def theorems(file: str, text: str | None = None) -> list[Statement]:
    """What the file states for its readers: theorems and corollaries."""
    return [statement for statement in statements(file, text) if statement.kind in STATED]


def unfinished(text: str) -> list[str]:
    """Words in a source, outside comments, that no finished proof contains; and assumptions outside any section.

    >>> unfinished("Lemma a : False. Proof. Admitted. (* Axiom *)")
    ['Admitted']
    >>> unfinished("Section S. Variable x : nat. End S. Hypothesis h : False.")
    ['Hypothesis outside a section']
    """
    code = _COMMENT.sub(" ", text)
    found = [word for word in FORBIDDEN if re.search(rf"(?<![\w.]){re.escape(word)}\b", code)]
    open_sections: list[str] = []
    for match in re.finditer(rf"(?:^|\.\s)\s*(Section|End|{'|'.join(LOCAL)})\s+([\w']+)?", code):
        if match[1] == "Section":
            open_sections.append(match[2])
        elif match[1] == "End" and match[2] in open_sections:
            open_sections.remove(match[2])
        elif match[1] in LOCAL and not open_sections:
            found.append(f"{match[1]} outside a section")
    return found
