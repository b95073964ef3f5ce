"""``regard studio``: look at runs and their networks in the browser."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(prog="regard studio", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", help="the folder whose runs are shown, new ones included; default runs"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; any other than this machine's own requires a token"
    )
    parser.add_argument("--port", type=int, help="default 8642, or the next free one")
    parser.add_argument(
        "--name", action="append", default=[], help="another host name that requests may use (can be repeated)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    chosen = parser.parse_args(list(arguments))
    if chosen.port is not None and not 0 <= chosen.port < 65536:
        parser.error(f"--port must be 0 to 65535, got {chosen.port}")
    if chosen.folder is not None and not chosen.folder.is_dir():
        raise NotADirectoryError(f"{chosen.folder} is not a folder; a folder that contains runs would fit")
    from regard.studio import serve

    serve(
        chosen.folder or Path("runs"),
        host=chosen.host,
        port=chosen.port,
        names=chosen.name,
        browser=not chosen.no_browser,
    )
    return 0
