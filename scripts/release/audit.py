"""Look up known advisories for the versions we pin and for the lowest ones we allow: ``make audit``.

pip-audit asks the package index's advisory service. Where that cannot be reached, this says so and checks nothing.
"""

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from lowest_versions import main as print_lowest

ROOT = Path(__file__).parents[2]


def audit(pip_audit: Path, requirements: Path) -> tuple[list[str], int]:
    """Advisories, one line each, and how many packages were looked up."""
    command = [pip_audit, "--requirement", requirements, "--no-deps", "--disable-pip", "--format", "json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(finished.stdout)["dependencies"]
    except (ValueError, KeyError):
        raise SystemExit(f"pip-audit failed:\n{finished.stderr}") from None
    looked_up = [package for package in packages if "skip_reason" not in package]
    found = [
        f"{package['name']} {package['version']}: {advisory['id']}, fixed in {', '.join(advisory['fix_versions']) or '?'}"
        for package in looked_up
        for advisory in package["vulns"]
    ]
    return found, len(looked_up)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        tools = Path(folder) / "bin"
        subprocess.run([tools / "python", "-m", "pip", "install", "--quiet", "pip-audit"], check=True)
        floors = Path(folder) / "lowest.txt"
        with floors.open("w", encoding="utf-8") as file:
            print_lowest(["all"], file)
        found, looked_up = [], 0
        for requirements in (ROOT / "constraints.txt", floors):
            lines, count = audit(tools / "pip-audit", requirements)
            found += lines
            looked_up += count
    if looked_up == 0:
        print("the advisory service could not be reached: nothing was checked")
        return 0
    print("\n".join(found) or f"no known advisory for {looked_up} pinned versions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
