"""Fingerprints of what regard computes, to show that a change of the code changes no number.

    python scripts/fingerprints maps           # one SHA-256 for each model family, and one over all
    python scripts/fingerprints                # every part: one module of this folder each

Run it on two commits and compare the output. Only public names of regard are used, so that it runs on both.
"""

import importlib
import sys
from pathlib import Path


def parts() -> list[str]:
    """The names of all modules here that have a ``lines`` function to print."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main(chosen: list[str]) -> None:
    unknown = sorted(set(chosen) - set(parts()))
    if unknown:
        raise SystemExit(f"unknown part {', '.join(unknown)}: choose from {', '.join(parts())}")
    for name in chosen or parts():
        for line in importlib.import_module(name).lines():
            print(f"{name}  {line}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
