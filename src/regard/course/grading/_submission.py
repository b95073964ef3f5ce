"""Extract the answer to one question from a submitted notebook: only the statements that it needs."""

import ast
import json
import re
import symtable
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PLACEHOLDER = "_Type your answer here, replacing this text._"  # Otter's


class Statement(NamedTuple):
    """One statement at the top level of a cell.

    Attributes:
        cell: the number of its cell.
        number: its number in the cell.
        binds: the names that it binds or changes at the top level; ``*`` for those of ``from … import *``.
        calls: the names of objects whose methods it calls, which may change them.
        needs: the names in it that may be the notebook's.
    """

    cell: int
    number: int
    binds: frozenset[str]
    calls: frozenset[str]
    needs: frozenset[str]


class Submission:
    """The code and the written answers of a notebook.

    Args:
        cells: (kind, source) of every cell, in order.
        given: sources of the cells that came with the notebook and are not answers; of these, only the numbers that they
            write down are read.
    """

    def __init__(self, cells: Iterable[tuple[str, str]], given: Iterable[str] = ()) -> None:
        known = {_plain(source) for source in given}
        self.cells: list[str] = []
        self.texts: list[str] = []
        self.broken: dict[int, str] = {}
        statements: list[Statement] = []
        own: set[str] = set()  # torch.manual_seed(0) changes nothing of the student's, rows.append(3) may
        for kind, source in cells:
            if kind == "markdown":
                self.texts.append(source)
            if kind != "code":
                continue
            is_given = _plain(source) in known
            number, code = len(self.cells), _without_magic(source)
            self.cells.append(code)
            try:
                body = ast.parse(code).body
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                self.broken[number] = str(error)
                continue
            for index, node in enumerate(body):
                if is_given and not _is_data(node):
                    continue
                statements.append(Statement(number, index, *_names(node)))
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    own |= statements[-1].binds
        self.statements = [each._replace(binds=each.binds | (each.calls & own)) for each in statements]

    @classmethod
    def read(cls, path: Path, given: Iterable[str] = ()) -> "Submission":
        """Read a notebook's file; raises a clear error if it is not a notebook."""
        try:
            notebook = json.loads(path.read_text(encoding="utf-8-sig"))  # editors on Windows add a byte order mark
            cells = [(str(cell["cell_type"]), _text(cell["source"])) for cell in notebook["cells"]]
        except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path.name} is not a notebook: {error}") from None
        return cls(cells, given)

    def answer(self, names: Iterable[str], provided: Iterable[str] = ()) -> list[tuple[str, str, list[int]]]:
        """The statements that define these names and everything they need, cell by cell: (label, source, statements).

        Names that are ``provided`` (correct answers to earlier questions) are not searched for.
        """
        needed, provided = {*names, "*"}, frozenset(provided)
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
        """The written answer to a question: all text after its heading's cell, up to the mark of the question's end; without
        that mark, one cell. Otter's request to type there is no answer."""
        for number, text in enumerate(self.texts):
            if question in text:
                rest = [part.strip() for part in self.texts[number + 1 :]]
                ends = [place for place, part in enumerate(rest) if part.startswith("<!-- END QUESTION")]
                parts = [part for part in rest[: ends[0] if ends else 1] if part != PLACEHOLDER]
                return "\n\n".join(part for part in parts if not part.startswith("<!--"))
        return ""


def _text(source: Any) -> str:
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _plain(source: str) -> str:
    """The text for comparison: without surrounding space and without numbers, which may differ between students."""
    return re.sub(r"-?\d+", "0", "\n".join(line.rstrip() for line in source.strip().split("\n")))


def _is_data(node: ast.stmt) -> bool:
    """Whether a statement gives names to numbers that it writes down, as ``x = torch.tensor([1.0, 2.0])`` does."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
    return isinstance(node, ast.Assign) and names <= {"torch"}


def _without_magic(source: str) -> str:
    """The code without IPython's commands. Only lines that Python cannot read are looked at: one in the middle of a
    statement may begin with ``%``, too."""
    lines = source.split("\n")
    for _ in range(min(100, 10**7 // (1 + len(source)))):  # a hostile cell shall not take long
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            number = min(error.lineno or 1, len(lines)) - 1
            line = lines[number].strip()  # with its indent, the second pattern would take quadratic time
            indent = lines[number][: -len(lines[number].lstrip())]
            if timed := re.fullmatch(r"%time\s+([^-].*)", line):  # what it runs stays in the notebook
                lines[number] = indent + timed[1]
            elif re.fullmatch(r"([\w, ]+=\s*)?[%!].*|\?.*|[\w.]+\?\??", line):
                lines[number] = f"{indent}pass"
            else:
                break
        except (ValueError, RecursionError, MemoryError):
            break
        else:
            break
    return "\n".join(lines)


def _names(node: ast.stmt) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The names that a statement binds or changes at the top level, those whose methods it calls, and those it needs."""
    needs = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & _not_of_functions(node)
    if isinstance(node, DEFINITION):  # what is inside happens in calls
        return frozenset({node.name}), frozenset(), frozenset(needs)
    binds: set[str | None] = set()
    calls: set[str | None] = set()
    for part in ast.walk(node):
        if isinstance(part, DEFINITION | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            binds.add(part.name)
        elif isinstance(part, ast.MatchMapping):
            binds.add(part.rest)
        elif isinstance(part, ast.Import | ast.ImportFrom):
            binds |= {(alias.asname or alias.name).split(".")[0] for alias in part.names}
        elif isinstance(part, ast.Name | ast.Attribute | ast.Subscript) and isinstance(part.ctx, ast.Store | ast.Del):
            binds.add(_root(part))
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            calls.add(_root(part.func))
    return frozenset(filter(None, binds)), frozenset(filter(None, calls)), frozenset(needs)


def _not_of_functions(node: ast.stmt) -> set[str]:
    """The names in a statement, without those that only its functions bind for themselves, such as their parameters."""
    try:
        tables = [symtable.symtable(ast.unparse(node), "<cell>", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # it will fail when it runs
        return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    found: set[str] = set()
    for table in tables:
        tables += table.get_children()
        own = table.get_type() == "function"
        found |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() or not own}
    return found


def _root(part: ast.expr) -> str | None:
    """The ``x`` of ``x``, ``x.y`` and ``x[y].z``; None if it is no name."""
    while isinstance(part, ast.Attribute | ast.Subscript):
        part = part.value
    return part.id if isinstance(part, ast.Name) else None
