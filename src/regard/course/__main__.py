"""Grade notebooks of the course: ``python -m regard.course CHECKS SUBMISSION…`` (``-`` reads the checks from a pipe)."""

import argparse
import csv
import json
import sys
from pathlib import Path

from regard.course.grading import Package, as_gradescope, as_manual_sheet, as_table, as_text, grade_files


def main(arguments: list[str] | None = None) -> int:
    """Print marks, and write the requested files."""
    parser = argparse.ArgumentParser(prog="python -m regard.course", description=__doc__)
    parser.add_argument("checks", help="checks.json of a notebook, made by make course; - reads it from standard input")
    parser.add_argument("submission", nargs="+", type=Path, help="notebooks, or folders of them")
    parser.add_argument("--students", type=Path, help="CSV with columns name and file, if file names are not names")
    parser.add_argument("--student", help="the name of the one student whose submission this is")
    parser.add_argument("--table", type=Path, help="write the points of all as CSV")
    parser.add_argument("--gradescope", type=Path, help="write results.json for Gradescope (one submission)")
    parser.add_argument("--manual", type=Path, help="write a sheet of the answers to be graded by hand, with rubrics")
    parser.add_argument("--hide-hidden", action="store_true", help="do not say what a hidden check found")
    parser.add_argument("--jobs", type=int, help="submissions at a time")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time for one check")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.checks == "-" else Path(options.checks).read_text(encoding="utf-8")
        package = Package.from_json(text)
        names = _names(options.students) if options.students else {}
    except (OSError, ValueError, KeyError) as error:
        print(error, file=sys.stderr)
        return 2
    paths = [
        file for path in options.submission for file in (sorted(path.rglob("*.ipynb")) if path.is_dir() else [path])
    ]
    if not paths:
        print("there are no notebooks there", file=sys.stderr)
        return 2
    files = [(path, options.student or names.get(path.name) or _name(path, package.notebook)) for path in paths]
    found = []
    for marks in grade_files(files, package, jobs=options.jobs, seconds=options.seconds):
        found.append(marks)
        if len(files) == 1:
            print(as_text(marks, show_hidden=not options.hide_hidden), end="")
        else:
            print(f"{marks.student or paths[len(found) - 1].name}: {marks.points:g} of {marks.possible:g}", flush=True)
    if options.table:
        options.table.write_text(as_table(found), encoding="utf-8")
    if options.manual:
        options.manual.write_text(as_manual_sheet(found, package), encoding="utf-8")
    if options.gradescope:
        result = as_gradescope(found[0], show_hidden=not options.hide_hidden)
        options.gradescope.write_text(json.dumps(result, ensure_ascii=False), encoding="utf-8")
    return 0


def _name(path: Path, notebook: str) -> str:
    """The student of a file: the name of the file, or of its folder if all files have the name that was handed out."""
    return path.parent.name if path.stem == notebook else path.stem


def _names(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8") as file:
        return {row["file"]: row["name"] for row in csv.DictReader(file)}


if __name__ == "__main__":
    sys.exit(main())
