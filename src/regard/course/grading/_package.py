"""The data for grading a notebook: public and hidden checks, correct answers, and the secret of the seeds."""

import hashlib
import hmac
import json
import re
import unicodedata
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Question:
    """One exercise.

    Attributes:
        name: as in ``grader.check(name)``.
        title: its heading.
        points: its points, shared evenly by its checks.
        names: the names that an answer defines, each a ``"function"`` (or class) or a ``"value"``.
        refused: kinds of ready-made functions that its answer may not call.
        checks: source of its checks, each a function marked by ``@test_case(points=…, hidden=…)``.
        reference: a correct answer.
        manual: whether the answer is graded by hand.
        rubric: for grading by hand: what earns how many points, and a model answer.
    """

    name: str
    title: str
    points: float
    names: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    checks: str = ""
    reference: str = ""
    manual: bool = False
    rubric: str = ""


@dataclass(frozen=True)
class Package:
    """All questions of a notebook.

    Attributes:
        notebook: its name.
        version: the version of the library that made it.
        prelude: the imports of the notebook's first cell.
        given: sources of cells that are not answers.
        secret: the secret for the students' seeds.
        questions: in order.
        students: those who have numbers of their own in the exercises; none if all have the published ones.
    """

    notebook: str
    version: str
    prelude: str
    given: list[str]
    secret: str
    questions: list[Question]
    students: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Package":
        try:
            fields = json.loads(text)
            return cls(**{**fields, "questions": [Question(**each) for each in fields["questions"]]})
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"this is not a file of checks made by make course of this version: {error}") from None

    @classmethod
    def read(cls, path: Path) -> "Package":
        return cls.from_json(path.read_text(encoding="utf-8"))

    def seed(self, student: str) -> int:
        """The seed of the hidden checks of a student."""
        return seed_for(self.secret, self.notebook, "checks", student)

    def numbers_seed(self, student: str) -> int:
        """The seed of the numbers in a student's exercises; 0 gives the published ones."""
        return seed_for(self.secret, self.notebook, "numbers", student) if self.students else 0

    def knows(self, student: str) -> bool:
        """Whether the student has a hand-out of this package."""
        return not self.students or one_spelling(student) in map(one_spelling, self.students)


def one_spelling(name: str) -> str:
    """The same text for all spellings of a name: files on a Mac have accents as signs of their own, and e-mail addresses
    come with capital letters or without.

    >>> from regard.course.grading import one_spelling
    >>> one_spelling("J\u00f6rg@Example.org ") == one_spelling("jo\u0308rg@example.org")
    True
    """
    return unicodedata.normalize("NFC", name.strip().casefold())


def seed_for(secret: str, *parts: str) -> int:
    """A seed that cannot be guessed without the secret: 31 bits of an HMAC-SHA256. Spellings of one name have one seed.

    >>> from regard.course.grading import seed_for
    >>> seed_for("s", "1", "checks", "ada") == seed_for("s", "1", "checks", "ada") != seed_for("t", "1", "checks", "ada")
    True
    """
    digest = hmac.new(secret.encode(), "\0".join(map(one_spelling, parts)).encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True)
class NotebookCheck:
    """One check: a function of names from the notebook."""

    name: str
    hidden: bool
    run: Callable[..., None]

    @property
    def title(self) -> str:
        """Its name as text."""
        return self.name.removeprefix("test_").replace("_", " ")

    @property
    def arguments(self) -> tuple[str, ...]:
        code = self.run.__code__
        return code.co_varnames[: code.co_argcount]


def checks_of(source: str) -> list[NotebookCheck]:
    """The checks in the source of a test file, as Otter Assign writes them; Otter itself is not needed."""
    found: list[NotebookCheck] = []

    def test_case(*, points: Any = None, hidden: bool = False, **_: Any) -> Callable[[Callable[..., None]], Any]:
        def record(function: Callable[..., None]) -> Callable[..., None]:
            found.append(NotebookCheck(function.__name__, hidden, function))
            return function

        return record

    code = re.sub(r"(?m)^from otter\.test_files import .*$", "", source)
    exec(compile(code, "<checks>", "exec"), {"test_case": test_case, "__name__": "checks"})
    return found
