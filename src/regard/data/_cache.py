"""The folder of data sets: find them, download them, and report what is missing."""

import errno
import os
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data._download import DownloadError, download, note, progress
from regard.data._sources import Download, Source, source_of
from regard.support.checksums import published_checksum
from regard.support.files import write_atomic
from regard.support.input_errors import FailedWorkError
from regard.support.reading import UnreadableError, read_limited
from regard.support.text import format_size

_LARGEST = 2**30  # bytes of a file, also when unpacked
State = Literal["embedded", "present", "incomplete", "absent"]


class DataMissingError(FileNotFoundError, FailedWorkError):
    """The data set was not found and could not be downloaded. The message names the files and where to put them."""


@dataclass(frozen=True)
class Status:
    """Which files of a data set were found. ``state`` is ``"embedded"`` (part of the package), ``"present"``,
    ``"incomplete"`` (files are missing or damaged) or ``"absent"``. The checksum of every file was compared."""

    name: str
    state: State
    folders: tuple[Path, ...]
    size: int
    problems: tuple[str, ...]


def data_folder() -> Path:
    """The folder of data sets: ``REGARD_DATA``, or the platform's cache folder of the user.

    >>> regard.data.data_folder().is_absolute()
    True
    """
    chosen = os.environ.get("REGARD_DATA")
    if chosen:
        return Path(chosen).expanduser().absolute()
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise ImportError(
            "the default data folder needs platformdirs: set REGARD_DATA, or pip install 'regard[train]'"
        ) from error
    return user_cache_path("regard", appauthor=False)


def status(name: str) -> Status:
    """Which files of a data set are here. Every file is read and compared with its published checksum.

    >>> regard.data.status("fashion-mini").state
    'embedded'
    """
    source = source_of(name)
    found: list[Path] = []
    problems: list[str] = []
    for member in source.members:
        copy = _search(source, member)
        if copy.path is not None:
            found.append(copy.path)
        else:
            problems.extend(copy.problems)
    if len(found) == len(source.members):
        state: State = "embedded" if source.embedded else "present"
    else:
        state = "incomplete" if found else "absent"
    folders = tuple(dict.fromkeys(path.parent for path in found))
    return Status(name, state, folders, sum(path.stat().st_size for path in found), tuple(problems))


def fetch(name: str) -> Path:
    """Download the files of a data set that were not found; returns the folder of the files.

    >>> regard.data.fetch("fashion-mini").name
    'fashion-mini'
    """
    source = source_of(name)
    fetch_source(source)
    return status(name).folders[0]


def read_members(source: Source, members: tuple[str, ...], *, allow_download: bool) -> list[bytes]:
    """The contents of the files, decompressed and compared with their checksums."""
    contents = [_search(source, member).content for member in members]
    if None in contents:
        if not allow_download:
            raise _missing(source, tried=["download=False: nothing was downloaded"])
        fetch_source(source)
        contents = [_search(source, member).content for member in members]
    whole = [content for content in contents if content is not None]
    if len(whole) < len(members):
        raise _missing(source, tried=["the files were downloaded but have disappeared"])
    return whole


def fetch_source(source: Source) -> None:
    """Download what is missing, one process at a time."""
    if not _absent(source):
        return
    if source.embedded:
        raise _missing(source, tried=["it is part of the package: reinstall regard"])
    folder = folders_of(source)[0]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder, source.title):
            # Another process may have downloaded them while this one waited.
            absent = _absent(source)
            for wanted in source.downloads:
                if absent.intersection(wanted.members):
                    _bring(source, wanted, folder)
    except OSError as error:
        reasons = {
            errno.EACCES: "it is not writable",
            errno.EPERM: "it is not writable",
            errno.EROFS: "it is not writable",
            errno.ENOSPC: "its disk is full",
        }
        if error.errno not in reasons:
            raise
        size = sum(wanted.size for wanted in source.downloads)
        raise OSError(
            error.errno,
            f"{source.title} ({format_size(size)} to download) cannot be stored in this folder: {reasons[error.errno]}. "
            f"Set REGARD_DATA to another folder",
            str(folder),
        ) from error


