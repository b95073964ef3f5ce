"""Local heads on a CPU: does time grow as the number of tokens does, at every sharpness? A table of benchmarks/gaussian.py."""

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from _measure import Limit, milliseconds, side_by_side

SIDES = (64, 128)
SHARPNESS = (0.25, 0.5, 1.0, 2.0, 4.0)
RIVAL = "depthwise 7×7"

Steps = dict[str, Callable[[], None] | None]


def local_rows(options: Namespace, limit: Limit, steps_of: Callable[[int, float], Steps]) -> list[dict[str, Any]]:
    """One row per sharpness. The sizes are measured one after the other, not in turns: a large grid would leave the small one
    with a cold cache, and the growth would look smaller than it is."""
    rows = []
    for sharpness in SHARPNESS:
        if not limit.allows(f"local heads, sharpness {sharpness:g}"):
            continue
        row: dict[str, Any] = {"sharpness": sharpness}
        for side in SIDES:
            found = steps_of(side, sharpness)
            steps = {name: step for name in ("ours", RIVAL) if (step := found[name]) is not None}
            times = {}
            for name, step in steps.items():
                times |= side_by_side({name: step}, rounds=options.rounds, patience=options.patience)
            row |= {f"{name} {side}²": ms for name, ms in milliseconds(times).items()}
        row["growth"] = round(row[f"ours {SIDES[1]}²"] / row[f"ours {SIDES[0]}²"], 2)
        rows.append(row)
    return rows
