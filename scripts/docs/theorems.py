"""The list of theorems on the page of the proofs: sentence, statement in Coq, claims and functions, from the files."""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from regard.claims import Theorem, all_claims, theorems

PROOFS = Path(__file__).parents[2] / "proofs"
MARKER = "<!-- theorems -->"


def reader() -> ModuleType:
    """``proofs/read.py``, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("regard_proofs_read", PROOFS / "read.py")
    if spec is None or spec.loader is None:
        raise FileNotFoundError(PROOFS / "read.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def listed() -> str:
    """Every theorem but the certified numbers, by file."""
    read = reader()
    known = {theorem.name: theorem for theorem in theorems()}
    topics = {claim.id: claim.topic for claim in all_claims()}
    parts = []
    for file in read.files():
        title = re.match(r"\(\*\* \* (.*?)\n", read.source(file))
        heading = file if title is None else title[1]
        if file == "certificates.v":
            count = len(read.theorems(file))
            parts.append(f"### {_escaped(heading)}\n\n`proofs/{file}`, {count} of them.\n")
            continue
        parts.append(f"### {_escaped(heading)}\n\n`proofs/{file}`\n")
        for statement in read.theorems(file):
            parts.append(f"#### {statement.name} {{ #{statement.name} }}\n")
            parts.append(f"{_escaped(read.sentence(statement))}\n")
            parts.append(f"```text\n{statement.coq}\n```\n")
            if statement.name in known:
                parts.append(_about(known[statement.name], topics))
    return "\n".join(parts)


def _about(theorem: Theorem, topics: dict[str, str]) -> str:
    words = []
    for verb, claims in (("Proves", theorem.proves), ("Refutes", theorem.refutes)):
        if claims:
            words.append(f"{verb} {_joined([f'[{claim}]({topics[claim]}.md#{claim})' for claim in claims])}.")
    if theorem.functions:
        words.append(f"In the code: {_joined([f'`{name}`' for name in theorem.functions])}.")
    return " ".join(words) + "\n"


def _joined(words: Sequence[str]) -> str:
    return ", ".join(words)


def _escaped(text: str) -> str:
    """Nothing in it is Markdown but `code`."""
    pieces = re.split(r"(`[^`]+`)", text)
    return "".join(
        piece if piece.startswith("`") else re.sub(r"([\\*_|<>$#{}\[\]])", r"\\\1", piece) for piece in pieces
    )
