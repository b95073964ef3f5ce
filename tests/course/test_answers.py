"""Right answers pass whatever the seed; each wrong one is told what is wrong; ready-made ones earn nothing."""

import re

import course_notebooks as course
import pytest
from wrong_answers import CHEATS, WRONG

SEEDS = (0, 1, 2, 2026, 2**31 - 1)
CASES = [(name, case) for name, cases in WRONG.items() for case in cases]
TRICKS = [(name, question, code) for name, tricks in CHEATS.items() for question, code in tricks]


def messages(result):
    return "\n".join(each.message for each in result.test_case_results)


@pytest.mark.parametrize("name", course.NAMES)
def test_right_answers_pass_whatever_the_seed(name):
    for question in course.questions(name):
        for seed in SEEDS:
            result = course.check(name, question, seed=seed)
            assert result.passed_all, f"{question}, seed {seed}: {messages(result)}"


def test_every_question_has_a_wrong_answer():
    for name in course.NAMES:
        assert {case.question for case in WRONG[name]} == set(course.questions(name))


@pytest.mark.parametrize(
    ("name", "case"), CASES, ids=[f"{name[0]}-{case.question}-{case.advice}" for name, case in CASES]
)
def test_wrong_answers_are_told_what_is_wrong(name, case):
    answer = course.answer_to(name, case.question)
    assert case.right in answer
    result = course.check(name, case.question, answer.replace(case.right, case.wrong))
    assert result.score < result.possible
    assert re.search(case.advice, messages(result)), messages(result)


@pytest.mark.parametrize(
    ("name", "question", "code"), TRICKS, ids=[f"{name[0]}-{question}" for name, question, _ in TRICKS]
)
def test_ready_made_answers_earn_nothing(name, question, code):
    result = course.check(name, question, code)
    assert result.score == 0, messages(result)
    assert re.search("your answer calls (regard|torch)'s .*write", messages(result)), messages(result)
