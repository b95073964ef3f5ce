"""``grader.check("…")`` in a notebook: run the public checks and explain their results."""

import inspect
import traceback
from collections.abc import Mapping
from html import escape
from typing import Any

from regard.course._checks_folder import public_checks
from regard.course._expect import NotThere
from regard.course.grading import NotebookCheck, checks_of


class Notebook:
    """The public checks of a notebook.

    Args:
        name: the notebook.
        numbers: the seed of the numbers in its exercises; 0 for the published ones.

    >>> import regard.course
    >>> grader = regard.course.Notebook("1-attention-by-hand")
    >>> grader.check("scores", {"scores_of": lambda hidden, w_query, w_key: (hidden @ w_query.T) @ (hidden @ w_key.T).T})
    scores: public checks passed; hidden ones remain
    """

    def __init__(self, name: str, numbers: int = 0) -> None:
        self.name, self.numbers = name, numbers
        self._sources = public_checks(name)

    def check(self, question: str, names: Mapping[str, Any] | None = None) -> "Feedback":
        """Run the public checks of a question on the notebook's own names."""
        if question not in self._sources:
            raise ValueError(f"question must be one of {', '.join(self._sources)}, got {question!r}")
        if names is None:
            names = _callers_names()
        found = {}
        for check in checks_of(self._sources[question]):
            message = self._message(check, names)
            if message is not None:
                found[check.title] = message
        return Feedback(question, found)

    def _message(self, check: NotebookCheck, names: Mapping[str, Any]) -> str | None:
        arguments = {name: names.get(name, ...) for name in check.arguments}
        arguments |= {"NUMBERS": self.numbers} if "NUMBERS" in arguments else {}
        try:
            check.run(**arguments)
        except NotThere as error:
            return str(error)
        except AssertionError as error:
            return str(error)
        except Exception as error:
            return _their_line(error) or f"what your answer returns does not fit: {error}"
        return None


def _callers_names() -> Mapping[str, Any]:
    """The caller's global names, which are the notebook's."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in (
        "regard",
        "jaxtyping",
        "beartype",
    ):
        frame = frame.f_back
    return {} if frame is None else frame.f_globals


def _their_line(error: Exception) -> str | None:
    """The error with the student's line that raised it, if any; lines of checks are never quoted."""
    line = None
    for frame in traceback.extract_tb(error.__traceback__):
        written_here = (
            "ipython" in frame.filename or "ipykernel" in frame.filename or frame.filename.startswith("<cell")
        )
        if written_here and frame.line:
            line = frame.line
    return None if line is None else f"{type(error).__name__}: {error} in your line\n    {line}"


class Feedback:
    """The messages of a question's public checks; empty if all passed."""

    def __init__(self, question: str, messages: Mapping[str, str]) -> None:
        self.question, self.messages = question, dict(messages)

    @property
    def passed(self) -> bool:
        return not self.messages

    def __repr__(self) -> str:
        if self.passed:
            return f"{self.question}: public checks passed; hidden ones remain"
        lines = [f"{self.question}: not yet"]
        lines += [f"  {title}: {message}" for title, message in self.messages.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        if self.passed:
            return f"<p><strong>{escape(self.question)}</strong>: public checks passed; hidden ones remain.</p>"
        items = "".join(
            f"<li>{escape(title)}: <span style='white-space: pre-wrap'>{escape(message)}</span></li>"
            for title, message in self.messages.items()
        )
        return f"<p><strong>{escape(self.question)}</strong>: not yet</p><ul>{items}</ul>"
