"""The report of a conversion, layer by layer."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from regard.support.files import finite_numbers
from regard.support.tables import text_table
from regard.support.text import format_count


@dataclass(frozen=True)
class LayerReport:
    """One layer: what it was and became, its certified bound and measured error, and its multiply-adds per item."""

    name: str
    before: str
    after: str
    bound: float | None = None
    error: float | None = None
    cost_before: int | None = None
    cost_after: int | None = None
    note: str = ""

    @property
    def within(self) -> bool:
        """False if the measured error is above the bound (or NaN): the conversion is not what it claims to be."""
        return self.bound is None or self.error is None or self.error <= self.bound


@dataclass(frozen=True)
class ConversionReport:
    """What was converted, as a table when printed. ``rows`` has one :class:`LayerReport` for every candidate layer;
    ``other_way`` is the number of candidates for a conversion in the other direction."""

    to: str
    tolerance: float
    measured_on: str
    rows: tuple[LayerReport, ...] = field(default=())
    other_way: int = 0

    @property
    def converted(self) -> tuple[LayerReport, ...]:
        return tuple(row for row in self.rows if row.after != "kept")

    @property
    def kept(self) -> tuple[LayerReport, ...]:
        return tuple(row for row in self.rows if row.after == "kept")

    @property
    def beyond(self) -> tuple[LayerReport, ...]:
        """The layers whose measured error is above their certified bound; there should be none."""
        return tuple(row for row in self.rows if not row.within)

    def says_beyond(self) -> str:
        off = ", ".join(
            f"{row.name or '(model)'} (error {row.error:.1e}, bound {row.bound:.1e})" for row in self.beyond
        )
        return (
            f"the measured error is above the certified bound in {off}: either these layers compute something else than "
            f"was converted, or in less than their dtype's precision (TF32), or their input is not finite"
        )

    @property
    def share(self) -> float:
        """The share of the candidate layers that were converted."""
        return len(self.converted) / len(self.rows) if self.rows else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All fields, for ``json.dumps``. Errors and bounds that are not finite become None."""
        found: dict[str, Any] = finite_numbers(dataclasses.asdict(self))
        return found

    def table(self) -> list[tuple[str, ...]]:
        """A row of headings, then the rows; each row is a tuple of text cells."""
        return [("layer", "was", "became", "bound", "error", "multiply-adds", "note"), *map(_cells, self.rows)]

    def _says_other_way(self) -> str:
        if not self.other_way:
            return "no layer of a kind that is known here"
        found, other = ("attention", "convolution") if self.to == "attention" else ("convolution", "attention")
        layers = f"{self.other_way} layer{'' if self.other_way == 1 else 's'} of {found}"
        return f"this network has no {other} but {layers}; the other way is --to {other} (to={other!r})"

    def __str__(self) -> str:
        if not self.rows:
            return f"nothing to convert to {self.to}: {self._says_other_way()}"
        lines = text_table(self.table(), right={3, 4, 5})
        verb = f"{len(self.converted)} of {len(self.rows)} layers became {self.to}"
        lines.append(f"{verb} (tolerance {self.tolerance:g}; measured on {self.measured_on})")
        return "\n".join(lines + [f"NOT AS CERTIFIED: {self.says_beyond()}"] * bool(self.beyond))


def _cells(row: LayerReport) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.1e}"

    cost = ""
    if row.cost_before is not None and row.cost_after is not None:
        cost = f"{format_count(row.cost_before)} → {format_count(row.cost_after)}"
    return row.name or "(model)", row.before, row.after, number(row.bound), number(row.error), cost, row.note
