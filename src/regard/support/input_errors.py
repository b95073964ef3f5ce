"""Which errors are about what was passed, and which about the work: damaged or missing data are not what someone typed."""


class FailedWorkError(Exception):
    """The work failed, although what was passed can be used. Commands end with exit code 1."""


def is_input_error(error: BaseException) -> bool:
    """Whether an error is about a value, name or path that was passed. Commands end with exit code 2.

    >>> from regard.data import DataMissingError
    >>> is_input_error(FileNotFoundError("no such run")), is_input_error(DataMissingError("no network"))
    (True, False)
    """
    kinds = (ValueError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)
    return isinstance(error, kinds) and not isinstance(error, FailedWorkError)
