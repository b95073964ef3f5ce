"""What is committed is what the sources give, and the guide says what is in it."""

import ast
import csv
import json
import os
import re
import subprocess
import sys
import zipfile

import course_notebooks as course
import nbformat
import pytest

import regard.course
from regard.claims import SHEETS
from regard.course.grading import Package, checks_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Otter's and Jupyter's own


@pytest.mark.parametrize("name", course.NAMES)
def test_committed_files_are_in_step_with_their_source(name):
    assert course.build().differences(name, course.built(name)) == []


def test_a_change_of_the_source_shows(monkeypatch, tmp_path):
    name = course.NAMES[0]
    changed = course.notebook(name, "student")
    changed.cells[1].source += " changed"
    (tmp_path / "student").mkdir()
    nbformat.write(changed, tmp_path / "student" / f"{name}.ipynb")
    monkeypatch.setattr(course.build(), "STUDENT", tmp_path / "student")
    assert [path.parent.name for path in course.build().differences(name, course.built(name))] == ["student"]


def test_five_notebooks_in_order_each_with_its_checks_in_the_package():
    assert [name[0] for name in course.NAMES] == ["1", "2", "3", "4", "5"]
    assert list(regard.course.notebooks()) == course.NAMES


def test_names_are_unique_over_all_notebooks():
    names = [each.name for name in course.NAMES for each in course.source_package(name).questions]
    assert len(set(names)) == len(names)


def test_the_sheets_name_exercises_that_exist_and_every_exercise_is_named():
    there = {f"{name[0]}/{each.name}" for name in course.NAMES for each in course.source_package(name).questions}
    named = {exercise for questions in SHEETS.values() for each in questions for exercise in each.exercises}
    assert named <= there
    # Steps on the way to an answer, which no sheet asks for by themselves.
    assert there - named == {"1/keep", "2/step", "5/factors", "5/place_scores"}


@pytest.mark.parametrize("name", course.NAMES)
def test_student_version_shows_neither_answers_nor_hidden_checks(name):
    student, solved = course.notebook(name, "student"), course.notebook(name, "solved")
    text = json.dumps(student) + "".join(course.build().public_checks(name).values())
    assert "SOLUTION" not in text
    assert "hidden=True" not in text
    assert "Draw(SEED)" not in text
    assert "Rubric" not in text
    assert "Model answer" not in text
    answers = [cell.source for cell in solved.cells if "otter_assign_solution_cell" in cell.metadata.get("tags", [])]
    shown = [cell.source for cell in student.cells if "otter_answer_cell" in cell.metadata.get("tags", [])]
    assert len(answers) == len(shown) == len(course.source_package(name).questions)
    for answer, prompt in zip(answers, shown, strict=True):
        assert answer != prompt
        assert "Type your answer" in prompt or ast.parse(prompt)  # a half of an answer would be no Python
        assert "..." in prompt or "Type your answer here" in prompt


@pytest.mark.parametrize("name", course.NAMES)
def test_each_question_has_public_and_hidden_checks(name):
    for question in course.source_package(name).questions:
        if question.manual:
            assert re.search(r"\*\*Rubric \(\d+ points.*\*\*Model answer\.\*\*", question.rubric, re.S), question.name
            points = float(re.search(r"Rubric \((\d+)", question.rubric)[1])
            assert points == question.points, question.name
            continue
        checks = checks_of(question.checks)
        assert {check.hidden for check in checks} == {True, False}, question.name
        assert len({check.name for check in checks}) == len(checks)
        hidden = " ".join(" ".join(check.arguments) for check in checks if check.hidden)
        assert "SEED" in hidden or "NUMBERS" in hidden or question.name == "changes", question.name


@pytest.mark.parametrize("name", course.NAMES)
def test_every_picture_of_a_solved_notebook_has_words(name):
    solved = nbformat.read(course.build().SOLVED / f"{name}.ipynb", nbformat.NO_CONVERT)
    pictures = 0
    for cell in solved.cells:
        for output in cell.get("outputs", []):
            assert output.output_type != "error"
            assert "widget" not in " ".join(output.get("data", {}))
            if "image/png" in output.get("data", {}):
                pictures += 1
                assert len(output.metadata["image/png"]["alt"]) > 40
                assert output.data["text/plain"] == output.metadata["image/png"]["alt"]
            if cell.source.startswith("grader.check"):
                assert "public checks passed; hidden ones remain" in output.data["text/plain"], cell.source
    assert pictures > 3
    assert any("regard.course.diagram" in cell.source for cell in solved.cells)


@pytest.mark.parametrize("name", course.NAMES)
def test_first_cell_installs_and_mentions_nothing_local(name):
    first = course.notebook(name, "student").cells[0].source
    assert "regard-*.whl" in first
    assert "Colab" in first
    committed = (course.build().SOLVED / f"{name}.ipynb").read_text()
    assert not re.search(r"/(work|root|home|tmp)/", committed)


def test_a_release_and_numbers_of_ones_own(tmp_path):
    name = course.NAMES[0]
    folder = course.build().assign(name, tmp_path / name, numbers_seed=77, release="https://example.org/regard.whl")
    own = nbformat.read(folder / "student" / f"{name}.ipynb", nbformat.NO_CONVERT)
    assert 'RELEASE = "https://example.org/regard.whl"' in own.cells[0].source
    assert f'Notebook("{name}", numbers=77)' in own.cells[0].source
    published = course.notebook(name, "student")
    changed = [a.source for a, b in zip(own.cells, published.cells, strict=True) if a.source != b.source]
    assert len(changed) == 2  # the first cell, and the worked example
    assert "NUMBER" not in json.dumps(own)
    assert "«" not in json.dumps(own)


