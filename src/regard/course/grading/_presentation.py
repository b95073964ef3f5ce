"""Output formats of marks: text, Gradescope's JSON, a table, and a sheet for grading by hand."""

import csv
import io
from collections.abc import Iterable
from typing import Any

from regard.course.grading._grade import Marks, Result
from regard.course.grading._package import Package


def as_text(marks: Marks, *, show_hidden: bool = True) -> str:
    """The marks as text for the student."""
    lines = [f"{marks.notebook}: {marks.points:g} of {marks.possible:g} points"]
    for result in marks.results:
        lines.append("")
        if result.manual is not None:
            lines.append(f"{result.title}: read by your teacher, {result.possible:g} points")
            continue
        lines.append(f"{result.title}: {_number(result.points)} of {result.possible:g}")
        lines += ["  " + line for line in _told(result, show_hidden)]
    return "\n".join(lines) + "\n"


def _told(result: Result, show_hidden: bool) -> list[str]:
    failed = [outcome for outcome in result.outcomes if not outcome.passed]
    told: list[str] = []
    for outcome in failed:
        if outcome.hidden and not show_hidden:
            continue
        kind = "hidden check" if outcome.hidden else "check"
        told += f"{kind} “{outcome.check}”: {outcome.message}".split("\n")
    if not failed:
        told.append("all checks passed")
    elif not told:
        told.append("public checks passed; a hidden one did not")
    return told


def as_gradescope(marks: Marks, *, show_hidden: bool = True) -> dict[str, Any]:
    """The results.json that Gradescope reads."""
    tests = []
    for result in marks.results:
        if result.manual is not None:
            continue
        tests.append(
            {
                "name": result.title,
                "score": round(result.points, 4),
                "max_score": result.possible,
                "status": "passed" if result.points == result.possible else "failed",
                "output": "\n".join(_told(result, show_hidden)),
                "visibility": "visible",
            }
        )
    return {"score": round(marks.points, 4), "output": as_text(marks, show_hidden=show_hidden), "tests": tests}


def as_table(all_marks: Iterable[Marks]) -> str:
    """One row for each submission, as CSV."""
    all_marks = list(all_marks)
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    questions = [result.question for result in all_marks[0].results] if all_marks else []
    table.writerow(["student", "points", "possible", *questions])
    for marks in all_marks:
        cells = ["" if result.manual is not None else _number(result.points) for result in marks.results]
        table.writerow([marks.student, _number(marks.points), _number(marks.possible), *cells])
    return file.getvalue()


def as_manual_sheet(all_marks: Iterable[Marks], package: Package) -> str:
    """A sheet for grading written answers: for each question the rubric and the students' answers, in Markdown."""
    all_marks = list(all_marks)
    parts = [f"# {package.notebook}: written answers\n"]
    for question in package.questions:
        if not question.manual:
            continue
        parts.append(f"## {question.title} ({question.points:g} points)\n\n{question.rubric}\n")
        for marks in all_marks:
            answer = marks[question.name].manual or "(no answer)"
            quoted = "\n".join(f"> {line}" for line in answer.split("\n"))
            parts.append(f"### {marks.student or 'answer'}\n\n{quoted}\n\nPoints: ___ of {question.points:g}\n")
    return "\n".join(parts)


def _number(points: float) -> str:
    return f"{points:.2f}".rstrip("0").rstrip(".")
