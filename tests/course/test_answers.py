"""Right answers pass whatever the seed; each wrong one is told what is wrong; ready-made ones earn nothing."""

import re
from functools import cache

import course_notebooks as course
import pytest
from wrong_answers import CHEATS, PUBLIC, WRONG

from regard.course.grading import checks_of, seed_for

STUDENTS = ("ada", "alan", "grace", "emmy", "")
CASES = [(name, case) for name, cases in WRONG.items() for case in cases]
SLIPS = [(name, case) for name, cases in PUBLIC.items() for case in cases]
TRICKS = [(name, question, code) for name, tricks in CHEATS.items() for question, code in tricks]


@cache
def _right(name):
    """The names that the imports and all right answers define: a notebook's, in this process."""
    names = {"__name__": "__main__"}
    source = "\n\n".join([course.IMPORTS, "import regard", *course.right_cells(name)])
    exec(compile(source, f"<{name}>", "exec"), names)
    return source


def outcomes(name, question, code="", *, student="ada", hidden=True, numbers=0):
    """By check, what it said about the notebook after ``code``; None where it passed."""
    names = {"__name__": "__main__"}
    exec(compile(_right(name) + "\n\n" + code, "<cell>", "exec"), names)
    names |= {"SEED": course.source_package(name).seed(student), "NUMBERS": numbers}
    found = {}
    for check in checks_of(course.question(name, question).checks):
        if check.hidden and not hidden:
            continue
        try:
            check.run(**{argument: names.get(argument, ...) for argument in check.arguments})
            found[check.title] = None
        except Exception as error:
            found[check.title] = f"{type(error).__name__}: {error}"
    return found


def words(found):
    return "\n".join(filter(None, found.values()))


@pytest.mark.parametrize("name", course.NAMES)
def test_right_answers_pass_whatever_the_seed(name):
    for question in course.questions(name):
        for student in STUDENTS:
            found = outcomes(name, question, student=student)
            assert not words(found), f"{question}, {student}: {words(found)}"


OTHER_FORMS = """
import functools

import numpy as np

def in_types(part):  # of several values a list, of tensors float64, or whole numbers where they are whole
    if isinstance(part, tuple):
        return [in_types(each) for each in part]
    if not isinstance(part, torch.Tensor) or not part.is_floating_point():
        return part
    return part.long() if part.equal(part.round()) and not part.requires_grad else part.double()

def in_kinds(part):  # of a number an array of NumPy, of a tensor True and False where it has 1 and 0, or else a sparse one
    if isinstance(part, tuple):
        return tuple(in_kinds(each) for each in part)
    if isinstance(part, int | float):
        return np.array([part])
    if not isinstance(part, torch.Tensor) or part.ndim < 2 or part.requires_grad:
        return part
    return part == 1 if bool(((part == 0) | (part == 1)).all()) else part.to_sparse()

def in_another_form(function, other):
    return functools.wraps(function)(lambda *args, **options: other(function(*args, **options)))
"""


@pytest.mark.parametrize("form", ["in_types", "in_kinds"])
@pytest.mark.parametrize("name", course.NAMES)
def test_right_answers_pass_in_other_forms(name, form):
    for question in course.questions(name):
        functions = re.findall(r"^def (\w+)", course.question(name, question).reference, re.MULTILINE)
        wrapped = [f"{function} = in_another_form({function}, {form})" for function in functions]
        found = outcomes(name, question, "\n".join([OTHER_FORMS, *wrapped]))
        assert not words(found), f"{question}: {words(found)}"


def test_numbers_of_a_student_change_the_answer_and_its_check():
    from regard.course import numbers

    seed = seed_for("s", "3-transformer", "numbers", "ada")
    sizes = numbers("3-transformer", seed)
    values = ", ".join(str(sizes[part]) for part in ("heads", "in", "hidden", "value", "out"))
    assert words(outcomes("3-transformer", "parameters", numbers=seed))
    assert not words(outcomes("3-transformer", "parameters", f"my_layer = parameters({values})", numbers=seed))


def test_every_question_has_a_wrong_answer():
    for name in course.NAMES:
        assert {case.question for case in WRONG[name]} == set(course.questions(name))


def _changed(name, case):
    answer = course.question(name, case.question).reference
    assert case.right in answer, answer
    return answer.replace(case.right, case.wrong)


@pytest.mark.parametrize(
    ("name", "case"), CASES, ids=[f"{name[0]}-{case.question}-{case.advice}" for name, case in CASES]
)
def test_wrong_answers_are_told_what_is_wrong(name, case):
    found = outcomes(name, case.question, _changed(name, case))
    assert re.search(case.advice, words(found)), words(found)


@pytest.mark.parametrize("name", course.NAMES)
def test_wrong_answers_are_refused_whatever_the_student(name):
    """Where the public checks pass, the hidden ones draw sizes at which a wrong answer differs from the right one."""
    for case in WRONG[name]:
        code = _changed(name, case)
        if not words(outcomes(name, case.question, code, hidden=False)):
            for student in STUDENTS:
                assert words(outcomes(name, case.question, code, student=student)), (case, student)


@pytest.mark.parametrize(("name", "case"), SLIPS, ids=[f"{name[0]}-{case.advice}" for name, case in SLIPS])
def test_public_checks_catch_common_slips(name, case):
    found = outcomes(name, case.question, _changed(name, case), hidden=False)
    assert re.search(case.advice, words(found)), words(found)


@pytest.mark.parametrize(
    ("name", "question", "code"), TRICKS, ids=[f"{name[0]}-{question}" for name, question, _ in TRICKS]
)
def test_ready_made_answers_earn_nothing(name, question, code):
    found = outcomes(name, question, code)
    assert all(found.values()), found
    assert re.search("your answer calls (regard|torch)'s .*write", words(found)), words(found)


def test_grading_says_the_same_as_the_notebook():
    name, question = course.NAMES[0], "attention"
    code = course.question(name, question).reference.replace("1 / math.sqrt(query.shape[-1])", "1.0")
    result = course.result_of(name, question, [code])
    here = outcomes(name, question, code)
    assert [outcome.passed for outcome in result.outcomes] == [message is None for message in here.values()]
    assert 0 < result.points < result.possible
    assert "the scores are not divided by √d" in course.messages(result)
