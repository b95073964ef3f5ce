"""Our docstrings, written for reading in an editor, as the Markdown that the API pages are rendered from.

Formulas (``.. math::``) become ``$$…$$``, roles (``:class:`…```) links, tables of equals signs Markdown tables, doctests
blocks of code, and arguments that share a line one entry each.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from api import links, public_names

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data):`~?([^`]+)`")
_MATH_ROLE = re.compile(r":math:`([^`]+)`")
_RULE = re.compile(r"^\s*=+(?: +=+)+\s*$")
_SHARED = re.compile(r"^(\s+)(\w+(?:, \w+)+): (.*)$")


def to_markdown(text: str, links: Mapping[str, str]) -> str:
    """A docstring in Markdown; ``links`` says which names have a page to link to.

    >>> to_markdown("See :func:`attend`.", {"attend": "regard.attend"})
    'See [`attend`][regard.attend].'
    >>> to_markdown(">>> 1 + 1\\n2", {})
    '```pycon\\n>>> 1 + 1\\n2\\n```'
    """
    text = _MATH_ROLE.sub(r"$\1$", text)
    text = _ROLE.sub(lambda found: _link(found[1], links), text)
    lines = [re.sub("::$", ":", line) if not line.lstrip().startswith("..") else line for line in text.splitlines()]
    for step in (_formulas, _tables, _doctests, _arguments):
        lines = step(lines)
    return "\n".join(lines)


def _link(name: str, links: Mapping[str, str]) -> str:
    short = name.removeprefix("regard.").rpartition(".")[2]
    return f"[`{short}`][{links[short]}]" if short in links else f"`{short}`"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _formulas(lines: list[str]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.lstrip().startswith(".. math::"):
            found.append(line)
            at += 1
            continue
        parts = [line.partition(".. math::")[2].strip()]
        at += 1
        while at < len(lines) and (not lines[at].strip() or _indent(lines[at]) > _indent(line)):
            parts.append(lines[at].strip())
            at += 1
        margin = " " * _indent(line)
        found += ["", f"{margin}$${' '.join(filter(None, parts))}$$", ""]
    return found


def _tables(lines: list[str]) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(lines):
        if not _RULE.match(lines[at]):
            found.append(lines[at])
            at += 1
            continue
        rules = [at, *[i for i in range(at + 1, len(lines)) if _RULE.match(lines[i])][:2]]
        last = next((i for i in rules[1:] if i + 1 == len(lines) or not lines[i + 1].strip()), rules[-1])
        rules = [i for i in rules if i <= last]
        spans = [(mark.start(), mark.end()) for mark in re.finditer("=+", lines[at])]
        margin = " " * spans[0][0]
        body = [_cells(line, spans) for i, line in enumerate(lines[at:last], at) if i not in rules]
        rows: list[list[str]] = []
        for cells in body:
            if cells[0] or not rows:
                rows.append(cells)
            else:  # a line that goes on
                rows[-1] = [" ".join(filter(None, pair)) for pair in zip(rows[-1], cells, strict=True)]
        head = rows.pop(0) if len(rules) == 3 else [""] * len(spans)
        shown = [head, ["---"] * len(spans), *rows]
        found += ["", *(f"{margin}| {' | '.join(row)} |" for row in shown), ""]
        at = last + 1
    return found


def _cells(line: str, spans: list[tuple[int, int]]) -> list[str]:
    ends = [start for start, _ in spans[1:]] + [max(len(line), spans[-1][1])]
    return [line[start:end].strip().replace("|", r"\|") for (start, _), end in zip(spans, ends, strict=True)]


def _doctests(lines: list[str]) -> list[str]:
    found: list[str] = []
    inside = False
    margin = ""
    for line in lines:
        if not inside and line.lstrip().startswith(">>> "):
            inside, margin = True, " " * _indent(line)
            found.append(f"{margin}```pycon")
        elif inside and not line.strip():
            inside = False
            found.append(f"{margin}```")
        found.append(line)
    return [*found, f"{margin}```"] if inside else found


def _arguments(lines: list[str]) -> list[str]:
    """``a, b: text`` inside a section becomes an entry for a and one for b."""
    found: list[str] = []
    inside = False
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.strip() in ("Args:", "Attributes:"):
            inside = True
        elif inside and line.strip() and not line.startswith(" "):
            inside = False
        shared = _SHARED.match(line) if inside else None
        at += 1
        if shared is None:
            found.append(line)
            continue
        margin, names, text = shared.groups()
        more = []
        while at < len(lines) and lines[at].strip() and _indent(lines[at]) > len(margin):
            more.append(lines[at])
            at += 1
        for name in names.split(", "):
            found += [f"{margin}{name}: {text}", *more]
    return found


class Docstrings(griffe.Extension):
    """Rewrites every docstring once it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.links = links(public_names())

    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value, self.links)
