"""Download one file with pooch: tries several mirrors, resumes after an interruption, verifies the checksum."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from regard._version import __version__

Report = Callable[[int, int | None], None]

_CHUNK = 1 << 14  # bytes lost at most when a connection breaks
_FINAL = {400, 401, 403, 404, 405, 410, 451}  # HTTP errors for which another attempt is useless


class DownloadError(OSError):
    """No mirror returned a valid file. ``tried`` has one line for each attempt."""

    def __init__(self, file: str, tried: Sequence[str]) -> None:
        self.file, self.tried = file, tuple(tried)
        super().__init__(f"{file} could not be downloaded. Tried:\n" + "\n".join(f"  {line}" for line in tried))


def download(
    addresses: Sequence[str],
    target: Path,
    md5: str,
    *,
    most: int | None = None,
    report: Report | None = None,
    attempts: int = 5,
    pause: float = 1.0,
    timeout: float = 30.0,
) -> None:
    """Download a file to ``target``, which afterwards is complete and checked, or unchanged.

    Args:
        addresses: the mirrors, tried in order.
        md5: the checksum of the file.
        most: the largest number of bytes to accept; None has no limit.
        report: called with (bytes received, bytes in total or None) during the transfer.
        attempts: per mirror; the pause between two attempts starts at ``pause`` seconds and doubles.
        timeout: seconds without data after which a connection is closed.

    Raises :class:`DownloadError` if no mirror returns a valid file.
    """
    pooch, requests = _libraries()
    tried: list[str] = []
    for address in addresses:
        for attempt in range(attempts):
            if attempt:
                time.sleep(pause * 2 ** (attempt - 1))
            transfer = _Transfer(part_of(target), report, timeout, most)
            try:
                pooch.retrieve(address, f"md5:{md5}", target.name, target.parent, downloader=transfer)
                return
            except (ValueError, requests.RequestException) as error:
                tried.append(f"{address}: {error}")
                if not transfer.connected or transfer.status in _FINAL:
                    break
    raise DownloadError(target.name, tried)


class _Transfer:
    """A downloader for pooch. Pooch's own starts from the first byte after every interruption, which is slow for large
    files. This one keeps the received bytes in ``part`` and requests the rest."""

    def __init__(self, part: Path, report: Report | None, timeout: float, most: int | None = None) -> None:
        self.part, self.report, self.timeout, self.most = part, report, timeout, most
        self.connected, self.status = False, 0

    def __call__(self, address: str, output: str, _: Any = None) -> None:
        _, requests = _libraries()
        start = self.part.stat().st_size if self.part.exists() else 0
        headers = {"User-Agent": f"regard/{__version__}", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        with (
            _session(requests) as session,
            session.get(address, headers=headers, stream=True, timeout=self.timeout) as response,
        ):
            self.connected, self.status = True, response.status_code
            if self.status != 416:  # no bytes after ``start``: the checksum decides whether the part is the whole file
                response.raise_for_status()
                self._receive(response, start if self.status == 206 else 0)
        self.part.replace(output)

    def _receive(self, response: Any, start: int) -> None:
        _, requests = _libraries()
        sent = response.headers.get("Content-Range", "")
        if start and not sent.startswith(f"bytes {start}-"):
            self.part.unlink()
            raise requests.RequestException(f"requested the bytes from {start}, got {sent or 'others'}")
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        if total is not None and self.most is not None and total > self.most:
            self._refuse(requests)
        with self.part.open("ab" if start else "wb") as file:
            for chunk in response.iter_content(_CHUNK):
                if self.most is not None and file.tell() + len(chunk) > self.most:
                    self._refuse(requests)
                file.write(chunk)
                if self.report is not None:
                    self.report(file.tell(), total)

    def _refuse(self, requests: Any) -> None:
        """Refuse a mirror that sends too much; it is not tried again."""
        self.part.unlink(missing_ok=True)
        self.connected = False
        raise requests.RequestException(f"sends more than {self.most:,} bytes, too many for this file")


def _session(requests: Any) -> Any:
    """A session that refuses redirects from an encrypted address to an unencrypted one."""

    class Session(requests.Session):  # type: ignore[misc]
        def get_redirect_target(self, resp: Any) -> str | None:
            target: str | None = super().get_redirect_target(resp)
            where = urljoin(resp.url, target or "")
            if resp.url.lower().startswith("https:") and not where.lower().startswith("https:"):
                raise requests.RequestException(f"redirects to {where:.200}, which is not encrypted")
            return target

    return Session()


def _libraries() -> tuple[Any, Any]:
    try:
        import pooch
        import requests  # pooch depends on it
    except ImportError as missing:
        raise ImportError("downloads need pooch: pip install 'regard[train]'") from missing
    pooch.get_logger().setLevel("WARNING")  # the progress bar already says what is downloaded
    return pooch, requests


def part_of(target: Path) -> Path:
    """The file that holds the bytes of an unfinished download."""
    return target.with_name(target.name + ".part")


@contextmanager
def progress(title: str, expected: int) -> Iterator[Report]:
    """A progress bar on the terminal (standard error), if there is a terminal and rich is installed."""
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
    """One line on the terminal (standard error), if there is one."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(text, file=sys.stderr)
