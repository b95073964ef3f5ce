"""Maps as a table that a person can read."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from regard.maps._maps import Maps


def table(maps: "Maps") -> str:
    rows: list[tuple[str, ...]] = [("name", "shape", "calls", "residual", "against", "kernel")]
    for found in maps.values():
        residual = found.residual
        mark = "" if found.agrees else "  ← does not agree"
        rows.append(
            (
                found.name,
                "folded" if not found.shape else "×".join(map(str, found.shape)),
                str(len(found.calls)),
                "not compared" if math.isnan(residual) else f"{residual:.1e}",
                found.against,
                (found.kernel or found.kind) + mark,
            )
        )
    lines = columns(rows) if len(rows) > 1 else ["no attention was captured"]
    lines += [f"missed  {missed}" for missed in maps.missed]
    lines += [f"note    {note}" for note in maps.notes]
    return "\n".join(lines)


def columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Text in columns, under a rule.

    >>> print("\\n".join(columns([("a", "b"), ("head", "1")])))
    a     b
    ────  ─
    head  1
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