def folders_of(source: Source) -> list[Path]:
    """The folders that may hold the data set; downloads go to the first."""
    root = Path() if all(Path(folder).is_absolute() for folder in source.folders) else data_folder()
    return [root / folder for folder in source.folders]


class _FileCopy(NamedTuple):
    """The first valid copy of a file, and what is wrong with the others."""

    path: Path | None
    content: bytes | None
    problems: list[str]


def _search(source: Source, member: str) -> _FileCopy:
    problems = []
    for folder in folders_of(source):
        for path in (folder / member, folder / f"{member}.gz"):
            if not path.is_file():
                continue
            try:
                content = _content(path)
            except (OSError, UnreadableError, zlib.error) as error:
                problems.append(f"{path}: {error}")
                continue
            found = published_checksum(content, source.members[member])
            if found == source.members[member]:
                return _FileCopy(path, content, problems)
            problems.append(f"{path}: checksum {found}, expected {source.members[member]}")
    return _FileCopy(None, None, problems or [f"{folders_of(source)[0] / member}: absent"])


def _absent(source: Source) -> set[str]:
    return {member for member in source.members if _search(source, member).content is None}


def _content(path: Path) -> bytes:
    data = read_limited(path, _LARGEST)
    if path.suffix != ".gz":
        return data
    unpacking = zlib.decompressobj(wbits=31)  # gzip, with its own checksum
    content = unpacking.decompress(data, _LARGEST)
    if not unpacking.eof:
        raise zlib.error(f"it is truncated, or has more than {_LARGEST:,} bytes when unpacked")
    return content


def _bring(source: Source, wanted: Download, folder: Path) -> None:
    if wanted.is_archive:
        for candidate in folders_of(source):
            archive = candidate / wanted.file
            if archive.is_file() and published_checksum(archive.read_bytes(), wanted.md5) == wanted.md5:
                _unpack(source, wanted, archive, folder)
                return
    target = folder / wanted.file
    try:
        with progress(f"{source.title}: {wanted.file}", wanted.size) as report:
            download(wanted.addresses, target, wanted.md5, most=2 * wanted.size + 2**20, report=report)
    except DownloadError as error:
        raise _missing(source, tried=list(error.tried)) from error
    if wanted.is_archive:
        _unpack(source, wanted, target, folder)
        target.unlink()


def _unpack(source: Source, wanted: Download, archive: Path, folder: Path) -> None:
    """Extract only files whose name and checksum are known, and ignore the paths in the archive."""
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            member = Path(entry.name).name
            file = tar.extractfile(entry) if entry.isfile() and member in wanted.members else None
            if file is None:
                continue
            if entry.size > _LARGEST:
                continue
            content = file.read()
            if published_checksum(content, source.members[member]) == source.members[member]:
                write_atomic(folder / member, content)
    left = [member for member in wanted.members if _search(source, member).content is None]
    if left:
        raise _missing(source, tried=[f"{archive}: does not contain the official {', '.join(left)}"])


def _missing(source: Source, tried: list[str]) -> DataMissingError:
    folder, absent = folders_of(source)[0], _absent(source)
    lines = [f"{source.title} ({source.name}) was not found and could not be downloaded."]
    for wanted in source.downloads:
        if not absent.intersection(wanted.members):
            continue
        inside = f", or unpacked {', '.join(wanted.members)}" if wanted.is_archive else ""
        lines.append(f"Put {wanted.file} (from {wanted.addresses[0]}){inside} into {folder}")
    if not source.embedded:
        lines.append(f"or set REGARD_DATA to a folder that contains {source.folders[0]}/ (now it is {data_folder()}).")
    looked = [problem for member in source.members for problem in _search(source, member).problems]
    lines += ["Tried:", *(f"  {line}" for line in [*looked, *tried])]
    return DataMissingError("\n".join(lines))


@contextmanager
def _lock(folder: Path, title: str) -> Iterator[None]:
    """A lock between processes; the system releases it when its owner ends, even if it is killed."""
    from filelock import FileLock, Timeout  # torch depends on it

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        note(f"{title}: another process is downloading it; waiting")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
