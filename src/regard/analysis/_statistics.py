"""Statistics of each head: the entropy of its attention, and its mean distance."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from regard.maps import AttentionRecord, Layout, Map, Maps, check_maps, check_over_tokens


def entropy(maps: Maps | Sequence[Map]) -> dict[str, Float[Tensor, " heads"]]:
    r"""The entropy of each head's attention in nats: 0 for a single key, log(keys) for a uniform map.

    .. math:: H = -\tfrac{1}{|q|} \sum_q \sum_k A_{qk} \log A_{qk}

    It is averaged over the batch and over the queries that attend to anything. Rows that do not sum to 1, such as those of
    sigmoid attention, are normalized first. Negative weights, of a difference of attentions, count by their size.

    >>> from regard.analysis import entropy
    >>> from regard.maps import AttentionRecord, Map, Maps
    >>> uniform = AttentionRecord.given(torch.full((1, 1, 2, 4), 0.25))
    >>> entropy(Maps([Map("attn", [uniform])]))["attn"].exp()
    tensor([4.])
    """
    maps = check_maps(maps)
    rows = {name: shares(found.weights) for name, found in maps.items()}
    return {name: mean_of_rows(torch.special.entr(weights).sum(-1), weights) for name, weights in rows.items()}


def distance(
    maps: Maps | Sequence[Map], grid: tuple[int, ...] | None = None, prefix: int | None = None
) -> dict[str, Float[Tensor, " heads"]]:
    r"""The mean distance between query and key on the grid, in tokens.

    .. math:: d = \tfrac{1}{|q|} \sum_q \sum_k A_{qk} \lVert k - q \rVert

    Only queries and keys on the grid count, and each row's weights on the grid are normalized to sum to 1. Queries that
    attend to nothing there (padding) do not count. Negative weights count by their size.

    Args:
        grid, prefix: the layout of the tokens, for models that do not state it.
    """
    maps = check_maps(maps)
    check_over_tokens(maps, "distance")
    found = {}
    for name, one in maps.items():
        layout = one.layout(grid, prefix)
        local = on_grid(one, layout)
        found[name] = mean_distance(local, layout)
    return found


def mean_distance(local: Float[Tensor, "batch heads tokens tokens"], layout: Layout) -> Float[Tensor, " heads"]:
    """How far the rows of :func:`on_grid` look, averaged over those that attend to something."""
    places = coordinates(layout.grid, local.device, local.dtype)
    return mean_of_rows((local * torch.cdist(places, places)).sum(-1), local)


def mean_of_rows(
    values: Float[Tensor, "batch heads queries"], weights: Float[Tensor, "batch heads queries keys"]
) -> Float[Tensor, " heads"]:
    """The mean of a number for each row of the weights, over the rows that attend to something."""
    attends = weights.sum(-1) > 0
    return (values * attends).sum((0, 2)) / attends.sum((0, 2)).clamp_min(1)


def on_grid(found: Map, layout: Layout) -> Float[Tensor, "batch heads queries keys"]:
    """Attention from the grid to the grid, with rows normalized to sum to 1 (a row of zeros stays zero)."""
    weights = found.weights
    if weights.shape[2] != weights.shape[3]:
        raise ValueError(
            f"{found.name!r} has {weights.shape[2]} queries and {weights.shape[3]} keys: "
            f"distances need self-attention with all rows kept"
        )
    check_all_rows(found.latest, "distances need")
    local = weights[:, :, layout.prefix :, layout.prefix :]
    return shares(local)


def check_all_rows(record: AttentionRecord, needs: str) -> None:
    """Raise an error if ``rows=`` chose other rows than all of them, in their order."""
    if record.rows is not None and record.rows != tuple(range(record.shape[2])):
        first = ", ".join(map(str, record.rows[:5])) + (", …" if len(record.rows) > 5 else "")
        raise ValueError(f"{record.name!r} has the rows {first}: {needs} self-attention with all rows, in their order")


def check_finite(name: str, weights: Tensor) -> None:
    """Raise an error if some weights are NaN or infinite: nothing can be found in them."""
    wrong = weights.isfinite().logical_not_().any(-1)
    if bool(wrong.any()):
        raise ValueError(
            f"{name!r} has weights that are NaN or infinite, in {int(wrong.sum())} of {wrong.numel()} rows"
        )


def coordinates(grid: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Float[Tensor, "tokens axes"]:
    """The coordinates of the tokens, row by row.

    >>> coordinates((1, 2), torch.device("cpu"), torch.float32)
    tensor([[0., 0.],
            [0., 1.]])
    """
    axes = [torch.arange(n, device=device, dtype=dtype) for n in grid]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(grid))


def shares(weights: Float[Tensor, "*rows keys"]) -> Float[Tensor, "*rows keys"]:
    """The share of each key in the weights of its row, in float32 at least; negative weights count by their size.

    >>> shares(torch.tensor([[3.0, -1.0], [0.0, 0.0]]))
    tensor([[0.7500, 0.2500],
            [0.0000, 0.0000]])
    """
    size = (weights if weights.dtype is torch.float64 else weights.float()).abs()
    return size / size.sum(-1, keepdim=True).clamp_min(torch.finfo(size.dtype).tiny)
