"""Text in columns."""


def columns(rows: list[tuple[str, ...]]) -> list[str]:
    """Text in columns; the first row is the header, with a rule below it.

    >>> print("\\n".join(columns([("a", "b"), ("head", "1")])))
    a     b
    ────  ─
    head  1
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
