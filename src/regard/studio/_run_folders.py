"""The runs in a folder. Nothing outside the folder is ever read."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.studio._errors import Refused, log
from regard.support import reading as support
from regard.support.checksums import checksum
from regard.training import Checkpoints, DamagedCheckpointError, Run, load_run
from regard.views import shipped_run

RECIPE, METRICS, HEADS, SUMMARY = "recipe.json", "metrics.jsonl", "heads.jsonl", "summary.json"
DEEPEST, MOST_RUNS, MOST_CHECKPOINTS = 4, 5_000, 10_000
STATE_FILES = ("state.json", "state.safetensors")
# Errors of our readers about files. Any other error is a bug in regard or in the user's classes, and reported as such.
_ABOUT_FILES = (ValueError, OSError, DamagedCheckpointError)
LARGEST_JSON = 4 * 2**20
EXAMPLE = shipped_run("cifar10-small")


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run, and the root folder outside of which nothing is read."""

    id: str
    folder: Path
    root: Path
    is_example: bool = False

    @property
    def title(self) -> str:
        """Its path below the root, for display."""
        if self.is_example:
            return "example"
        below = self.folder.relative_to(self.root).as_posix()
        # A file name may not be valid UTF-8, but the displayed name must be.
        return os.fsencode(self.folder.name if below == "." else below).decode("utf-8", "replace")

    def file(self, *parts: str) -> Path:
        """The path of a file of the run. A link that leads out of the root is refused."""
        path = self.folder.joinpath(*parts)
        try:
            inside = path.resolve().is_relative_to(self.root)
        except (OSError, RuntimeError) as loop:  # the error type depends on the Python version
            raise Refused(422, f"{path.name} of {self.title} is a link that leads to itself") from loop
        if not inside:
            raise Refused(
                403, f"{path.name} of {self.title} links to a place outside the folder that the studio was opened on"
            )
        return path

    def open(self) -> Run:
        """Open the run, after checking everything that it may read."""
        for name in (RECIPE, METRICS, HEADS, SUMMARY, "checkpoints"):
            self.file(name)
        with self.refusing():
            if self.file(RECIPE).stat().st_size > LARGEST_JSON:
                raise Refused(413, f"{RECIPE} of {self.title} is too large for a recipe")
            checkpoints = self.folder / "checkpoints"
            if checkpoints.is_dir():
                for count, step in enumerate(checkpoints.iterdir()):
                    if count > MOST_CHECKPOINTS:
                        raise Refused(413, f"{self.title} has more than {MOST_CHECKPOINTS} checkpoints")
                    self.file("checkpoints", step.name)
                    for part in STATE_FILES if step.is_dir() else ():
                        self.file("checkpoints", step.name, part)
            return load_run(self.folder)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Inside the block, an error that the run's files cause becomes a message about this run.

        Any other error is reported as a bug, and the terminal shows it; other runs are not affected.
        """
        try:
            yield
        except Refused:
            raise
        except FileNotFoundError as missing:
            if self.folder.exists():
                raise Refused(422, f"{self.title} cannot be read: {missing}") from missing
            raise Refused(404, f"{self.title} no longer exists") from missing
        except _ABOUT_FILES as error:
            raise Refused(422, f"{self.title} cannot be read: {_brief(error)}") from error
        except Exception as error:
            log.error("an error in regard, or in your own classes, about %r", self.title, exc_info=error)
            said = f"{type(error).__name__}: {_brief(error)}"
            raise Refused(422, f"{self.title} cannot be shown: an error occurred that its files may have caused ({said}); "
                               "the terminal that runs the studio shows it") from error  # fmt: skip


class Folder:
    """The runs below a folder, and the example that comes with the package.

    Runs have ids. A name in a request is only looked up among the ids, never used as a path.

    Args:
        root: the folder.
        example: the folder of the example, or None.
    """

    def __init__(self, root: Path, *, example: Path | None = EXAMPLE) -> None:
        self.root = root.resolve()
        self.example = None if example is None else example.resolve()
        self._known: dict[str, RunFolder] = {}

    def places(self) -> dict[str, RunFolder]:
        """All runs by id, the example last."""
        found: dict[str, RunFolder] = {}
        for folder in self._folders():
            below = folder.relative_to(self.root).as_posix()
            name = folder.name if below == "." else below.replace("/", "~")
            if not _is_plain(name) or name in found or name == "example":
                name = f"run-{checksum(os.fsencode(folder), size=6)}"
            found[name] = RunFolder(name, folder, self.root)
        if self.example is not None and (self.example / RECIPE).is_file():
            found["example"] = RunFolder("example", self.example, self.example, is_example=True)
        self._known = found
        return found

    def place(self, id: str) -> RunFolder:
        # A known run is found without searching all folders; there may be a thousand.
        known = self._known.get(id)
        still = known is not None and not known.folder.is_symlink() and (known.folder / RECIPE).is_file()
        found = known if still else self.places().get(id)
        if found is None:
            raise Refused(404, f"there is no run {id!r}")
        return found

    def _folders(self) -> Iterator[Path]:
        count, depth = 0, len(self.root.parts)
        for path, below, files in os.walk(self.root, followlinks=False):
            below[:] = sorted(name for name in below if not name.startswith("."))
            is_run = RECIPE in files
            if is_run or len(Path(path).parts) - depth >= DEEPEST:
                below.clear()
            if is_run:
                yield Path(path)
                count += 1
                if count == MOST_RUNS:
                    return


def signature(folder: Path) -> tuple[object, ...]:
    """Changes when a file that the list of runs depends on is written, replaced or removed."""
    return tuple(_written(f"{folder}/{name}") for name in (RECIPE, METRICS, HEADS, SUMMARY, "checkpoints"))


def network_signature(folder: Path, steps: Iterable[int]) -> tuple[object, ...]:
    """Changes when the recipe, the result or one of these checkpoints is written again: a run may be trained anew in the
    same folder, for as many steps."""
    checkpoints = [Checkpoints(folder / "checkpoints").path(step) for step in steps]
    files = [f"{path}/{name}" for path in checkpoints for name in STATE_FILES]
    return tuple(_written(path) for path in (f"{folder}/{RECIPE}", f"{folder}/{SUMMARY}", *files))


def _written(path: str) -> tuple[int, int, int] | None:
    """When a file was written last; None where there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path each would take as long as all the rest
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _is_plain(name: str) -> bool:
    return bool(name) and name.isascii() and all(sign.isalnum() or sign in "-_.~+=" for sign in name) and name != ".."


