"""What the tests of the course share: notebooks built once, packages of checks, and one process that runs answers."""

import atexit
import importlib.util
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

import nbformat
from nbformat import NotebookNode

from regard.course.grading import Marks, Package, Result, Sandbox, Submission, grade

ROOT = Path(__file__).parents[2]
SECRET = "eleven"
IMPORTS = "import math\n\nimport matplotlib.pyplot as plt\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn"


@cache
def build() -> ModuleType:
    """notebooks/build.py, which is a script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of ipylab, which otter imports
        spec = importlib.util.spec_from_file_location("course_build", ROOT / "notebooks" / "build.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.path.remove(str(ROOT / "notebooks"))
        import otter.assign  # noqa: F401
    return module


NAMES = build().names()


@cache
def built(name: str) -> Path:
    """Student's and solved notebook."""
    outer = Path(tempfile.mkdtemp(prefix="regard-course-"))
    atexit.register(shutil.rmtree, outer, ignore_errors=True)
    return build().assign(name, outer / name)


def notebook(name: str, form: str) -> NotebookNode:
    return nbformat.read(built(name) / form / f"{name}.ipynb", nbformat.NO_CONVERT)


@cache
def package(name: str, secret: str = SECRET) -> Package:
    return build().package(name, built(name), secret)


@cache
def source_package(name: str, secret: str = SECRET) -> Package:
    """The same without building a notebook: no cell is known as given."""
    return build().assignment.package(build().SOURCES / f"{name}.py", secret)


def questions(name: str) -> tuple[str, ...]:
    """Those that checks grade."""
    return tuple(each.name for each in source_package(name).questions if not each.manual)


def question(name: str, wanted: str):
    return next(each for each in source_package(name).questions if each.name == wanted)


@cache
def sandbox(seconds: float = 10.0) -> Sandbox:
    """One for all tests: what it forks is fresh each time."""
    found = Sandbox(IMPORTS, seconds=seconds, memory=400 * 2**20)
    atexit.register(found.close)
    return found


def marks_of(
    name: str, cells: Iterable[str], *, seconds: float = 10.0, student: str = "ada", secret: str = SECRET
) -> Marks:
    """The marks of a notebook with these code cells."""
    submission = Submission([("code", cell) for cell in cells])
    return grade(submission, source_package(name, secret), sandbox(seconds), student)


def result_of(name: str, wanted: str, cells: Iterable[str], *, seconds: float = 10.0, secret: str = SECRET) -> Result:
    """The result of one question."""
    submission = Submission([("code", cell) for cell in cells])
    return grade(submission, source_package(name, secret), sandbox(seconds), "ada", only=(wanted,)).results[0]


def right_cells(name: str) -> list[str]:
    return [each.reference for each in source_package(name).questions if not each.manual]


def messages(result: Result) -> str:
    return "\n".join(outcome.message for outcome in result.outcomes)
