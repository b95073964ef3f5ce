"""Read a notebook's source: its questions, with answers, checks and rubrics, as the package that grades it."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jupytext
import nbformat
import yaml
from nbformat import NotebookNode

import regard
from regard.course import numbers
from regard.course.grading import Package, Question

PLACEHOLDER = re.compile(r"«(\w+)»|\bNUMBER_(\w+)")  # in text, in code


def read(path: Path, numbers_seed: int = 0) -> NotebookNode:
    """The source as a notebook, with the numbers of its statements filled in."""
    notebook = jupytext.read(path)
    found = numbers(path.stem, numbers_seed)
    for cell in notebook.cells:
        cell.source = PLACEHOLDER.sub(lambda match: str(found[match[1] or match[2]]), cell.source)
        cell.source = cell.source.replace(
            f'Notebook("{path.stem}")', f'Notebook("{path.stem}", numbers={numbers_seed})'
        )
    return notebook


def package(path: Path, secret: str, *, students: Iterable[str] = ()) -> Package:
    """Everything that grades the notebook of this source."""
    notebook = read(path)
    questions = [_question(part) for part in _parts(notebook)]
    first = next(cell.source for cell in notebook.cells if cell.cell_type == "code")
    lines = first.split("\n")
    kept = [line for line in lines[lines.index("import math") :] if _is_prelude(line)]
    return Package(path.stem, regard.__version__, "\n".join(kept), [], secret, questions, list(students))


def given(student: NotebookNode) -> list[str]:
    """The code of a student's notebook that is no answer."""
    return [
        cell.source
        for cell in student.cells
        if cell.cell_type == "code" and "otter_answer_cell" not in cell.metadata.get("tags", [])
    ]


def _is_prelude(line: str) -> bool:
    return re.match(r"(import|from) ", line) is not None and "regard" not in line


def _parts(notebook: NotebookNode) -> list[list[NotebookNode]]:
    """The cells of each question, its markers included."""
    parts: list[list[NotebookNode]] = []
    inside = False
    for cell in notebook.cells:
        if cell.cell_type == "raw" and "BEGIN QUESTION" in cell.source:
            parts.append([])
            inside = True
        if inside:
            parts[-1].append(cell)
        if cell.cell_type == "raw" and "END QUESTION" in cell.source:
            inside = False
    return parts


def _question(cells: list[NotebookNode]) -> Question:
    config = yaml.safe_load(cells[0].source)
    sections: dict[str, list[NotebookNode]] = {"TEXT": [], "SOLUTION": [], "TESTS": []}
    section = "TEXT"
    for cell in cells[1:]:
        if cell.cell_type != "raw":
            sections[section].append(cell)
        elif match := re.search(r"(BEGIN|END) (SOLUTION|TESTS|PROMPT)", cell.source):
            section = match[2] if match[1] == "BEGIN" and match[2] != "PROMPT" else "TEXT"
    title = re.search(r"(?m)^#+ (.+)$", sections["TEXT"][0].source)
    assert title is not None, f"{config['name']} has no heading"
    if config.get("manual"):
        rubric = "\n\n".join(cell.source for cell in sections["SOLUTION"])
        return Question(config["name"], title[1], float(config["points"]), manual=True, rubric=rubric)
    reference = "\n\n".join(cell.source for cell in sections["SOLUTION"])
    tests = [_with_mark(cell.source) for cell in sections["TESTS"]]
    source = "\n\n".join(["from otter.test_files import test_case", *tests])
    return Question(
        name=config["name"],
        title=title[1],
        points=float(config["points"]),
        names=_bound(reference),
        refused=_refused(source),
        checks=source,
        reference=reference,
    )


def _with_mark(source: str) -> str:
    hidden = source.lstrip().startswith("# HIDDEN")
    code = re.sub(r"^\s*# HIDDEN\n", "", source)
    return f"@test_case(points=None, hidden={hidden})\n{code}"


def _bound(source: str) -> dict[str, str]:
    """What an answer defines."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = "function"
        elif isinstance(node, ast.Assign):
            found |= {target.id: "value" for target in node.targets if isinstance(target, ast.Name)}
    return found


def _refused(source: str) -> list[str]:
    """The kinds of ready-made functions that the checks of a question refuse."""
    kinds: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "without":
            value: Any = ast.literal_eval(node.value)
            kinds |= {value} if isinstance(value, str) else set(value)
    return sorted(kinds)


def public_part(question: Question) -> str:
    """The source of a question's public checks alone."""
    parts = re.split(r"(?m)^(?=@test_case)", question.checks)
    kept = [part.rstrip() + "\n" for part in parts[1:] if "hidden=False" in part.split("\n")[0]]
    return "\n\n".join(kept)


def write_tidy(notebook: NotebookNode, path: Path) -> None:
    """The same bytes every time: numbered cells, no outputs; and none of Otter's marks around solutions."""
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number:03}"
        cell.metadata.pop("lines_to_next_cell", None)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            lines = [line for line in cell.source.split("\n") if not re.fullmatch(r"\s*# (BEGIN|END) SOLUTION", line)]
            cell.source = re.sub(r"(?m) *# SOLUTION$", "", "\n".join(lines))
    nbformat.write(notebook, path)
