"""Bring the tables in the README and in the documentation up to date with the files under benchmarks/results.

    python scripts/readme_results.py            # rewrites what stands between the markers
    python scripts/readme_results.py --check    # changes nothing; exit code 1 where something is out of step

A table stands between ``<!-- results: NAME -->`` and ``<!-- end -->``; the names are those of scripts/results.py.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from results import Result, load, replace_tables

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/comparison.md",
    "docs/costs.md",
    "docs/guides/convert.md",
    "docs/guides/long.md",
    "docs/guides/reproduction.md",
    "docs/guides/rival.md",
    "docs/guides/speedrun.md",
    "docs/guides/train.md",
    "docs/theory/index.md",
)


def updated(page: str, text: str, results: Sequence[Result] | None = None) -> str:
    """The text of a page with each table made anew, its links as that page needs them."""
    prefix = "../" * page.count("/") + "benchmarks/results/"
    return replace_tables(text, prefix, load() if results is None else results)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether the tables are in step")
    options = parser.parse_args(arguments)
    changed = []
    for page in PAGES:
        before = (ROOT / page).read_text("utf-8")
        after = updated(page, before)
        if before != after:
            changed.append(page)
            if not options.check:
                (ROOT / page).write_text(after, encoding="utf-8")
    if options.check:
        print(f"out of step: {', '.join(changed)}; run python scripts/readme_results.py" if changed else "in step")
        return int(bool(changed))
    print(f"rewritten: {', '.join(changed)}" if changed else "unchanged")
    return 0


if __name__ == "__main__":
    sys.exit(main())
