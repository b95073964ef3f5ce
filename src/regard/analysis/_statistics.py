"""Numbers per head: how far it looks, and how widely."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.maps._layout import Layout
from regard.maps._maps import Map, Maps, check_maps


def entropy(maps: Maps) -> dict[str, Float[Tensor, " heads"]]:
    r"""How widely each head spreads its attention, in nats: 0 for one key, log(keys) for all alike.

    .. math:: H = -\tfrac{1}{|q|} \sum_q \sum_k A_{qk} \log A_{qk}

    Averaged over the batch and over the queries that attend to something; rows are made to sum to 1, as those of a
    sigmoid do not.

    >>> from regard.analysis import entropy
    >>> from regard.maps import Call, Map, Maps
    >>> uniform = Call(torch.full((1, 1, 2, 4), 0.25), 1, None, None, None, "kernel", "sdpa")
    >>> entropy(Maps([Map("attn", [uniform])]))["attn"].exp()
    tensor([4.])
    """
    check_maps(maps)
    return {name: _row_mean(torch.special.entr(_rows(_weights(found))).sum(-1), found) for name, found in maps.items()}


def distance(
    maps: Maps, grid: tuple[int, ...] | None = None, prefix: int | None = None
) -> dict[str, Float[Tensor, " heads"]]:
    r"""How far each head looks on the grid, in tokens.

    .. math:: d = \tfrac{1}{|q|} \sum_q \sum_k A_{qk} \lVert k - q \rVert

    Queries and keys on the grid alone; a row's weights on the grid count as a whole.

    Args:
        grid, prefix: how the tokens lie, for models that do not say it themselves.
    """
    check_maps(maps)
    found = {}
    for name, one in maps.items():
        layout = one.layout(grid, prefix)
        local = on_grid(one, layout)
        places = coordinates(layout.grid, local.device, local.dtype)
        found[name] = (local * torch.cdist(places, places)).sum(-1).mean((0, 2))
    return found


def on_grid(found: Map, layout: Layout) -> Float[Tensor, "batch heads queries keys"]:
    """Attention from the grid to the grid, each row made to sum to 1 (a row that puts nothing there stays 0)."""
    weights = _weights(found)
    if weights.shape[2] != weights.shape[3]:
        raise ValueError(
            f"{found.name!r} has {weights.shape[2]} queries and {weights.shape[3]} keys: "
            f"positions compare only where tokens attend to each other (self-attention, all rows kept)"
        )
    local = weights[:, :, layout.prefix :, layout.prefix :]
    return _rows(local)


def coordinates(grid: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Float[Tensor, "tokens axes"]:
    """Where each token lies, row by row.

    >>> coordinates((1, 2), torch.device("cpu"), torch.float32)
    tensor([[0., 0.],
            [0., 1.]])
    """
    axes = [torch.arange(n, device=device, dtype=dtype) for n in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(grid))


def _rows(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)


def _weights(found: Map) -> Tensor:
    weights = found.weights
    return weights if weights.dtype is torch.float64 else weights.float()


def _row_mean(values: Float[Tensor, "batch heads queries"], found: Map) -> Float[Tensor, " heads"]:
    attends = _weights(found).sum(-1) > 0
    return (values * attends).sum((0, 2)) / attends.sum((0, 2)).clamp_min(1)
