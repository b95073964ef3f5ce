"""What is said about data that cannot be used."""

from regard.support.checks import UnusableInputError


class UnsuitableDataError(UnusableInputError):
    """Your images cannot be used as they are. The message names the files and what to do."""
