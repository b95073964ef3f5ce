"""What is said about data that cannot be used."""

from collections.abc import Sequence

from regard.support.checks import UnusableInputError


class UnsuitableDataError(UnusableInputError):
    """Your images cannot be used as they are. The message names the files and what to do."""


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return ", ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"
