"""Converts records to JSON, without their tensors, and back. An error if a description does not fit its tensors."""

import math
from dataclasses import asdict, astuple
from typing import Any

import torch
from torch import Tensor

from regard.maps._overview import Overview, check_overview
from regard.maps._record import AttentionRecord, Check
from regard.maps.tokens._axes import MapAxes
from regard.maps.tokens._layout import Layout
from regard.maps.tokens._positions import Positions
from regard.maps.tokens._windows import Windows


def record_to_json(record: AttentionRecord) -> dict[str, Any]:
    """All fields except the tensors, for ``json.dumps``."""
    layouts = (record.layout, record.query_layout)
    return {
        "name": record.name,
        "shape": None if record.stored is None else list(record.stored.shape),
        "whole": list(record.shape),
        "residual": None if record.check.error is None else record.residual,
        "logsumexp_residual": record.logsumexp_residual,
        "allowed": None if record.check.allowed is None else float(record.check.allowed),
        "against": record.against,
        "kind": record.kind,
        "kernel": record.kernel,
        "rows": record.rows,
        "heads": record.heads,
        "windows": None if record.windows is None else asdict(record.windows),
        "cell": None if record.overview is None else list(record.overview.cell),
        "axes": record.axes.certainty,
        "over": record.axes.over,
        "positions": None if record.positions is None else asdict(record.positions),
        "moment": record.moment,
        "layouts": [None if layout is None else [layout.grid, layout.prefix] for layout in layouts],
    }


def record_from_json(
    fields: dict[str, Any], weights: Tensor | None, overview: dict[str, Tensor] | None = None
) -> AttentionRecord:
    """The inverse of :func:`record_to_json`, given the weights and the tensors of the overview."""
    layouts = [None if x is None else Layout(tuple(x[0]), x[1]) for x in fields["layouts"]]
    numbers = (fields["residual"], fields["allowed"], fields["logsumexp_residual"])
    windows = fields["windows"]
    record = AttentionRecord(
        name=str(fields["name"]),
        kind=str(fields["kind"]),
        shape=tuple(fields["whole"]),
        check=Check(_text(fields["against"]), *map(_scalar, numbers)),
        kernel=None if fields["kernel"] is None else _text(fields["kernel"]),
        stored=weights,
        rows=_tuple(fields["rows"]),
        heads=_tuple(fields["heads"]),
        windows=None if windows is None else Windows(**{key: _tuple(x) for key, x in windows.items()}),
        layout=layouts[0],
        # Older files have neither "axes" nor "over".
        axes=MapAxes(
            _text(fields.get("axes", "inferred")),
            _text(fields.get("over", "tokens")),
            layouts[1],
            None if fields.get("positions") is None else Positions(**fields["positions"]),
        ),
    )
    moment = _tuple(fields.get("moment"))
    if moment is not None and not _fits(moment, 2):
        raise ValueError(f"{record.name!r:.100} has the moment {moment!r:.100}, which is no pair of numbers")
    record.moment = moment
    _check_record(record)
    if overview:
        record.overview = Overview.of(overview, _tuple(fields["cell"]))
        check_overview(record.overview, record.shape)
    if weights is None and record.overview is None:
        raise ValueError(f"{record.name!r:.100} has neither weights nor an overview")
    return record


def _check_record(record: AttentionRecord) -> None:
    """Raise an error if a description does not fit its weights. What is computed from it could be wrong, or take any amount
    of memory."""
    weights = record.stored
    if not _fits(record.shape, 4):
        raise ValueError(f"{record.name!r:.100} is said to be {record.shape!r:.100}, which is no shape of a map")
    for layout in (record.layout, record.query_layout):
        if layout is not None and not (_fits(layout.grid, len(layout.grid)) and type(layout.prefix) is int):
            raise ValueError(f"{record.name!r:.100} has the layout {layout!r:.100}, which is no grid of tokens")
    place = record.positions
    if place is not None and not _fits(astuple(place)[:5], 5):
        raise ValueError(f"{record.name!r:.100} has the positions {place!r:.200}, which are no numbers of tokens")
    if place is not None and (place.queries, place.keys) != record.shape[2:]:
        raise ValueError(f"{record.name!r:.100} is {record.shape}, which {place!r:.200} does not fit")
    if weights is None:
        if record.heads is not None and not _fits(record.heads, len(record.heads)):
            raise ValueError(f"{record.name!r:.100} has a list of heads that does not number them")
        return
    if weights.ndim != 4 or not weights.is_floating_point():
        raise ValueError(f"{record.name!r:.100} is {tuple(weights.shape)} of {record.shape}, which is no attention map")
    for name, numbers, kept in (("rows", record.rows, weights.shape[2]), ("heads", record.heads, weights.shape[1])):
        if numbers is not None and not _fits(numbers, kept):
            raise ValueError(f"{record.name!r:.100} has {kept} {name}, which its list of {name} does not number")
    windows = record.windows
    if windows is not None:
        sides = (windows.grid, windows.window, windows.shift)
        if not all(_fits(pair, 2) for pair in sides) or not all((*windows.grid, *windows.window)):
            raise ValueError(f"{record.name!r:.100} has windows of {sides}, which are no sizes in tokens")
        rows, columns = (-(-side // window) for side, window in zip(windows.grid, windows.window, strict=True))
        if weights.shape[0] % (rows * columns) or weights.shape[3] != math.prod(windows.window):
            raise ValueError(f"{record.name!r:.100} has weights {tuple(weights.shape)}, which {windows} does not fit")


def _fits(wanted: Any, count: int) -> bool:
    """Whether this is a tuple of ``count`` whole numbers that are not negative."""
    return isinstance(wanted, tuple) and len(wanted) == count and all(type(n) is int and n >= 0 for n in wanted)


def _scalar(x: Any) -> Tensor | None:
    if x is not None and (isinstance(x, bool) or not isinstance(x, int | float)):
        raise ValueError(f"{x!r:.60} stands where a number is due")
    return None if x is None else torch.tensor(x, dtype=torch.float64)


def _text(x: Any) -> Any:
    if not isinstance(x, str):
        raise ValueError(f"{x!r:.60} stands where a text is due")
    return x


def _tuple(x: Any) -> Any:
    return tuple(x) if isinstance(x, list) else x
