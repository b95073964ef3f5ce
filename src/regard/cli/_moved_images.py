"""``--task.data``: where a run's own images are now, for the commands that need them after training."""

import argparse
import os
from pathlib import Path

from regard.data import UnsuitableDataError, own_path
from regard.training import ImageTask, Run, load_run


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Add the option, which is called as in ``regard train``."""
    parser.add_argument(
        "--task.data", dest="data", metavar="PATH", help="where the run's own images are now, if they were moved"
    )


def open_run(folder: str | os.PathLike[str], data: str | None) -> Run:
    """Open a run. Images of the user's own that are no longer at their path are an error that says what to pass."""
    run = load_run(folder, data=data)
    task = run.recipe.task
    path = own_path(task.data) if isinstance(task, ImageTask) else None
    if path is not None and not Path(path).exists():
        raise UnsuitableDataError(
            f"there are no images at {path}, where the run expects them: pass the path where they are now (--task.data PATH)"
        )
    return run
