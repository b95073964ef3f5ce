"""Files of JSON lines that grow with a run and hold each step once, however often the run was killed and resumed."""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.training._checkpoints import reporting_full_disk


class Lines:
    """A file to which a JSON object is added per line.

    A checkpoint notes :attr:`size`; a resumed run goes back to it with :meth:`cut`, so that what was written after the
    checkpoint, a torn last line included, is written anew.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines = Lines(Path(folder, "metrics.jsonl"))
    ...     lines.add({"step": 1})
    ...     size = lines.size
    ...     lines.add({"step": 2})
    ...     lines.cut(size)
    ...     list(read_lines(lines.path))
    [{'step': 1}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size if path.exists() else 0

    def add(self, *entries: Mapping[str, Any]) -> None:
        """Append, all or nothing. Numbers that are not finite become null, which JSON has."""
        if not entries:
            return
        text = "".join(json.dumps({key: _finite(value) for key, value in entry.items()}) + "\n" for entry in entries)
        content = text.encode()
        with reporting_full_disk(self.path.parent, f"next lines of {self.path.name}", len(content)):
            try:
                with self.path.open("ab", buffering=0) as file:
                    written = file.write(content)
                    while written < len(content):
                        written += file.write(content[written:])
            except OSError:
                os.truncate(self.path, self.size)
                raise
        self.size += len(content)

    def cut(self, size: int) -> None:
        """Back to ``size`` bytes."""
        if size > self.size:
            raise ValueError(
                f"{self.path} has {self.size} bytes but the checkpoint was written when it had {size}: "
                f"some of it is missing"
            )
        if size < self.size:
            os.truncate(self.path, size)
        self.size = size

    def flush(self) -> None:
        """Wait until the disk has it."""
        if self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines. A last line that is not finished is left out: a run may be writing it."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
