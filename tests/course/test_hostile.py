"""Nobody gets points without an answer; an honest answer never loses one; and nothing hidden gets out."""

import re
import sys
import time

import course_notebooks as course
import pytest
from hostile import HOSTILE

from regard.course.grading import Submission


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


def test_a_long_line_that_is_no_python_is_read_in_linear_time():
    """It is read in the grader's own process, which has no limit."""
    begin = time.process_time()
    Submission([("code", " " * 60_000 + "$")])
    assert time.process_time() - begin < 5


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
    "names of a star": ["from math import *\n" + SOFT.replace("e / e", "pi * e / pi / e")],
    "values built by methods": [
        "axes = []\nfor axis in (3, -1):\n    axes.append(axis)\nparts = {}\nparts.update(exp=torch.exp)",
        SOFT.replace("(-1,", "(axes[1],").replace("(z - z", "parts['exp'](z - z").replace(").exp()", ")"),
    ],
    "imports and functions inside of statements": [
        "try:\n    from math import e as number\nexcept ImportError:\n    number = None\nmatch -1:\n    case last:\n        pass",
        "for axis in (last,):"
        + SOFT.replace("(-1,", "(axis,").replace("e / e", "number * e / number / e").replace("\n", "\n    "),
    ],
    "commands of IPython": [
        "%%time"
        + SOFT.replace("z = ", "remainder = (7\n                 % 4)\n    z = ")
        + "if True:\n    %timeit -n1 softargmax(torch.ones(3))\nsoftargmax?\n"
    ],
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


READERS = {
    "torch's own reader": "return torch.from_file('/etc/passwd', size=9, dtype=torch.uint8)",
    "its operator": "return torch.ops.aten.from_file('/etc/passwd', False, 9, dtype=torch.uint8)",
    "a C library": "import readline as r; r.read_history_file('/etc/passwd'); raise ValueError(r.get_history_item(1))",
    "Python": "return open('/etc/passwd').read()",
}


@pytest.mark.parametrize("way", READERS)
def test_no_way_to_read_a_file_gets_anything_out(way):
    """A message after a public check shows a student's own error: it must not be a file of the teacher's."""
    result = course.result_of(course.NAMES[0], "softargmax", [f"def softargmax(scores, beta=1.0):\n    {READERS[way]}"])
    assert result.points == 0
    assert "root:" not in course.messages(result)
    assert re.search("may not|Permission denied", course.messages(result))


REACHES = {
    "a handle of the parent": "os.pidfd_open(os.getppid())",
    "a signal to anyone": "signal.pidfd_send_signal(0, 9)",
    "the parent's priority": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "another program": "os.execv('/bin/true', ['true'])",
    "shared memory": "torch.zeros(3).share_memory_()",
}


@pytest.mark.skipif(sys.platform != "linux", reason="the rules are those of Linux")
@pytest.mark.parametrize("way", REACHES)
def test_other_processes_cannot_be_reached(way):
    """Below Python's own events: a student who ends other students' processes would take their points."""
    cell = f"import os, signal\ndef softargmax(scores, beta=1.0):\n    {REACHES[way]}\n    raise ValueError('reached')"
    result = course.result_of(course.NAMES[0], "softargmax", [cell])
    assert result.points == 0
    assert "reached" not in course.messages(result).replace("raise ValueError('reached')", "")


WIRE = """
import os, struct
def softargmax(scores, beta=1.0):
    tree = {tree}
    body = struct.pack("<I", len(tree)) + tree
    data = struct.pack("<I", len(body)) + body
    for number in range(3, 64):
        try:
            rest = data
            while rest:
                rest = rest[os.write(number, rest):]
        except OSError:
            pass
    return scores
"""
MESSAGES = {
    "no kind": """b'[["text"]]'""",
    "a call by a word": """b'{"dict": [[{"text": "call"}, {"text": "x"}], [{"text": "args"}, {"list": []}]]}'""",
    "a value that takes much memory": """b"[" + b"{}," * 10**6 + b"0]\"""",
    "a tensor of any size": """b'{"tensor": ["torch.float32", [4611686018427387904, 4], 0, false]}'""",
    "a deep value": """b'{"list":[' * 5000 + b"1" + b"]}" * 5000""",
}


@pytest.mark.parametrize("kind", MESSAGES)
def test_what_is_no_message_costs_its_own_points(kind):
    result = course.result_of(course.NAMES[0], "softargmax", [WIRE.replace("{tree}", MESSAGES[kind])])
    assert result.points == 0
    assert "did not return data" in course.messages(result)
