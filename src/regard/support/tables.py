"""A table as plain text."""

import textwrap
from collections.abc import Collection, Sequence


def text_table(rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None) -> list[str]:
    """The lines of a table; a rule separates the first row, which is the header.

    Args:
        rows: the header and the rows, one string per cell.
        right: columns to align at the right, by number.
        width: the largest line length; the last column is wrapped to fit.

    >>> print("\\n".join(text_table([("head", "weight"), ("first", "1"), ("second", "12")], right={1})))
    head    weight
    ──────  ──────
    first        1
    second      12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    indent = sum(widths[:-1]) + 2 * len(widths[:-1])
    if width is not None:
        widths[-1] = max(30, width - indent)
    lines = []
    for *cells, last in rows:
        first, *rest = (textwrap.wrap(last, widths[-1]) or [""]) if width is not None else [last]
        aligned = [
            cell.rjust(size) if number in right else cell.ljust(size)
            for number, (cell, size) in enumerate(zip([*cells, first], widths, strict=True))
        ]
        lines += ["  ".join(aligned).rstrip(), *(" " * indent + more for more in rest)]
    return [lines[0], "  ".join("─" * size for size in widths), *lines[1:]]
