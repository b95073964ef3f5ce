"""Graded as a teacher would: solved, blank and wrong notebooks, from files, with a report for each reader."""

import csv
import io
import json
import re

import course_notebooks as course
import nbformat
import pytest

from regard.course.__main__ import main
from regard.course.grading import Submission, as_gradescope, as_manual_sheet, as_table, as_text, grade

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Otter's and Jupyter's own


def marks_of_file(name, form, **changes):
    package = course.package(name)
    notebook = course.notebook(name, form)
    for cell in notebook.cells:
        for old, new in changes.items():
            cell.source = cell.source.replace(old, new)
    submission = Submission([(cell.cell_type, cell.source) for cell in notebook.cells], package.given)
    return grade(submission, package, course.sandbox(10.0), "ada")


@pytest.mark.parametrize("name", course.NAMES)
def test_solved_notebook_gets_full_marks(name):
    marks = marks_of_file(name, "solved")
    assert marks.points == marks.possible > 20, as_text(marks)
    assert all(result.manual for result in marks.results if result.manual is not None)


@pytest.mark.parametrize("name", course.NAMES)
def test_blank_notebook_gets_nothing_and_is_told_where_to_begin(name):
    marks = marks_of_file(name, "student")
    assert marks.points == 0
    for result in marks.results:
        if result.manual is None:
            assert any(not outcome.passed and outcome.message for outcome in result.outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("name", course.NAMES)
def test_solved_notebook_runs_from_top_to_bottom(name, tmp_path):
    path = tmp_path / f"{name}.ipynb"
    notebook = course.notebook(name, "solved")
    for cell in notebook.cells:  # a tenth of the training: what it prints is in the committed notebook
        cell.source = re.sub(r"\b(steps ?= ?\d+)0\b", r"\1", cell.source)
    nbformat.write(notebook, path)
    executed = course.build().run(path, keep=False)
    checks = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.startswith("grader.check")]
    assert len(checks) == len(course.questions(name))
    for cell in checks:
        assert "public checks passed; hidden ones remain" in cell.outputs[0].data["text/plain"]


def test_reports_for_a_student_for_gradescope_and_for_a_reader():
    name = course.NAMES[0]
    slip = {"1 / math.sqrt(query.shape[-1])": "1.0"}
    marks = marks_of_file(name, "solved", **slip)
    assert 0 < marks["attention"].points < marks["attention"].possible
    text = as_text(marks)
    assert "the scores are not divided by √d" in text
    assert "def test_" not in text
    assert "expect(" not in text
    assert "hidden check" in text
    assert "hidden check “" not in as_text(marks, show_hidden=False)
    result = as_gradescope(marks)
    json.dumps(result)
    assert result["score"] == pytest.approx(marks.points, abs=1e-3)
    assert sum(each["max_score"] for each in result["tests"]) == marks.possible
    (row,) = list(csv.DictReader(io.StringIO(as_table([marks]))))
    assert row["student"] == "ada"
    assert float(row["attention"]) == pytest.approx(marks["attention"].points, abs=0.01)
    sheet = as_manual_sheet([marks], course.package(name))
    assert "**Rubric (4 points).**" in sheet
    assert "> " in sheet


def test_command_line_grades_a_folder_with_checks_from_a_pipe(tmp_path, monkeypatch, capsys):
    name = course.NAMES[1]
    for student in ("ada", "alan"):
        (tmp_path / "in" / student).mkdir(parents=True)
        nbformat.write(course.notebook(name, "student"), tmp_path / "in" / student / f"{name}.ipynb")
    monkeypatch.setattr("sys.stdin", io.StringIO(course.package(name).to_json()))
    table = tmp_path / "points.csv"
    assert (
        main(["-", str(tmp_path / "in"), "--table", str(table), "--jobs", "1", "--manual", str(tmp_path / "m.md")]) == 0
    )
    assert "ada: 0 of 28" in capsys.readouterr().out
    assert [row["student"] for row in csv.DictReader(io.StringIO(table.read_text()))] == ["ada", "alan"]
    assert "What is kept where" in (tmp_path / "m.md").read_text()


def test_command_line_says_what_is_wrong(tmp_path, capsys):
    (tmp_path / "checks.json").write_text("{}")
    assert main([str(tmp_path / "checks.json"), str(tmp_path)]) == 2
    assert "made by make course" in capsys.readouterr().err
    (tmp_path / "checks.json").write_text(course.source_package(course.NAMES[0]).to_json())
    assert main([str(tmp_path / "checks.json"), str(tmp_path)]) == 2
    assert "no notebooks" in capsys.readouterr().err
