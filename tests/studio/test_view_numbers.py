"""The browser's computation is tested against a file of numbers; here the file is tested against the library."""

import json
import math
import runpy
from pathlib import Path
from typing import Any

SCRIPT = runpy.run_path(str(Path(__file__).parent / "view_numbers.py"))


def differences(found: Any, stored: Any, place: str = "") -> list[str]:
    if isinstance(found, dict):
        if not isinstance(stored, dict) or found.keys() != stored.keys():
            return [f"{place}: other names"]
        return [line for key in found for line in differences(found[key], stored[key], f"{place}.{key}")]
    if isinstance(found, list):
        if not isinstance(stored, list) or len(found) != len(stored):
            return [f"{place}: another length"]
        pairs = enumerate(zip(found, stored, strict=True))
        return [line for at, (a, b) in pairs for line in differences(a, b, f"{place}[{at}]")]
    if isinstance(found, float) and isinstance(stored, int | float):
        same = math.isclose(found, stored, rel_tol=1e-10, abs_tol=1e-12)
    else:
        same = found == stored
    return [] if same else [f"{place}: {found} and {stored}"]


def test_the_stored_numbers_are_the_library_s():
    stored = json.loads(SCRIPT["FILE"].read_text(encoding="utf-8"))
    found = differences(SCRIPT["numbers"](), stored)
    assert not found, f"run {Path('tests/studio/view_numbers.py')} again: {found[:5]}"


def test_a_changed_number_is_noticed():
    stored = json.loads(SCRIPT["FILE"].read_text(encoding="utf-8"))
    stored["axis"]["bounds"][0]["tail"] *= 1 + 1e-6
    assert len(differences(SCRIPT["numbers"](), stored)) == 1
