"""Maps as a table that a person can read."""

import math
from typing import TYPE_CHECKING

from regard.support.tables import text_table

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
    lines = text_table(rows) if len(rows) > 1 else ["no attention was captured"]
    lines += [f"missed  {missed}" for missed in maps.missed]
    lines += [f"note    {note}" for note in maps.notes]
    return "\n".join(lines)
