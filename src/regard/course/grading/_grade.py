"""Grade a submission: run every check in a fresh process, and choose which messages the student may see."""

import builtins
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from regard.course.grading._package import NotebookCheck, Package, Question, checks_of
from regard.course.grading._refusal import ReadyMadeError
from regard.course.grading._sandbox import AnswerError, Job, Missing, RemoteAnswer, Sandbox, Stopped, Worker
from regard.course.grading._submission import Submission


@dataclass(frozen=True)
class CheckOutcome:
    """The result of one check."""

    check: str
    hidden: bool
    passed: bool
    message: str = ""


@dataclass(frozen=True)
class Result:
    """One question of a submission."""

    question: str
    title: str
    possible: float
    outcomes: tuple[CheckOutcome, ...]
    manual: str | None = None

    @property
    def points(self) -> float:
        """The points for the share of checks that passed; 0 for a question graded by hand."""
        if not self.outcomes:
            return 0.0
        return self.possible * sum(outcome.passed for outcome in self.outcomes) / len(self.outcomes)


@dataclass(frozen=True)
class Marks:
    """A submission's marks."""

    notebook: str
    student: str
    results: tuple[Result, ...]

    @property
    def points(self) -> float:
        return sum(result.points for result in self.results)

    @property
    def possible(self) -> float:
        """The points that checks can give; questions graded by hand are extra."""
        return sum(result.possible for result in self.results if result.manual is None)

    def __getitem__(self, question: str) -> Result:
        return next(result for result in self.results if result.question == question)


def grade(
    submission: Submission,
    package: Package,
    sandbox: Sandbox,
    student: str = "",
    *,
    only: Collection[str] | None = None,
) -> Marks:
    """The marks of one submission.

    Later exercises are graded with correct answers to the earlier ones, so that a mistake counts once.

    Args:
        submission: the student's notebook.
        package: the checks.
        sandbox: where answers run.
        student: the name for the seeds.
        only: the questions to grade; default: all.
    """
    results = []
    references: list[str] = []
    provided: set[str] = set()
    for question in package.questions:
        if question.manual and only is None:
            text = submission.text_after(question.title)
            results.append(Result(question.name, question.title, question.points, (), manual=text))
        if question.manual:
            continue
        job = Job(submission.answer(question.names, provided - set(question.names)), references, question.refused)
        if only is None or question.name in only:
            results.append(_graded(question, package, submission, job, sandbox, student))
        references = [*references, question.reference]
        provided |= set(question.names)
    return Marks(package.notebook, student, tuple(results))


def _graded(
    question: Question, package: Package, submission: Submission, job: Job, sandbox: Sandbox, student: str
) -> Result:
    outcomes = []
    stopped = False
    for check in checks_of(question.checks):
        if stopped:
            message = "not run: your answer had to be stopped in an earlier check"
            outcomes.append(CheckOutcome(check.title, check.hidden, False, message))
            continue
        error = _run(check, question, package, submission, job, sandbox, student)
        stopped = isinstance(error, Stopped)
        message = "" if error is None else (_fixed_words(error) if check.hidden else _words(error))
        outcomes.append(CheckOutcome(check.title, check.hidden, error is None, message))
    return Result(question.name, question.title, question.points, tuple(outcomes))


def _run(
    check: NotebookCheck,
    question: Question,
    package: Package,
    submission: Submission,
    job: Job,
    sandbox: Sandbox,
    student: str,
) -> Exception | None:
    """Run a check; returns the error that it raised."""
    wrong = submission.syntax_error(question.names)
    if wrong is not None and not job.cells:
        return AnswerError("SyntaxError", wrong, None, False)
    try:
        with sandbox.worker(job) as worker:
            check.run(**{name: _argument(name, question, package, worker, student) for name in check.arguments})
    except RuntimeError as error:
        if "did not start" in str(error):  # our error, not the student's
            raise
        return error
    except Exception as error:
        return error
    return None


def _argument(name: str, question: Question, package: Package, worker: Worker, student: str) -> Any:
    if name == "SEED":
        return package.seed(student)
    if name == "NUMBERS":
        return package.numbers_seed(student)
    answer = RemoteAnswer(worker, name)
    return answer.value() if question.names.get(name) == "value" else answer


def _words(error: Exception) -> str:
    """The message after a public check: everything that helps."""
    if isinstance(error, AssertionError | AnswerError | Missing | Stopped):
        return str(error)
    return f"what your answer returns does not fit: {error}"


def _fixed_words(error: Exception) -> str:
    """The message after a hidden check: the same for every seed, so that no numbers of the check are revealed."""
    if isinstance(error, Missing | ReadyMadeError | Stopped) or type(error).__name__ in ("Advice", "NotThere"):
        return str(error)
    if isinstance(error, AnswerError):
        if error.ready_made:
            return "your answer calls a ready-made function that does the exercise; write it out yourself"
        known = isinstance(getattr(builtins, error.type, None), type)
        return f"your code raised {error.type if known else 'an error'} on other numbers than those shown"
    return "the result is wrong on other numbers than those shown"
