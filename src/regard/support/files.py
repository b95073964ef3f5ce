"""Write files so that a crash, a kill or a full disk leaves either the old content or the new one."""

import errno
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from regard.support.checks import UnusableInputError
from regard.support.text import format_size

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskFullError(OSError):
    """The disk has no room for the new file. Nothing written before is lost."""

    def __str__(self) -> str:
        return str(self.strerror)  # the message already names the reason, so leave out the error number


def check_writable(name: str, path: Path) -> None:
    """Refuse a path that no file can be written to, before what is to be written there has taken its time.

    >>> check_writable("--result", Path("."))
    Traceback (most recent call last):
    regard.support.checks.UnusableInputError: --result must be a file, but . is a folder
    """
    if path.is_dir():
        raise UnusableInputError(f"{name} must be a file, but {path} is a folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UnusableInputError(f"{name} {path} cannot be written: {error.strerror or error}") from error


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write or replace a file in one step: a reader sees the old file or the new one, never a part.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomic(Path(folder) / "note.txt", "hello")
    ...     [path.name for path in Path(folder).iterdir()]
    ['note.txt']
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.writing")
    try:
        write_synced(aside, content.encode() if isinstance(content, str) else content)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process left of :func:`write_atomic` in a folder that no other process writes to."""
    for path in folder.glob(".*.writing"):
        path.unlink(missing_ok=True)


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
        what: the file, as the message calls it.
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
    """The same safetensors file with the entries of its header in order of their names, so that equal weights give equal
    bytes: the library writes metadata in any order.

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
    text += b" " * (-len(text) % 8)  # the format wants tensors to begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text + content[8 + length :]
