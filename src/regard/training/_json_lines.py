"""Files of JSON lines that grow with a run. They hold each step once, even if the run was killed and resumed."""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from regard.support.files import append_whole, finite_numbers, reporting_full_disk, sync_folder
from regard.support.reading import LARGEST_JSON, UnreadableError, file_inside, open_regular, parse_json

LARGEST_LOG = 2**30


class JsonLines:
    """A file with one JSON object per line.

    A checkpoint stores :attr:`size`. A resumed run truncates the file to it and rewrites the lines after the checkpoint,
    including an incomplete last line.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     lines = JsonLines(Path(folder, "metrics.jsonl"))
    ...     lines.add({"step": 1})
    ...     size = lines.size
    ...     lines.add({"step": 2})
    ...     lines.cut(size)
    ...     list(read_lines(lines.path))
    [{'step': 1}]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if os.path.lexists(path):
            file_inside(path.parent, path.name)  # never append to or truncate a file that is not ours
        self.size = path.stat().st_size if path.exists() else 0

    def add(self, *entries: Mapping[str, Any]) -> None:
        """Append all entries or none. Numbers that are not finite become null."""
        if not entries:
            return
        text = "".join(json.dumps(finite_numbers(entry)) + "\n" for entry in entries)
        content = text.encode()
        with reporting_full_disk(self.path.parent, f"next lines of {self.path.name}", len(content)):
            append_whole(self.path, content, self.size)
        self.size += len(content)

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes."""
        if size > self.size:
            raise UnreadableError(
                f"{self.path} has {self.size} bytes, but had {size} when the checkpoint was saved: part of it is missing"
            )
        if size < self.size:
            os.truncate(self.path, size)
        self.size = size

    def flush(self) -> None:
        """Wait until the file is on the disk."""
        if self.path.exists():
            with self.path.open("rb+") as file:  # Windows flushes only files that are open for writing
                os.fsync(file.fileno())
            sync_folder(self.path.parent)  # flush the folder entry too, since a checkpoint relies on the file


def read_lines(path: Path, most: int | None = None) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON lines, without an incomplete last line, which a run may be writing.

    Args:
        path: the file; one that does not exist has no lines.
        most: number of lines at which the file is refused; None has no limit.
    """
    if not path.exists():
        return
    with open_regular(path, LARGEST_LOG) as file:
        for number in itertools.count(1):
            line = file.readline(LARGEST_JSON)
            if not line.endswith(b"\n"):
                if len(line) == LARGEST_JSON:
                    raise UnreadableError(f"{path}: line {number} is longer than {LARGEST_JSON:,} bytes")
                return
            if most is not None and number > most:
                raise UnreadableError(f"{path} has more than {most:,} lines, which is the limit")
            try:
                entry = parse_json(line)
            except ValueError as error:
                raise UnreadableError(f"{path}: line {number} cannot be read: {error}") from error
            if not isinstance(entry, dict):
                raise UnreadableError(f"{path}: line {number} must hold a JSON object, but holds {line[:40]!r}")
            yield entry
