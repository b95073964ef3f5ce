"""Extract the answer to one question from a submitted notebook: only the statements that it needs."""

import ast
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple


class Statement(NamedTuple):
    """One statement at the top level of a cell."""

    cell: int
    number: int
    binds: frozenset[str]
    needs: frozenset[str]


class Submission:
    """The code and the written answers of a notebook.

    Args:
        cells: (kind, source) of every cell, in order.
        given: sources of the cells that came with the notebook and are not answers; they are ignored.
    """

    def __init__(self, cells: Iterable[tuple[str, str]], given: Iterable[str] = ()) -> None:
        known = {_plain(source) for source in given}
        self.cells: list[str] = []
        self.texts: list[str] = []
        self.broken: dict[int, str] = {}
        statements: list[Statement] = []
        for kind, source in cells:
            if kind == "markdown":
                self.texts.append(source)
            if kind != "code" or _plain(source) in known:
                continue
            number, code = len(self.cells), _without_magic(source)
            self.cells.append(code)
            try:
                body = ast.parse(code).body
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                self.broken[number] = str(error)
                continue
            statements += [Statement(number, index, *_names(node)) for index, node in enumerate(body)]
        self.statements = statements

    @classmethod
    def read(cls, path: Path, given: Iterable[str] = ()) -> "Submission":
        """Read a notebook's file; raises a clear error if it is not a notebook."""
        try:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            cells = [(str(cell["cell_type"]), _text(cell["source"])) for cell in notebook["cells"]]
        except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path.name} is not a notebook: {error}") from None
        return cls(cells, given)

    def answer(self, names: Iterable[str], provided: Iterable[str] = ()) -> list[tuple[str, str, list[int]]]:
        """The statements that define these names and everything they need, cell by cell: (label, source, statements).

        Names that are ``provided`` (correct answers to earlier questions) are not searched for.
        """
        needed, provided = set(names), frozenset(provided)
        chosen: set[int] = set()
        while True:
            new = {
                number
                for number, statement in enumerate(self.statements)
                if number not in chosen and statement.binds & needed
            }
            if not new:
                break
            chosen |= new
            for number in new:
                needed |= self.statements[number].needs - provided
        by_cell: dict[int, list[int]] = {}
        for number in sorted(chosen):
            by_cell.setdefault(self.statements[number].cell, []).append(self.statements[number].number)
        return [(f"<cell {cell}>", self.cells[cell], indices) for cell, indices in by_cell.items()]

    def syntax_error(self, names: Iterable[str]) -> str | None:
        """Python's message about a syntax error in a cell that mentions one of the names, if any."""
        for cell, error in self.broken.items():
            if any(re.search(rf"\b{re.escape(name)}\b", self.cells[cell]) for name in names):
                return error
        return None

    def text_after(self, question: str) -> str:
        """The written answer to a question: the first text after its heading that is not the heading's own cell."""
        for number, text in enumerate(self.texts):
            if question in text:
                rest = [part for part in self.texts[number + 1 :] if not part.strip().startswith("<!--")]
                return rest[0].strip() if rest else ""
        return ""


def _text(source: Any) -> str:
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _plain(source: str) -> str:
    """The text for comparison: without surrounding space and without numbers, which may differ between students."""
    return re.sub(r"-?\d+", "0", "\n".join(line.rstrip() for line in source.strip().split("\n")))


def _without_magic(source: str) -> str:
    return "\n".join("pass" if re.match(r"[%!?]", line) else line for line in source.split("\n"))


def _names(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a statement binds or changes at the top level, and those it needs."""
    binds, needs = set(), set()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        binds.add(node.name)
    elif isinstance(node, ast.Import | ast.ImportFrom):
        binds |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            needs.add(part.id)
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not inside and isinstance(part.ctx, ast.Store | ast.Del):
                binds.add(part.id)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and isinstance(
            node, ast.If | ast.Try | ast.With
        ):
            binds.add(part.name)
        elif isinstance(part, ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store):
            root: ast.expr = part
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if isinstance(root, ast.Name) and not inside:
                binds.add(root.id)
    return frozenset(binds), frozenset(needs)
