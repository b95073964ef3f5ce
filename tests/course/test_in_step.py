"""What is committed is what the sources give, and the guide says what is in it."""

import json
import re

import course_notebooks as course
import nbformat
import pytest

import regard.course


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


@pytest.mark.parametrize("name", course.NAMES)
def test_student_version_shows_neither_answers_nor_hidden_checks(name):
    student, solved = course.notebook(name, "student"), course.notebook(name, "solved")
    text = json.dumps(student) + "".join(
        path.read_text() for path in (course.built(name) / "student" / "tests").iterdir()
    )
    assert "SOLUTION" not in text
    assert "hidden=True" not in text
    assert "Draw(SEED)" not in text
    answers = [cell.source for cell in solved.cells if "otter_assign_solution_cell" in cell.metadata.get("tags", [])]
    shown = [cell.source for cell in student.cells if "otter_answer_cell" in cell.metadata.get("tags", [])]
    assert len(answers) == len(shown) == len(course.questions(name))
    for answer, prompt in zip(answers, shown, strict=True):
        assert answer != prompt
        assert "..." in prompt


@pytest.mark.parametrize("name", course.NAMES)
def test_each_question_has_public_and_hidden_checks_with_the_teachers_seed(name):
    config = json.loads((course.built(name) / "autograder" / "otter_config.json").read_text())
    assert (config["seed_variable"], config["seed"]) == ("SEED", course.SEED)
    for question in course.questions(name):
        source = (course.built(name) / "autograder" / "tests" / f"{question}.py").read_text()
        assert "hidden=False" in source
        # A choice between words has nothing to draw.
        assert question == "q3_changes" or ("hidden=True" in source and "SEED" in source)


@pytest.mark.parametrize("name", course.NAMES)
def test_first_cell_installs_and_mentions_nothing_local(name):
    first = course.notebook(name, "student").cells[0].source
    assert '"pip", "install"' in first
    assert f'"{course.build().REQUIREMENT}"' in first
    committed = (course.build().SOLVED / f"{name}.ipynb").read_text()
    assert not re.search(r"/(work|root|home|tmp)/", committed)


def test_the_requirement_can_be_another_one(tmp_path):
    name, requirement = course.NAMES[0], "regard[notebook,train] @ git+https://example.org/regard"
    folder = course.build().assign(name, tmp_path / name, seed=1, requirement=requirement)
    first = nbformat.read(folder / "student" / f"{name}.ipynb", nbformat.NO_CONVERT).cells[0].source
    assert f'"{requirement}"' in first


def test_guide_counts_exercises_and_points():
    guide = (course.ROOT / "notebooks" / "TEACHING.md").read_text(encoding="utf-8")
    for name in course.NAMES:
        points = sum(
            map(int, re.findall(r"(?m)^# points: (\d+)$", (course.build().SOURCES / f"{name}.py").read_text()))
        )
        row = next(line for line in guide.splitlines() if line.startswith(f"| [{name}]"))
        assert f"| {len(course.questions(name))}, {points} |" in row
