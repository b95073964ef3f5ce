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


def test_names_come_from_files_folders_and_a_table(tmp_path, capsys):
    """Copies that Jupyter and macOS make are no submissions, and a numbered download is still that of its folder."""
    name = course.NAMES[1]
    files = ("ada/{}.ipynb", "alan/{} (1).ipynb", "grace.ipynb", "emmy_17_file_/{}.ipynb")
    copies = ("ada/.ipynb_checkpoints/{}-checkpoint.ipynb", "__MACOSX/ada/._{}.ipynb", "ada/._{}.ipynb")
    for file in map(str.format, files + copies, [name] * 7):
        path = tmp_path / "in" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    checks, students, table = (tmp_path / each for each in ("checks.json", "students.csv", "points.csv"))
    checks.write_text(course.source_package(name).to_json())
    students.write_text("name,file\nemmy,emmy_17_file_\nada,ada\nalan,alan\n", encoding="utf-8-sig")
    options = ["--table", str(table), "--jobs", "1", "--students", str(students)]
    assert main([str(checks), str(tmp_path / "in"), *options]) == 0
    assert sorted(row["student"] for row in csv.DictReader(io.StringIO(table.read_text()))) == [
        "ada",
        "alan",
        "emmy",
        "grace",
    ]
    told = capsys.readouterr().err
    assert "grace.ipynb is not in" in told
    assert told.count("is not in") == 1
    students.write_text("name;file\nada;ada\n")
    assert main([str(checks), str(tmp_path / "in"), *options]) == 2
    assert "needs the columns name and file" in capsys.readouterr().err


def test_a_name_in_another_spelling_has_the_same_numbers_and_a_name_not_built_for_is_told(tmp_path, capsys):
    """Macs write accents as signs of their own, and Gradescope knows the address with a capital letter."""
    name = course.NAMES[0]
    package = course.build().assignment.package(
        course.build().SOURCES / f"{name}.py", "s", students=["Jörg@example.org"]
    )
    assert package.numbers_seed("jo\u0308rg@Example.org") == package.numbers_seed("Jörg@example.org") != 0
    assert package.seed("jo\u0308rg@Example.org") == package.seed("Jörg@example.org") != package.seed("ada")
    (tmp_path / "checks.json").write_text(package.to_json())
    for file in ("jo\u0308rg@example.org.ipynb", "ada.ipynb"):
        (tmp_path / file).write_text("{}")
    assert main([str(tmp_path / "checks.json"), str(tmp_path), "--jobs", "1"]) == 0
    told = capsys.readouterr().err
    assert told.count("built for other students") == 1
    assert "'ada'" in told


@pytest.mark.parametrize("cell", ["", "def another_name(scores): pass", "softargmax = None", "softargmax = 3"])
def test_a_missing_function_is_named_by_every_check(cell):
    result = course.result_of(course.NAMES[0], "softargmax", [cell])
    assert {outcome.message.split(":")[0] for outcome in result.outcomes} == {"there is no such answer"}


def test_answers_may_use_the_numbers_that_the_notebook_gives():
    code = {"(1054, 852, -396)": "scores_of(hidden, w_query, w_key)[1]", "(23, 46)": "(hidden @ w_value.T)[0]"}
    marks = marks_of_file(course.NAMES[0], "solved", **code)
    assert marks.points == marks.possible, as_text(marks)


def test_experiments_of_a_student_cost_no_points():
    """They share names with the parameters of answers, but no answer needs them."""
    own = "x = bandwidth = h = 1\nwhile True:\n    x += 1"
    answer = "as_attention = (lambda make: lambda x, *rest: make(x, *rest))(as_attention)"
    cells = [*course.right_cells(course.NAMES[0]), answer, own]
    result = course.result_of(course.NAMES[0], "kernel", cells, seconds=2.0)
    assert result.points == result.possible, course.messages(result)


def test_what_ipython_runs_and_python_does_not_read_costs_no_points():
    """``%time`` keeps what its statement defines; a name for what a command prints is needed by no answer."""
    cells = ["import time\nfiles = !ls", "%time changes = {'input', 'last state', 'output'}\nspent = %timeit -o 1 + 1",
             "%time -p x = 1\nlearned = ['encoder weights', 'decoder weights']"]  # fmt: skip
    result = course.result_of(course.NAMES[1], "changes", cells)
    assert result.points == result.possible, course.messages(result)


def test_what_torch_cannot_load_while_grading_is_named():
    code = "def rnn_step(x, *rest):\n    return torch.func.jvp(torch.tanh, (x,), (x,))"
    result = course.result_of(course.NAMES[1], "step", [code])
    assert "torch's own formulas" in course.messages(result)


def test_a_written_answer_is_all_that_stands_below_its_question(tmp_path):
    """In the given cell, in cells of the student's own, or in both; a byte order mark of the file is none of it."""
    name, title = course.NAMES[1], "2.7 What is kept where"
    for added, told in (((), ""), (("One.", "Two."), "One.\n\nTwo.")):
        notebook = course.notebook(name, "student")
        place = next(number for number, cell in enumerate(notebook.cells) if cell.source.startswith("_Type your"))
        notebook.cells[place + 1 : place + 1] = [nbformat.v4.new_markdown_cell(text) for text in added]
        path = tmp_path / "ada.ipynb"
        path.write_text(nbformat.writes(notebook), encoding="utf-8-sig")
        assert Submission.read(path).text_after(title) == told


def test_command_line_says_what_is_wrong(tmp_path, capsys):
    (tmp_path / "checks.json").write_text("{}")
    assert main([str(tmp_path / "checks.json"), str(tmp_path)]) == 2
    assert "made by make course" in capsys.readouterr().err
    (tmp_path / "checks.json").write_text(course.source_package(course.NAMES[0]).to_json())
    assert main([str(tmp_path / "checks.json"), str(tmp_path)]) == 2
    assert "no notebooks" in capsys.readouterr().err
