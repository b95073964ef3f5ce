"""Inspect runs and their networks in the browser."""

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from regard.support.checks import UnusableInputError


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="regard studio", description=__doc__)
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        help="the folder of the runs to show, including runs that start later; default runs",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; by default other machines cannot reach the studio"
    )
    parser.add_argument("--port", type=int, help="default 8642, or the next free port")
    parser.add_argument(
        "--name",
        action="append",
        default=[],
        help="a further host name under which the studio can be reached (can be repeated)",
    )
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="your own model: a function that returns (model, read), as package.module:function or file.py:function; "
        "or a file of saved maps",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    chosen = parser.parse_args(list(arguments))
    if chosen.port is not None and not 0 <= chosen.port < 65536:
        parser.error(f"--port must be 0 to 65535, got {chosen.port}")
    if chosen.folder is not None and not chosen.folder.is_dir():
        raise NotADirectoryError(f"{chosen.folder} is not a folder; pass a folder that contains runs")
    from regard.studio import open_model, serve

    if chosen.model is not None:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does: the module is usually in this folder
    try:
        model = None if chosen.model is None else open_model(chosen.model)
    except TypeError as error:  # the function returns something else than a model and its input
        raise UnusableInputError(f"--model {chosen.model}: {error}") from error
    try:
        serve(
            chosen.folder or Path("runs"),
            host=chosen.host,
            port=chosen.port,
            names=chosen.name,
            model=model,
            browser=not chosen.no_browser,
        )
    finally:
        leave_threads()
    return 0


def leave_threads(seconds: float = 2.0) -> None:
    """End the program even if a request is still running: Python would wait for its thread. Threads that read images for a
    request (``regard-…``) wait for the next one, and end with the program."""
    until = time.monotonic() + seconds
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon and not thread.name.startswith("regard-"):
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                print("stopped while a request was still being answered", file=sys.stderr, flush=True)
                os._exit(130)
