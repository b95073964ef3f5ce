"""The error for images that cannot be used."""

from regard.support.checks import UnusableInputError


class UnsuitableDataError(UnusableInputError):
    """Your images cannot be used without changes. The message names the files and what to do."""
