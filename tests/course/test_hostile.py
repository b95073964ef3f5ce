"""Nobody gets points without an answer; an honest answer never loses one; and nothing hidden gets out."""

import re

import course_notebooks as course
import pytest
from hostile import HOSTILE


def test_there_are_thirty():
    assert len(HOSTILE) >= 30


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_submissions_gain_nothing(kind):
    hostile = HOSTILE[kind]
    for question in hostile.questions:
        result = course.result_of(hostile.notebook, question, [hostile.cell], seconds=hostile.seconds)
        assert result.points == 0, course.messages(result)


def test_after_all_of_them_an_honest_submission_gets_full_marks():
    name = course.NAMES[0]
    course.result_of(name, "softargmax", [HOSTILE["kills the others"].cell])
    marks = course.marks_of(name, course.right_cells(name))
    assert marks.points == marks.possible


def test_a_loop_costs_its_own_points_only():
    name = course.NAMES[0]
    cells = [*course.right_cells(name), "def softargmax(scores, beta=1.0):\n    while True:\n        pass\n"]
    marks = course.marks_of(name, cells, seconds=1.0)
    assert marks.points == marks.possible - marks["softargmax"].possible
    assert "took too" in course.messages(marks["softargmax"])


def test_an_earlier_slip_costs_once():
    name = course.NAMES[0]
    cells = [cell.replace("scores = beta * scores", "scores = scores") for cell in course.right_cells(name)]
    marks = course.marks_of(name, cells)
    lost = {result.question for result in marks.results if result.points < result.possible and result.manual is None}
    assert lost == {"softargmax"}


SOFT = """
def softargmax(scores, beta=1.0):
    z = beta * scores
    e = (z - z.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)
"""
HONEST = {
    "helpers in other cells": [
        "import torch as T\nSMALL = 1e-9",
        "%time\n!ls\nfigure = plt.figure()\nprint(undefined_name)\n1 / 0",
        "def biggest(x):\n    return x.max(-1, keepdim=True).values",
        "def powers(x):\n    return T.exp(x - biggest(x))",
        "def softargmax(scores, beta=1.0):\n    p = powers(beta * scores)\n    return p / p.sum(-1, keepdim=True)",
    ],
    "written twice": ["def softargmax(scores, beta=1.0):\n    return None", SOFT],
    "a class and a lambda": [
        """
class Soft:
    def __call__(self, z):
        e = torch.exp(z - torch.amax(z, -1, True))
        return torch.einsum("...i,...->...i", e, 1 / e.sum(-1))
soft = Soft()
""",
        "softargmax = lambda scores, beta=1.0: soft(beta * scores)",
    ],
    "with modules of Python's own": [
        "from fractions import Fraction\nimport statistics, itertools, random\nfrom typing import Any\nimport einops",
        "one = float(Fraction(1, 1) * statistics.mean([1, 1]) * next(itertools.count(1)))",
        SOFT.replace("e / e", "one * e / e").replace("z = ", "z: Any = "),
    ],
    "under an if": ["if True:" + SOFT.replace("\n", "\n    ")],
    "another cell does not parse": ["def broken(:\n    pass", "from math import *\n" + SOFT],
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_answer_never_loses_a_point(kind):
    result = course.result_of(course.NAMES[0], "softargmax", HONEST[kind])
    assert result.points == result.possible, course.messages(result)


def test_hidden_numbers_do_not_get_out_by_any_message():
    cell = """
class Leak1234567(Exception):
    pass
def softargmax(scores, beta=1.0):
    raise Leak1234567("inputs " + str(scores.flatten().tolist()) + str(beta))
"""
    result = course.result_of(course.NAMES[0], "softargmax", [cell])
    told = [outcome.message for outcome in result.outcomes if outcome.hidden]
    assert told
    for message in told:
        assert not re.search(r"\d|Leak|inputs", message), message
    assert any("your line" in outcome.message for outcome in result.outcomes if not outcome.hidden)


def test_advice_of_hidden_checks_is_the_same_for_every_seed():
    import ast

    for name in course.NAMES:
        for question in course.source_package(name).questions:
            for function in ast.parse(question.checks or "pass").body:
                hidden = isinstance(function, ast.FunctionDef) and "hidden=True" in ast.unparse(
                    function.decorator_list[0]
                )
                for node in ast.walk(function) if hidden else ():
                    if isinstance(node, ast.Dict):
                        assert not any(isinstance(key, ast.JoinedStr) for key in node.keys), (name, question.name)
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == "Advice":
                        assert isinstance(node.args[0], ast.Constant)


def test_a_file_that_is_no_notebook_is_said_to_be_none(tmp_path):
    from regard.course.grading import grade_files

    path = tmp_path / "broken.ipynb"
    path.write_text("not JSON")
    (marks,) = grade_files([(path, "ada")], course.source_package(course.NAMES[1]), jobs=1)
    assert marks.points == 0
    assert "is not a notebook" in course.messages(marks.results[0])


def test_seeds_are_one_for_each_student_and_need_the_secret():
    package = course.source_package(course.NAMES[0])
    assert package.seed("ada") == package.seed("ada")
    assert len({package.seed(name) for name in ("ada", "alan", "grace")}) == 3
    assert course.source_package(course.NAMES[0], "another").seed("ada") != package.seed("ada")
