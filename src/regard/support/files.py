"""Write files so that a crash, a kill or a full disk leaves either the old content or the new one."""

import errno
import json
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from regard.support.checks import UnusableInputError
from regard.support.text import format_size

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(OSError):
    """The disk has no room for the new file. Nothing written before is lost."""

    def __str__(self) -> str:
        return str(self.strerror)  # the message already names the reason, so leave out the error number


def check_writable(name: str, path: Path, endings: Sequence[str] = ()) -> None:
    """Refuse a path that no file can be written to, before what is to be written there has taken its time.

    ``endings`` are those that the file's name may have; by default any.

    >>> check_writable("--result", Path("."))
    Traceback (most recent call last):
    regard.support.checks.UnusableInputError: --result must be a file, but . is a folder
    """
    with _refused(name, path):
        if path.is_dir():
            raise UnusableInputError(f"{name} must be a file, but {path} is a folder")
        if endings and path.suffix.lower() not in endings:
            raise UnusableInputError(f"{name} must end in {' or '.join(endings)}, got {path}")
        if path.exists() and not path.is_file():
            return  # a pipe or a device
        path.parent.mkdir(parents=True, exist_ok=True)
        _check_length(_aside(path).name, path.parent)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def check_folder(name: str, path: Path) -> None:
    """Refuse a folder that cannot be made or written to, without making it.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     check_folder("--folder", Path(file.name))
    Traceback (most recent call last):
    regard.support.checks.UnusableInputError: --folder must be a folder, but ... is a file
    """
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), Path())
    if not there.is_dir():
        raise UnusableInputError(f"{name} must be a folder, but {there} is a file")
    with _refused(name, path):
        for part in path.relative_to(there).parts:
            _check_length(part, there)
        with tempfile.TemporaryFile(dir=there):
            pass


@contextmanager
def _refused(name: str, path: Path) -> Iterator[None]:
    """Say of an error of the system which argument it is about."""
    try:
        yield
    except OSError as error:
        raise UnusableInputError(f"{name} {path} cannot be written: {error.strerror or error}") from error


def _check_length(name: str, folder: Path) -> None:
    """Raise the system's error for a name that is too long for a file in this folder."""
    with suppress(FileNotFoundError):
        (folder / name).lstat()


def finite_numbers(value: Any) -> Any:
    """The same lists, tuples and dictionaries with None for numbers that are not finite, which JSON cannot express.

    >>> finite_numbers({"loss": float("nan"), "bounds": (1.0, float("inf"))})
    {'loss': None, 'bounds': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {key: finite_numbers(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_numbers(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write or replace a file atomically: a reader sees the old file or the new one, never a partial one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "note.txt", "hello")
    ...     [path.name for path in Path(folder).iterdir()]
    ['note.txt']
    """
    with _replacement(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def _replacement(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces another one if the block ends without an error."""
    aside = _aside(path)
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except BaseException as error:
        with suppress(OSError):
            aside.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(aside)):
            error.filename = str(path)  # a full disk names no file
        raise
    sync_folder(path.parent)


def _aside(path: Path) -> Path:
    """Where this thread writes the new content of a file."""
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.writing")


@contextmanager
def open_output(path: Path) -> Iterator[BinaryIO]:
    """Open a file that the user named, which is written completely or not at all. A link, pipe or device such as
    ``/dev/stdout`` is not replaced, but written to.

    >>> with open_output(Path("/dev/null")) as file:
    ...     _ = file.write(b"nothing")
    """
    is_replaced = not path.is_symlink() and (path.is_file() or not path.exists())
    with _replacement(path) if is_replaced else path.open("wb") as file:
        yield file


def write_output(path: Path, content: str) -> None:
    """Write a text to :func:`open_output`."""
    with open_output(path) as file:
        file.write(content.encode())


def remove_unfinished(folder: Path) -> None:
    """Remove temporary files that a killed process left in :func:`write_atomic`, if no other process writes to the folder."""
    for path in folder.glob(".*.writing"):
        path.unlink(missing_ok=True)


def append_whole(path: Path, content: bytes, size: int) -> None:
    """Append to a file of ``size`` bytes, completely or not at all."""
    try:
        with path.open("ab", buffering=0) as file:
            written = file.write(content)
            while written < len(content):
                written += file.write(content[written:])
    except OSError:
        if path.exists():
            os.truncate(path, size)
        raise


def sync_folder(path: Path) -> None:
    """Wait until new names and renames in a folder are on the disk, on systems that support this."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def reporting_full_disk(folder: Path, what: str, size: int) -> Iterator[None]:
    """Turn an error about missing disk space into a :class:`DiskFullError` that names the file.

    Args:
        folder: where the file is written.
        what: the file's name in the message.
        size: its size in bytes; 0 if unknown.

    >>> with reporting_full_disk(Path("."), "checkpoint of step 7", 10**6):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    regard.support.files.DiskFullError: no room for the checkpoint of step 7 in . (No space left on device): ...
    """
    try:
        yield
    except DiskFullError:
        raise
    except OSError as error:
        if error.errno not in _FULL:
            raise
        try:
            free = f"{format_size(shutil.disk_usage(folder).free)} are free"
        except OSError:
            free = "the free space is not known"
        needed = f"it needs {format_size(size)} and {free}" if size else free
        raise DiskFullError(
            error.errno,
            f"no room for the {what} in {folder} ({os.strerror(error.errno)}): {needed}. "
            "Nothing written before is lost: free some space and resume",
        ) from error


def sorted_header(content: bytes) -> bytes:
    """The same safetensors file with its header's entries sorted by name, so that equal weights give equal bytes: the library
    writes metadata in arbitrary order.

    >>> import json
    >>> text = b'{"__metadata__":{"b":"2","a":"1"}}'
    >>> sorted_header(len(text).to_bytes(8, "little") + text)[8:]
    b'{"__metadata__":{"a":"1","b":"2"}}      '
    """
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    if "__metadata__" in header:
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format requires tensors to start at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
