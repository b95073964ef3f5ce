"""The source of layers that declare their attention with :func:`regard.maps.observe`: regard's own and those of users."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps._shapes import canonical
from regard.maps.tokens._axes import MapAxes
from regard.maps.tokens._layout import Layout
from regard.maps.weights._attention_scores import Selection
from regard.observation import unobserved


def own_layer(
    site: CallSite,
    output: Tensor,
    weights: Callable[[], Tensor],
    *,
    value: Tensor | None,
    kind: str,
    grid: tuple[int, ...] | None,
    prefix: int | None,
    query_grid: tuple[int, ...] | None,
    clean: Callable[[], Tensor] | None = None,
) -> AttentionRecord:
    """The record of what a layer declared, with the arguments of :func:`regard.maps.observe`. Its weights are computed once, when
    they are first needed."""
    heads, single = canonical(output), output.ndim == 3
    value = None if value is None else canonical(value)

    @functools.cache
    def whole() -> Tensor:
        return canonical(weights())

    def build(rows: Selection, chosen: Selection) -> tuple[Tensor, None]:
        return whole()[:, chosen][:, :, rows], None

    expected = None
    if value is not None and clean is not None:
        with torch.no_grad():
            expected = canonical(unobserved(clean))
    compared = "layer's heads" if value is not None else "nothing: the layer's output is no product of the map"
    compared += "" if expected is None else ", run again without dropout"
    keys = value.shape[2] if value is not None else whole().shape[3]
    return AttentionRecord(
        name=site.name,
        kind=kind,
        shape=(heads.shape[0], heads.shape[1], heads.shape[2], keys),
        check=Check(compared),
        layout=None if grid is None else Layout(grid, prefix or 0),
        axes=MapAxes(query_layout=None if query_grid is None else Layout(query_grid, prefix or 0)),
        computation=Computation(
            weights=build,
            module=site.module,
            output=heads,
            value=value,
            expected=expected,
            restore=(lambda new: new[:, 0]) if single else (lambda new: new),
            layout_declared=grid is not None,
        ),
    )
