"""The public checks of a notebook: in the folder beside it, if there is one, else inside the package."""

import json
from pathlib import Path

_INSIDE = Path(__file__).parent / "checks"


def notebooks() -> tuple[str, ...]:
    """The notebooks of the course, in order.

    >>> import regard.course
    >>> regard.course.notebooks()[0]
    '1-attention-by-hand'
    """
    return tuple(sorted(path.stem for path in _INSIDE.glob("*.json")))


def public_checks(notebook: str) -> dict[str, str]:
    """The source of the public checks of each question.

    A folder ``tests/<notebook>`` in the working directory takes precedence, so that teachers can hand out checks of their
    own. Without it, as in Colab, the checks of the package are used.

    >>> import regard.course
    >>> "scores" in regard.course.public_checks("1-attention-by-hand")
    True
    """
    beside = Path("tests") / notebook
    files = sorted(beside.glob("*.py"))
    if files:
        return {path.stem: path.read_text(encoding="utf-8") for path in files}
    if notebook not in notebooks():
        raise ValueError(f"notebook must be one of {', '.join(notebooks())}, got {notebook!r}")
    return json.loads((_INSIDE / f"{notebook}.json").read_text(encoding="utf-8"))