def test_hand_outs_share_a_folder_and_the_zip_has_all_it_needs(tmp_path):
    handout = course.build().handout
    wheel = tmp_path / "regard-0.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    folder = tmp_path / "student"
    for name in course.NAMES:
        handout.put(name, course.built(name), folder, course.build().public_checks(name), wheel)
    assert {path.name for path in folder.glob("*.ipynb")} == {f"{name}.ipynb" for name in course.NAMES}
    assert {path.name for path in (folder / "tests").iterdir()} == set(course.NAMES)
    assert (folder / wheel.name).is_file()
    name = course.NAMES[1]
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "torch-9-py3-none-any.whl").write_bytes(b"torch")
    path = handout.autograder(course.package(name), tmp_path / name, wheel, course.ROOT / "constraints.txt", wheels)
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        requirements = archive.read("requirements.txt").decode().split()
        run, setup = archive.read("run_autograder").decode(), archive.read("setup.sh").decode()
        assert Package.from_json(archive.read("checks.json").decode()) == course.package(name)
        assert archive.getinfo("run_autograder").external_attr >> 16 & 0o111
    assert names == {
        "setup.sh", "run_autograder", "checks.json", "requirements.txt", "constraints.txt", wheel.name,
        "wheels/torch-9-py3-none-any.whl",
    }  # fmt: skip
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", line) for line in requirements)
    assert "--no-index" in setup
    assert "rm -f source/checks.json" in run


def test_the_autograder_grades_as_gradescope_runs_it(tmp_path):
    """What its zip holds, unpacked and run, but for the installation: the interpreter is this one."""
    handout, name = course.build().handout, course.NAMES[0]
    wheel = tmp_path / "regard-0.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    path = handout.autograder(course.package(name), tmp_path / name, wheel, course.ROOT / "constraints.txt")
    root = tmp_path / "auto grader"
    with zipfile.ZipFile(path) as archive:
        archive.extractall(root / "source")
    (root / "venv" / "bin").mkdir(parents=True)
    python = root / "venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    (root / "submission").mkdir()
    (root / "submission" / "my answers (1).ipynb").write_text(json.dumps({"cells": [
        {"cell_type": "code", "source": cell} for cell in course.right_cells(name)[:4]
    ]}))  # fmt: skip
    (root / "submission_metadata.json").write_text(json.dumps({"users": [{"email": "ada@example.org"}]}))
    environment = {**os.environ, "AUTOGRADER": str(root), "PYTHONPATH": str(course.ROOT / "src")}
    subprocess.run(["bash", str(root / "source" / "run_autograder")], env=environment, check=True, cwd="/")
    found = json.loads((root / "results" / "results.json").read_text())
    answered = [each for each in course.source_package(name).questions if not each.manual][:4]
    assert found["score"] == sum(each.points for each in answered) > 0
    assert not (root / "source" / "checks.json").exists()  # while a submission runs, nothing hidden is on the disk


def test_students_come_from_a_table(tmp_path):
    path = tmp_path / "students.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["name", "group"], ["ada", "1"], ["o'neill@example.org", "2"]])
    assert list(course.build().students(path)) == ["ada", "o'neill@example.org"]
    path.write_text(path.read_text(), encoding="utf-8-sig")  # as Excel writes it
    assert list(course.build().students(path)) == ["ada", "o'neill@example.org"]
    for names in ("../../etc", "..", "con", "ada ", "", "ada\nADA", "ada\nada", "J\u00f6rg\njo\u0308rg"):
        path.write_text(f'name\n"{names}"\n' if names in ("", "ada ") else f"name\n{names}\n", encoding="utf-8")
        with pytest.raises(ValueError, match="folder"):
            list(course.build().students(path))
    path.write_text("who\nada\n")
    with pytest.raises(ValueError, match="column called name"):
        list(course.build().students(path))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--students", "nobody.csv"], "nobody.csv"),
        (["--students", "no_names.csv"], "column called name"),
        (["--wheels", "no_wheels"], "no_wheels is no folder with wheels"),
    ],
)
def test_a_build_says_what_is_wrong_before_it_begins(options, told, tmp_path, monkeypatch, capsys):
    (tmp_path / "no_names.csv").write_text("who\nada\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["build.py", *options])
    monkeypatch.setattr(course.build(), "assign", lambda *_, **__: pytest.fail("it has begun"))
    with pytest.raises(SystemExit, match="2"):
        course.build().main()
    assert told in capsys.readouterr().err


def test_guide_counts_exercises_and_points():
    guide = (course.ROOT / "notebooks" / "TEACHING.md").read_text(encoding="utf-8")
    for name in course.NAMES:
        questions = course.source_package(name).questions
        counted = sum(each.points for each in questions if not each.manual)
        read = sum(each.points for each in questions if each.manual)
        row = next(line for line in guide.splitlines() if line.startswith(f"| [{name}]"))
        assert f"| {len(questions)}, {counted:g} + {read:g} |" in row, f"{len(questions)}, {counted:g} + {read:g}"
