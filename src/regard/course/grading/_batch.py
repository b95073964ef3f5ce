"""Grade many submissions in parallel."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

import torch

from regard.course.grading._grade import CheckOutcome, Marks, Result, grade
from regard.course.grading._package import Package
from regard.course.grading._protection import hide_from_others
from regard.course.grading._sandbox import MEMORY, SECONDS, Sandbox
from regard.course.grading._submission import Submission

_package: Package
_sandbox: Sandbox


def grade_files(
    files: Iterable[tuple[Path, str]],
    package: Package,
    *,
    jobs: int | None = None,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> Iterator[Marks]:
    """The marks of every (file, student), in order.

    Args:
        files: notebooks, each with the student's name for the seed (may be empty).
        package: the checks.
        jobs: how many at a time; default: the number of processors.
        seconds: processor time for one check.
        memory: bytes for one check.
    """
    files = list(files)
    jobs = min(jobs or os.cpu_count() or 1, max(1, len(files)))
    if jobs == 1:
        hide_from_others()
        with Sandbox(package.prelude, seconds=seconds, memory=memory) as sandbox:
            for path, student in files:
                yield _grade_file(path, student, package, sandbox)
        return
    # The checks are sent to the other processes through a pipe.
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (package.to_json(), seconds, memory)) as pool:
        yield from pool.map(_one, files)


def _begin(package: str, seconds: float, memory: int) -> None:
    global _package, _sandbox
    hide_from_others()
    torch.set_num_threads(1)
    _package = Package.from_json(package)
    _sandbox = Sandbox(_package.prelude, seconds=seconds, memory=memory)
    Finalize(None, _sandbox.close, exitpriority=10)  # multiprocessing does not run atexit


def _one(file: tuple[Path, str]) -> Marks:
    return _grade_file(*file, _package, _sandbox)


def _grade_file(path: Path, student: str, package: Package, sandbox: Sandbox) -> Marks:
    try:
        submission = Submission.read(path, package.given)
    except ValueError as error:
        told = tuple(
            Result(each.name, each.title, each.points, (), "")
            if each.manual
            else Result(each.name, each.title, each.points, (CheckOutcome("notebook", False, False, str(error)),))
            for each in package.questions
        )
        return Marks(package.notebook, student, told)
    return grade(submission, package, sandbox, student)
