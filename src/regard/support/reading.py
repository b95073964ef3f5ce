"""Read untrusted files: limited size, no pipes or devices, JSON of limited depth, only names inside a folder.

Everything here raises ``OSError`` or ``ValueError`` with a message for the user, whatever the file contains.
"""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from regard.support.input_errors import FailedWorkError

LARGEST_JSON = 64 * 2**20
DEEPEST_JSON = 64
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# Names that Windows reserves for devices, in every folder and with every extension.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{name}{number}" for name in ("com", "lpt") for number in range(10))}


class UnreadableError(ValueError, FailedWorkError):
    """A file that regard does not read: of another kind, too large, or with unexpected content."""


def is_plain_name(name: Any) -> bool:
    """Whether a string from a file may name a file next to it, on every system: no path, no drive, no device.

    >>> [is_plain_name(name) for name in ("000001.map", "../x", "/etc/passwd", "c:x", "NUL.txt", ".", "a\\\\b", 3)]
    [True, False, False, False, False, False, False, False]
    """
    if not isinstance(name, str) or not 0 < len(name) <= 255 or name.strip(". ") == "" or name[-1] in ". ":
        return False
    if any(sign in '/\\\\:*?"<>|' or not sign.isprintable() for sign in name):
        return False
    return name.partition(".")[0].rstrip().lower() not in _DEVICES


def file_inside(folder: Path, name: Any) -> Path:
    """The path of the regular file with that name in the folder. A link to a place outside the folder raises an error.

    >>> file_inside(Path("maps"), "../secret")
    Traceback (most recent call last):
    regard.support.reading.UnreadableError: maps names the file '../secret', but only plain names of files inside ...
    """
    if not is_plain_name(name):
        raise UnreadableError(
            f"{folder} names the file {name!r:.200}, but only plain names of files inside the folder are read"
        )
    path = folder / name
    check_regular(path)
    if not os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), "")):  # noqa: PTH118
        raise UnreadableError(f"{path} links to a place outside its folder; only files inside the folder are read")
    return path


def check_regular(path: str | os.PathLike[str], most: int | None = None) -> int:
    """The size of a regular file in bytes. Pipes and devices raise an error, because reading them may never end."""
    path = Path(path)
    try:
        found = path.stat()
    except RuntimeError as loop:  # older versions of pathlib raise this for links that lead to themselves
        raise UnreadableError(f"{path} is a link to itself") from loop
    return _checked(path, found, most)


def _checked(path: Path, found: os.stat_result, most: int | None) -> int:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise UnreadableError(f"{path} is {kind}, not a file that can be read")
    if most is not None and found.st_size > most:
        raise UnreadableError(f"{path} has {found.st_size:,} bytes, more than {most:,}, the largest size that is read")
    return found.st_size


def open_regular(path: str | os.PathLike[str], most: int | None = None) -> BinaryIO:
    """Open a regular file of at most ``most`` bytes for reading.

    >>> open_regular("/dev/zero")
    Traceback (most recent call last):
    regard.support.reading.UnreadableError: /dev/zero is a device, not a file that can be read
    """
    path = Path(path)
    check_regular(path, most)
    # The file may have been replaced since the check: O_NONBLOCK avoids waiting on a pipe, and the open file is checked again.
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb")
    try:
        _checked(path, os.fstat(file.fileno()), most)
    except UnreadableError:
        file.close()
        raise
    return file


def read_limited(path: str | os.PathLike[str], most: int) -> bytes:
    """The content of a regular file of at most ``most`` bytes.

    >>> read_limited("/dev/zero", 100)
    Traceback (most recent call last):
    regard.support.reading.UnreadableError: /dev/zero is a device, not a file that can be read
    """
    with open_regular(path, most) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableError(f"{path} grew beyond {most:,} bytes while it was read")
    return content


def read_json(path: str | os.PathLike[str], most: int = LARGEST_JSON, *, finite: bool = True) -> Any:
    """The content of a JSON file (see :func:`parse_json`)."""
    content = read_limited(path, most)
    try:
        return parse_json(content, finite=finite)
    except ValueError as error:
        raise UnreadableError(f"{path} cannot be read: {error}") from error


def read_object(path: str | os.PathLike[str], most: int = LARGEST_JSON, *, finite: bool = True) -> dict[str, Any]:
    """The content of a JSON file that holds an object."""
    found = read_json(path, most, finite=finite)
    if not isinstance(found, dict):
        raise UnreadableError(f"{path} must hold a JSON object, but holds {_json_kind(found)}")
    return found


def parse_json(content: bytes | str, *, finite: bool = True) -> Any:
    """Parse JSON that all readers interpret alike: finite numbers, complete Unicode characters, limited depth.
    Without ``finite``, the constants NaN and Infinity, which Python writes, are accepted as well.

    >>> parse_json(b'{"step": 3}')
    {'step': 3}
    >>> parse_json(b'{"step": 1e999}')
    Traceback (most recent call last):
    ValueError: the number 1e999 is too large
    """
    text = content.decode("utf-8") if isinstance(content, bytes) else content
    try:
        found = _DECODERS[finite].decode(text)
    except RecursionError:
        raise ValueError(f"more than {DEEPEST_JSON} levels of nesting") from None
    _check_levels(found, escaped="\\u" in text)
    return found


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a valid JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits:.40} is too large")
    return number


def _whole(digits: str) -> int:
    if len(digits) > 20 or not -(2**63) <= (number := int(digits)) < 2**63:
        raise ValueError(f"the number {digits:.40} is too large")
    return number


# Created once, because files of many lines are parsed line by line.
_DECODERS = {
    finite: json.JSONDecoder(parse_constant=constant, parse_float=_finite, parse_int=_whole)
    for finite, constant in ((True, _refuse), (False, float))
}


def _check_levels(found: Any, escaped: bool) -> None:
    """Raise an error for deep nesting and for unpaired Unicode surrogates, which only an escape sequence can produce."""
    level, depth = [found], 0
    while level:
        depth += 1
        if depth > DEEPEST_JSON:
            raise ValueError(f"more than {DEEPEST_JSON} levels of nesting")
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
                below += each if escaped else ()
            elif isinstance(each, list):
                below += each
            elif escaped and isinstance(each, str):
                each.encode()  # raises UnicodeEncodeError, a ValueError
        level = [each for each in below if isinstance(each, dict | list | str)]


def _json_kind(value: Any) -> str:
    names = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
