"""Print the lowest version of each direct dependency that pyproject.toml allows, as pip constraints.

    python scripts/release/lowest_versions.py train notebook studio > build/lowest.txt
    pip install --constraint build/lowest.txt '.[all]'

torch is left out: only one of its versions has a CPU build that can be installed without gigabytes of CUDA libraries, so
constraints.txt decides which one is taken. Dependencies of dependencies are left to pip.

>>> lowest("pillow>=12.2  # a remark"), lowest("regard[train]"), lowest("triton>=3.4; sys_platform == 'linux'")
('pillow==12.2', None, 'triton==3.4')
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
NOT_LOWERED = ("torch",)


def lowest(requirement: str) -> str | None:
    """``name>=1.2`` as ``name==1.2``; None for a requirement without a lower bound (our own extras)."""
    found = re.match(r"\s*([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?\s*>=\s*([A-Za-z0-9_.]+)", requirement)
    return f"{found[1]}=={found[2]}" if found and found[1] not in NOT_LOWERED else None


def requirements(extras: Iterable[str]) -> Iterator[str]:
    """What the package itself and these extras require, extras of extras included."""
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    yield from project["dependencies"]
    waiting, seen = list(extras), set()
    while waiting:
        extra = waiting.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for requirement in project["optional-dependencies"][extra]:
            own = re.match(r"regard\[([^\]]*)\]", requirement)
            if own:
                waiting += [name.strip() for name in own[1].split(",")]
            else:
                yield requirement


def main(extras: list[str], file: TextIO = sys.stdout) -> None:
    pins = {pin for requirement in requirements(extras) if (pin := lowest(requirement))}
    print("\n".join(sorted(pins)), file=file)


if __name__ == "__main__":
    main(sys.argv[1:])
