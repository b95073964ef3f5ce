"""List and download data sets."""

import argparse
import sys
from collections.abc import Sequence


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, or 1 if a data set could not be downloaded."""
    parser = argparse.ArgumentParser(prog="regard data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="list all data sets with their state, size and folder; verify checksums")
    fetch = commands.add_parser("fetch", help="download data sets to the data folder")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="a data set's name, or 'all'")
    commands.add_parser("path", help="print the data folder (set REGARD_DATA to choose another)")
    chosen = parser.parse_args(arguments)
    if chosen.command == "list":
        return list_data()
    if chosen.command == "fetch":
        return fetch_data(chosen.names)
    return show_path()


def list_data() -> int:
    """Print a table of the data sets. Each file is compared with its published checksum."""
    from regard.data import data_folder, names, source_of, status
    from regard.support.tables import text_table
    from regard.support.text import format_size

    rows = [("name", "state", "size", "license", "where")]
    problems = []
    for name in names():
        source, found = source_of(name), status(name)
        state = {
            "embedded": "in the package, verified",
            "present": "present, verified",
            "incomplete": "some files missing or damaged",
            "absent": "not downloaded",
        }[found.state]
        if found.state in ("embedded", "present"):
            size = format_size(found.size)
        else:
            size = f"{format_size(sum(download.size for download in source.downloads))} to download"
        problems += [problem for problem in found.problems if not problem.endswith(": absent")]
        first, *others = map(str, found.folders or [""])
        rows += [(name, state, size, source.license, first), *(("", "", "", "", other) for other in others)]
    print("\n".join(text_table(rows)))  # not wrapped, so that paths can be copied
    print(f"data folder: {data_folder()}")
    for problem in problems:
        print(f"damaged: {problem}")
    return 0


def fetch_data(wanted: Sequence[str]) -> int:
    """Download each of these data sets from its official source, unless it is present."""
    from regard.data import DataMissingError, fetch, names

    unknown = [name for name in wanted if name not in (*names(), "all")]
    if unknown:
        raise ValueError(f"unknown data set {', '.join(unknown)}; choose from {', '.join(names())}, all")
    failed = False
    for name in names() if "all" in wanted else dict.fromkeys(wanted):
        try:
            print(f"{name}: {fetch(name)}")
        except DataMissingError as error:
            print(error, file=sys.stderr)
            failed = True
        except OSError as error:  # a folder that cannot be written, a full disk
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
    return 1 if failed else 0


def show_path() -> int:
    from regard.data import data_folder

    print(data_folder())
    return 0
