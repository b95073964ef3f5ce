"""Counts, sizes and durations as text, and sizes read from text."""

import os
import re
from collections.abc import Sequence
from functools import lru_cache

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def whole_characters(text: str) -> str:
    """The text with a question mark for each unpaired Unicode surrogate, which cannot be encoded.

    >>> whole_characters("a\\ud83d, \\U0001f600") == "a?, \\U0001f600"
    True
    """
    return text.encode("utf-8", "replace").decode()


def file_name(name: str) -> str:
    """The name of a file as text that can be saved. A byte that is no UTF-8, as an archive of another system may bring, is
    written ``\\xe9``; two names that differ stay different.

    >>> file_name("café"), file_name("caf\\udce9")
    ('café', 'caf\\\\xe9')
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def format_count(count: int) -> str:
    """A count in three digits and a decimal prefix.

    >>> format_count(816), format_count(1_234_567), format_count(999_999)
    ('816', '1.23 M', '1 M')
    """
    return _scaled(count, 1000, ("", "k", "M", "G", "T")).rstrip()


def format_size(size: int, *, binary: bool = False) -> str:
    """A number of bytes in three digits, in units of 1000; ``binary`` counts in units of 1024.

    >>> format_size(170_052_171), format_size(3 * 2**20, binary=True), format_size(12)
    ('170 MB', '3 MiB', '12 B')
    """
    if binary:
        return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return _scaled(size, 1000, ("B", "kB", "MB", "GB", "TB"))


def format_number(value: object) -> str:
    """A measured number in four digits; lists and dictionaries entry by entry.

    >>> format_number({"error": 0.123456, "sizes": [1, 2]})
    'error: 0.1235; sizes: 1, 2'
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(format_number, value))
    if isinstance(value, dict):
        return "; ".join(f"{key}: {format_number(entry)}" for key, entry in value.items())
    return str(value)


_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*")


def format_metric(value: float) -> str:
    """A share from 0 to 1 in per cent; any other number, such as a perplexity, as it is.

    >>> format_metric(0.9128), format_metric(31.25)
    ('91.28%', '31.25')
    """
    return f"{value:.2%}" if 0 <= value <= 1 else f"{value:.4g}"


def parse_size(size: str | int, name: str = "size") -> int:
    """A number of bytes, passed as an integer or as text with a unit. ``name`` is the argument's name in an error message.

    >>> parse_size("2GiB"), parse_size("1.5 MB"), parse_size(100)
    (2147483648, 1500000, 100)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _bytes_in(size) if isinstance(size, str) else None
    if found is None:
        raise ValueError(f'{name} must be a number of bytes or a size such as "2GiB" or "500MB", got {size!r}')
    return found


@lru_cache(64)
def _bytes_in(size: str) -> int | None:
    """The number of bytes that a text with a unit states; None if it states none."""
    found = _SIZE.fullmatch(size)
    if found is None or found[2].upper() not in _UNITS:
        return None
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _scaled(number: int, base: int, units: tuple[str, ...]) -> str:
    value, step = float(number), 0
    # 999.5 would be rounded to 1000, which belongs to the next unit.
    while value >= base - (0.5 if step else 0) and step < len(units) - 1:
        value, step = value / base, step + 1
    if not step:
        return f"{number} {units[0]}"
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    shown = f"{value:.{digits}f}"
    return f"{shown.rstrip('0').rstrip('.') if '.' in shown else shown} {units[step]}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def error_in_words(error: BaseException) -> str:
    """The class and first line of an error. A user-defined error may have no text, or fail while producing it.

    >>> error_in_words(ZeroDivisionError("division by zero"))
    'ZeroDivisionError: division by zero'
    """
    try:
        said = str(error).strip().partition("\n")[0]
    except Exception:
        said = ""
    return f"{type(error).__name__}: {said:.500}" if said else type(error).__name__
