"""Runs in a folder: which there are, and reading them without ever leaving it."""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.studio._errors import Refused
from regard.training import Run, load_run

RECIPE, METRICS, HEADS, SUMMARY = "recipe.json", "metrics.jsonl", "heads.jsonl", "summary.json"
DEEPEST, MOST_RUNS = 4, 400
LARGEST_JSON = 4 * 2**20
EXAMPLE = Path(__file__).parent / "example"


@dataclass(frozen=True)
class Place:
    """A run's folder, and the folder above it that nothing read may lie outside of."""

    id: str
    folder: Path
    root: Path

    @property
    def is_example(self) -> bool:
        return self.folder == EXAMPLE.resolve()

    @property
    def title(self) -> str:
        """As a person names it: its path below the root."""
        if self.is_example:
            return "example"
        below = self.folder.relative_to(self.root).as_posix()
        return self.folder.name if below == "." else below

    def file(self, *parts: str) -> Path:
        """A file of the run, which may not lead out of the root by links."""
        path = self.folder.joinpath(*parts)
        if not path.resolve().is_relative_to(self.root):
            raise Refused(403, f"{path.name} of {self.title} leads out of the folder that the studio was opened on")
        return path

    def open(self) -> Run:
        """The run. Everything that it may read is looked at first."""
        for name in (RECIPE, METRICS, HEADS, SUMMARY, "checkpoints"):
            self.file(name)
        if self.file(RECIPE).stat().st_size > LARGEST_JSON:
            raise Refused(413, f"{RECIPE} of {self.title} is larger than a recipe can be")
        checkpoints = self.folder / "checkpoints"
        if checkpoints.is_dir():
            for step in checkpoints.iterdir():
                self.file("checkpoints", step.name)
                for part in step.iterdir() if step.is_dir() else ():
                    self.file("checkpoints", step.name, part.name)
        try:
            return load_run(self.folder)
        except FileNotFoundError as missing:
            raise Refused(404, f"{self.title} is gone") from missing
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Refused(422, f"{self.title} cannot be read: {error}") from error


class Folder:
    """The runs below a folder, and the one that comes with the package.

    Runs are known by ids that were given to them here; what a request names is looked up among them and never made
    into a path.
    """

    def __init__(self, root: Path, *, example: bool = True) -> None:
        self.root = root.resolve()
        self.example = example

    def places(self) -> dict[str, Place]:
        """All runs by id, the example last."""
        found: dict[str, Place] = {}
        for folder in self._folders():
            below = folder.relative_to(self.root).as_posix()
            name = folder.name if below == "." else below.replace("/", "~")
            if not _is_plain(name) or name in found or name == "example":
                name = f"run-{hashlib.blake2b(os.fsencode(folder), digest_size=6).hexdigest()}"
            found[name] = Place(name, folder, self.root)
        example = EXAMPLE.resolve()
        if self.example and (example / RECIPE).is_file():
            found["example"] = Place("example", example, example)
        return found

    def place(self, id: str) -> Place:
        found = self.places().get(id)
        if found is None:
            raise Refused(404, f"there is no run {id!r} here")
        return found

    def _folders(self) -> Iterator[Path]:
        count = 0
        for path, below, files in os.walk(self.root, followlinks=False):
            folder = Path(path)
            below[:] = sorted(name for name in below if not name.startswith("."))
            is_run = RECIPE in files
            if is_run or len(folder.relative_to(self.root).parts) >= DEEPEST:
                below.clear()
            if is_run:
                yield folder
                count += 1
                if count == MOST_RUNS:
                    return


def _is_plain(name: str) -> bool:
    return bool(name) and name.isascii() and all(sign.isalnum() or sign in "-_.~+=" for sign in name) and name != ".."


def read_json(path: Path) -> Any:
    """A JSON file's content; None where there is none that can be read."""
    try:
        if path.stat().st_size > LARGEST_JSON:
            return None
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class Piece:
    """Lines of a file that may be growing, and where to go on.

    Attributes:
        lines: the objects, each a whole line; lines that are none are left out.
        offset: the byte to go on from.
        more: whether there are further lines already.
        anew: the file became shorter than where the reader was, so this begins at its beginning.
    """

    lines: list[dict[str, Any]]
    offset: int
    more: bool
    anew: bool


def read_piece(path: Path, offset: int, most: int = 2**20) -> Piece:
    """The whole lines from a byte on, at most ``most`` bytes of them (but always one, however long)."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            anew = offset > size
            offset = 0 if anew else offset
            file.seek(offset)
            content = file.read(most)
            if b"\n" not in content and len(content) == most:
                content += file.readline(64 * most)
    except FileNotFoundError:
        return Piece([], 0, False, offset > 0)
    content = content[: content.rfind(b"\n") + 1]
    lines = []
    for line in content.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            lines.append(entry)
    end = offset + len(content)
    return Piece(lines, end, bool(content) and end < size, anew)