def read_json(path: Path) -> Any:
    """The content of a JSON file; None where it cannot be read."""
    try:
        return support.read_json(path, LARGEST_JSON)
    except (OSError, ValueError):
        return None


def _brief(error: Exception) -> str:
    """The first line of an error, shortened; its type if it has no message."""
    line = str(error).strip().partition("\n")[0]
    return f"{line:.500}" if line else type(error).__name__


@dataclass(frozen=True)
class LogPiece:
    """Lines of a file that may be growing, and the offset to continue at.

    Attributes:
        lines: the objects; lines that are not JSON objects are left out.
        offset: the byte to continue at.
        more: whether there are further lines already.
        anew: the file is shorter than the requested offset, so these lines are from its beginning.
    """

    lines: list[dict[str, Any]]
    offset: int
    more: bool
    anew: bool


def read_piece(path: Path, offset: int, most: int = 2**20) -> LogPiece:
    """The complete lines from a byte on, at most ``most`` bytes of them, but at least one line."""
    try:
        with support.open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            anew = offset > size
            offset = 0 if anew else offset
            file.seek(offset)
            content = file.read(most)
            if b"\n" not in content and len(content) == most:
                content += file.readline(64 * most)
    except FileNotFoundError:
        return LogPiece([], 0, False, offset > 0)
    content = content[: content.rfind(b"\n") + 1]
    lines = []
    for line in content.splitlines():
        try:
            entry = support.parse_json(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            lines.append(entry)
    end = offset + len(content)
    return LogPiece(lines, end, bool(content) and end < size, anew)
