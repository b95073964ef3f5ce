"""Graded as a teacher would, by Otter in a kernel: solved, blank and wrong notebooks."""

import re

import course_notebooks as course
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Jupyter's own
]


@pytest.mark.parametrize("name", course.NAMES)
def test_solved_notebook_runs_to_its_end_and_gets_full_marks(name, tmp_path):
    results = course.grade(course.notebook(name, "solved"), name, tmp_path)
    assert course.errors(results.notebook) == []
    assert results.total == results.possible > 20
    assert set(results.test_files) == set(course.questions(name))


@pytest.mark.parametrize("name", course.NAMES)
def test_blank_notebook_gets_nothing_and_is_told_where_to_begin(name, tmp_path):
    results = course.grade(course.notebook(name, "student"), name, tmp_path)
    assert results.total == 0
    assert results.possible > 20
    for question in results.test_files:
        summary = results.get_result(question).summary()
        assert re.search(
            r"nothing there yet|no answer yet|no gradient|NoneType|ellipsis|return (two|three) things", summary
        )


def test_wrong_notebook_gets_a_part_and_advice(tmp_path):
    name = "1-attention-by-hand"
    submission = course.notebook(name, "solved")
    cell = next(cell for cell in submission.cells if cell.source.startswith("def attention("))
    cell.source = cell.source.replace("1 / math.sqrt(query.shape[-1])", "1.0")
    results = course.grade(submission, name, tmp_path)
    wrong = results.get_result("q3_attention")
    assert 0 < wrong.score < wrong.possible
    assert 0 < results.total < results.possible
    assert "the scores are not divided by √d" in wrong.summary(public_only=True)
    assert "q1_scores results: All test cases passed!" in results.summary()
