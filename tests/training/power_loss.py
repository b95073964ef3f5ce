"""A disk that loses power: what a process wrote, replayed in any order that its calls of fsync allow.

The model: the content of a file is on the disk after fsync of the file; before that, any prefix of what was written may be.
A new name, a rename or a removal is on the disk after fsync of its folder; before that, each may or may not be, in any
order, except that operations on one name keep theirs. Recording replaces the few functions through which training writes.
"""

import os
import pathlib
import random
import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class File:
    """A file's content on the disk, and what was written since. ``whole`` is what a running process reads."""

    synced: bytes = b""
    whole: bytes = b""


Entry = tuple[int, str]  # a folder, by its number, and a name in it: what is in a folder moves with it


@dataclass
class Journal:
    """Entries of folders that are safe on the disk, and the operations that are not yet."""

    root: Path
    files: dict[int, File] = field(default_factory=dict)
    entries: dict[Entry, int] = field(default_factory=dict)  # as the running process sees them
    safe: dict[Entry, int] = field(default_factory=dict)  # as the disk has them for sure
    pending: list[tuple[Entry, int | None]] = field(default_factory=list)  # None: removed

    def look(self) -> None:
        """Note what changed below the root since the last call. The system itself says what a process sees."""
        seen: dict[Entry, int] = {}
        for path in (self.root, *sorted(self.root.rglob("*"))):
            number = path.stat().st_ino
            if path != self.root:
                seen[path.parent.stat().st_ino, path.name] = number
            if path.is_file():
                file = self.files.setdefault(number, File())
                file.whole = path.read_bytes()
                if not file.whole.startswith(file.synced):  # it was cut, or written anew: any part may be there
                    file.synced = file.synced[:0]
        for entry in {**self.entries, **seen}:
            if self.entries.get(entry) != seen.get(entry):
                self.pending.append((entry, seen.get(entry)))
        self.entries = seen

    def sync(self, path: Path) -> None:
        self.look()
        number = path.stat().st_ino
        if path.is_file():
            self.files[number].synced = self.files[number].whole
            return
        for entry, found in self.pending:
            if entry[0] == number:
                _apply(self.safe, entry, found)
        self.pending = [each for each in self.pending if each[0][0] != number]

    def crash(self, target: Path, draw: random.Random) -> None:
        """Write one state that the disk may be in now."""
        self.look()
        entries, lost = dict(self.safe), set()
        for entry, number in self.pending:
            if entry not in lost and draw.random() < 0.5:
                _apply(entries, entry, number)
            else:
                lost.add(entry)  # later operations on this name are not there without this one
        shutil.rmtree(target, ignore_errors=True)
        self._write(self.root.stat().st_ino, target, entries, draw)

    def _write(self, folder: int, target: Path, entries: dict[Entry, int], draw: random.Random) -> None:
        target.mkdir()
        for (where, name), number in sorted(entries.items()):
            if where != folder:
                continue
            file = self.files.get(number)
            if file is None:
                # A folder that was moved is at one place, though the disk may know both names for a moment.
                self._write(number, target / name, {e: n for e, n in entries.items() if n != number}, draw)
            else:
                kept = draw.randint(len(file.synced), max(len(file.synced), len(file.whole)))
                (target / name).write_bytes(file.whole[:kept])


def _apply(entries: dict[Entry, int], entry: Entry, number: int | None) -> None:
    if number is None:
        entries.pop(entry, None)
        return
    for other in [each for each, there in entries.items() if there == number and each != entry]:
        del entries[other]  # a rename is one operation: the new name comes with the end of the old one
    entries[entry] = number


@contextmanager
def recording(root: Path, moment):
    """Inside the block, every fsync, rename and removal below ``root`` is noted; ``moment(journal)`` is called at each."""
    journal = Journal(root)
    actual = {
        "fsync": os.fsync,
        "rename": pathlib.Path.rename,
        "replace": pathlib.Path.replace,
        "unlink": pathlib.Path.unlink,
    }

    def fsync(handle):
        actual["fsync"](handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))  # noqa: PTH115
        if path == root or root in path.parents:
            moment(journal)  # before it counts
            journal.sync(path)
            moment(journal)

    def noting(name):
        def operation(self, *arguments, **options):
            found = actual[name](self, *arguments, **options)
            if root in self.parents:
                journal.look()
                moment(journal)
            return found

        return operation

    os.fsync = fsync
    for name in ("rename", "replace", "unlink"):
        setattr(pathlib.Path, name, noting(name))
    try:
        yield journal
    finally:
        os.fsync = actual["fsync"]
        for name in ("rename", "replace", "unlink"):
            setattr(pathlib.Path, name, actual[name])
