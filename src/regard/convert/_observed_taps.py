"""How converted convolutions show their map to :func:`regard.capture`."""

from collections.abc import Callable

from torch import Tensor, nn

from regard.observation import observe


def observed_taps(
    module: nn.Module,
    heads: Tensor,
    x: Tensor,
    weights: Callable[[], Tensor],
    grid: tuple[int, ...],
    outputs: tuple[int, ...],
) -> Tensor:
    """The heads' outputs, ``(batch, channels, heads, *outputs)``, or a listener's replacement for them.

    ``weights`` computes the map, ``(1, heads, outputs, inputs)``; it is called only if a listener needs it.
    """
    flat = heads.flatten(3).permute(0, 2, 3, 1)  # (batch, heads, outputs, channels)
    value = x.flatten(2).transpose(1, 2).unsqueeze(1)
    seen = observe(module, flat, weights, value=value, kind="convolution", grid=grid, query_grid=outputs)
    return heads if seen is flat else seen.permute(0, 3, 1, 2).reshape(heads.shape)
