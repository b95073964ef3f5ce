"""``regard studio``: look at runs and models in the browser."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def run(arguments: Sequence[str]) -> int:
    """The command's exit code."""
    parser = argparse.ArgumentParser(prog="regard studio", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="whose runs are shown, also later ones; default runs")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; others than this ask for a token")
    parser.add_argument("--port", type=int, help="default 8642, or the next one that is free")
    parser.add_argument(
        "--name", action="append", default=[], help="a further name that the server may be called by (repeat it)"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    chosen = parser.parse_args(list(arguments))
    if chosen.port is not None and not 0 <= chosen.port < 65536:
        parser.error(f"--port must be 0 to 65535, got {chosen.port}")
    if chosen.folder is not None and not chosen.folder.is_dir():
        raise NotADirectoryError(f"{chosen.folder} is not a folder; one that holds runs would fit")
    from regard.studio import serve

    serve(
        chosen.folder or Path("runs"),
        host=chosen.host,
        port=chosen.port,
        names=chosen.name,
        browser=not chosen.no_browser,
    )
    return 0
