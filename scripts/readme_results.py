"""Bring the tables in the README up to date with the files under benchmarks/results.

    python scripts/readme_results.py            # rewrites what stands between the markers
    python scripts/readme_results.py --check    # changes nothing; exit code 1 where something is out of step

A table stands between ``<!-- results: NAME -->`` and ``<!-- end -->``; the names are those of scripts/results.py.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from results import Result, load, table

README = Path(__file__).parents[1] / "README.md"
_BLOCK = re.compile(r"(<!-- results: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def updated(text: str, results: Sequence[Result] | None = None) -> str:
    """The text with each table made anew."""
    found = load() if results is None else results
    made, count = _BLOCK.subn(
        lambda block: f"{block[1]}{table(block[2], 'benchmarks/results/', found)}\n{block[3]}", text
    )
    if not count or count != text.count("<!-- results:"):
        raise ValueError("each <!-- results: NAME --> needs its <!-- end -->, and there must be one at least")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the tables are in step")
    options = parser.parse_args(arguments)
    before = README.read_text("utf-8")
    after = updated(before)
    if options.check:
        print("in step" if before == after else "out of step: run python scripts/readme_results.py")
        return int(before != after)
    README.write_text(after, encoding="utf-8")
    print("unchanged" if before == after else f"{README.name} rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
