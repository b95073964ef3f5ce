"""One file from the network: resumed where it stopped, checked, and never half-written under its own name."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from regard._version import __version__

Report = Callable[[int, int | None], None]
Verify = Callable[[Path], str | None]

_CHUNK = 1 << 18
# Answers that another try at the same address will not change.
_FINAL = {400, 401, 403, 404, 405, 410, 451}


class DownloadError(OSError):
    """Nothing arrived that is right. ``tried`` says what was tried and how it ended, one line each."""

    def __init__(self, file: str, tried: Sequence[str]) -> None:
        self.file, self.tried = file, tuple(tried)
        super().__init__(f"{file} could not be downloaded. Tried:\n" + "\n".join(f"  {line}" for line in tried))


class _NetworkError(Exception):
    """A transfer that ended early; ``final`` where there is no use in asking the same address again."""

    def __init__(self, reason: object, final: bool = False) -> None:
        self.final = final
        super().__init__(str(reason) or type(reason).__name__)


def download(
    addresses: Sequence[str],
    target: Path,
    verify: Verify,
    *,
    report: Report | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Bring the file to ``target``; what is under that name is whole and verified, or what was there before.

    The bytes go to ``target.part``, which survives an interruption and is resumed from (HTTP Range) by the next call.

    Args:
        addresses: where it lies, tried in order.
        verify: says what is wrong with a file, or None where it is right.
        report: called with (bytes here, bytes in all or None) as they come.
        attempts: per address; the wait between two of them starts at ``pause`` seconds and doubles.
        timeout: seconds of silence after which the connection is given up.

    Raises :class:`DownloadError` where no address gives the right file.
    """
    part = part_of(target)
    tried: list[str] = []
    for address in addresses:
        for attempt in range(attempts):
            if attempt:
                time.sleep(pause * 2 ** (attempt - 1))
            try:
                _transfer(address, part, report, timeout)
            except _NetworkError as error:
                tried.append(f"{address}: {error}")
                if error.final:
                    break
                continue
            problem = verify(part)
            if problem is None:
                move_into_place(part, target)
                return
            # Bytes that are wrong cannot be resumed from.
            part.unlink()
            tried.append(f"{address}: {problem}")
    raise DownloadError(target.name, tried)


def _transfer(address: str, part: Path, report: Report | None, timeout: float) -> None:
    """Fill ``part`` up to the length the server states."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"regard/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with _open(Request(address, headers=headers), part, timeout) as response:
        if response is None:
            return
        start = 0
        if response.status == 206:
            start = _range_start(response.headers.get("Content-Range", ""))
            if start != have:
                part.unlink()
                raise _NetworkError(f"asked for the bytes from {have} on, got those from {start}")
        # A server that does not know ranges sends everything (200): begin again.
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None and length.isdigit() else None
        done = start
        with part.open("ab" if start else "wb") as file:
            while chunk := _read(response):
                file.write(chunk)
                done += len(chunk)
                if report is not None:
                    report(done, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and done < total:
        raise _NetworkError(f"the connection ended after {done:,} of {total:,} bytes")


@contextmanager
def _open(request: Request, part: Path, timeout: float) -> Iterator[Any]:
    """The response; None where the server says that ``part`` is already all there is."""
    try:
        response = urlopen(request, timeout=timeout)
    except HTTPError as error:
        with error:
            total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
        if error.code == 416 and part.exists():
            if total is not None and int(total[1]) == part.stat().st_size:
                yield None
                return
            part.unlink()
        raise _NetworkError(f"HTTP {error.code} {error.reason}", final=error.code in _FINAL) from error
    except URLError as error:
        # No way to the server at all: say so now, instead of after many tries.
        raise _NetworkError(error.reason, final=True) from error
    except (OSError, HTTPException) as error:
        raise _NetworkError(error) from error
    with response:
        yield response


def _read(response: Any) -> bytes:
    try:
        return response.read1(_CHUNK)  # what has come: a full read that times out would throw it away
    except (OSError, HTTPException) as error:
        raise _NetworkError(error) from error


def _range_start(header: str) -> int:
    match = re.match(r"bytes (\d+)-", header)
    return int(match[1]) if match else -1


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def write_aside(target: Path, data: bytes) -> None:
    """Write the file under another name, then rename it: a reader sees all of it or none."""
    part = part_of(target)
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    move_into_place(part, target)


def move_into_place(part: Path, target: Path) -> None:
    part.replace(target)
    if os.name == "posix":
        # The rename itself must outlast a power cut.
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def progress(title: str, expected: int) -> Iterator[Report]:
    """A bar on the terminal (standard error); nothing where there is none, or no rich to draw it."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.progress import TransferSpeedColumn as SpeedColumn
    except ImportError:
        yield lambda done, total: None
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=expected)
        yield lambda done, total: bar.update(task, completed=done, total=total or expected)


def note(text: str) -> None:
    """One line on the terminal (standard error); nothing where there is none."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr)
