"""A map drawn head by head."""

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.maps._maps import Map


def plot(found: "Map", *, sample: int, query: int | None) -> "Figure":
    """One panel per head. With ``query`` and a known grid, what that query attends to, on the image."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plotting needs matplotlib: pip install 'regard[train]'") from error
    weights = found.weights
    if not -weights.shape[0] <= sample < weights.shape[0]:
        raise ValueError(f"sample must lie below the batch size {weights.shape[0]}, got {sample}")
    maps = weights[sample].detach().float().cpu()
    if query is not None:
        if not -maps.shape[1] <= query < maps.shape[1]:
            raise ValueError(f"query must lie below the number of queries {maps.shape[1]}, got {query}")
        layout = found.layout()
        image = maps[:, query, layout.prefix :]
        sides = layout.grid if len(layout.grid) == 2 else (1, math.prod(layout.grid))
        maps = image.reshape(-1, *sides)
    heads = maps.shape[0]
    across = math.ceil(math.sqrt(heads))
    down = math.ceil(heads / across)
    figure = Figure(figsize=(1.8 * across, 1.8 * down + 0.4), layout="constrained")
    panels: Any = figure.subplots(down, across, squeeze=False)
    for head, panel in enumerate(panels.flat):
        panel.set_axis_off()
        if head < heads:
            panel.imshow(maps[head].numpy(), vmin=0, cmap="viridis", interpolation="nearest")
            panel.set_title(f"head {head}", fontsize=8)
    figure.suptitle(found.name if query is None else f"{found.name}, query {query}", fontsize=9)
    return figure
