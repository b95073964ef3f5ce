"""How local each head is: the Gaussian that fits its map best, and how well it fits."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from regard.analysis._fit import fit_gaussians
from regard.analysis._statistics import check_finite, mean_distance, mean_of_rows, on_grid, shares
from regard.functional import gaussian_weights
from regard.maps import Layout, Map, Maps, check_maps, check_over_tokens
from regard.support.checks import check_grid
from regard.support.tables import text_table


@dataclass(frozen=True)
class Head:
    """The Gaussian that fits one head.

    Attributes:
        name, head: the map and the head in it.
        center: Δ, key − query in tokens, per axis: where the head looks.
        sharpness: α: at a distance of 1/√α tokens from the center the weight is 1/e of the largest.
        fit: 1 − KL(map ‖ Gaussian) / KL(map ‖ uniform): 1 is a Gaussian head, 0 is no better than uniform.
        overlap: the share of attention that the map has in common with the Gaussian, 1 − ½ Σ|A − G|, averaged over queries.
        prefix: the share of attention that goes to each prefix token (class, registers).
        distance: how far the head looks, in tokens.
        causal: whether the map, and with it the Gaussian, is causal: queries attend to earlier keys only.
    """

    name: str
    head: int
    center: tuple[float, ...]
    sharpness: float
    fit: float
    overlap: float
    prefix: tuple[float, ...]
    distance: float
    causal: bool = False

    def weights(self, grid: tuple[int, ...]) -> Float[Tensor, "tokens tokens"]:
        """The Gaussian's own map over a grid of any size."""
        center = torch.tensor([self.center], dtype=torch.float64)
        if not self.causal:
            return gaussian_weights(center, torch.tensor([self.sharpness], dtype=torch.float64), grid)[0]
        # The part before the query, of a Gaussian over all keys, could be zero: a head whose weights decay is fitted best by a
        # center far behind the query.
        (size,) = check_grid(grid)
        offset = torch.arange(size) - torch.arange(size)[:, None]
        scores = -self.sharpness * (offset - center) ** 2
        return scores.masked_fill(offset > 0, -math.inf).softmax(-1)


class Locality:
    """The fitted heads of some maps. Iterates over :class:`Head`; prints as a table.

    Attributes:
        heads: in the order of the maps.
        layouts: how the tokens of each map lie.
    """

    def __init__(self, heads: list[Head], layouts: dict[str, Layout]) -> None:
        self.heads = heads
        self.layouts = layouts

    def __iter__(self) -> Iterator[Head]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __getitem__(self, key: tuple[str, int]) -> Head:
        for head in self.heads:
            if (head.name, head.head) == key:
                return head
        raise KeyError(f"there is no head {key!r}; there are {[(head.name, head.head) for head in self.heads]}")

    def best(self, count: int) -> "Locality":
        """The ``count`` heads with the largest overlap."""
        return Locality(sorted(self.heads, key=lambda head: -head.overlap)[:count], self.layouts)

    def where(self, *, fit: float = 0.0, overlap: float = 0.0) -> "Locality":
        """The heads with at least this fit and overlap."""
        chosen = [head for head in self.heads if head.fit >= fit and head.overlap >= overlap]
        return Locality(chosen, self.layouts)

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("name", "head", "center", "sharpness", "fit", "overlap", "prefix", "distance")]
        for head in self.heads:
            center = "(" + ", ".join(f"{c:.2f}" for c in head.center) + ")"
            rows.append(
                (
                    head.name,
                    str(head.head),
                    center,
                    f"{head.sharpness:.3g}",
                    f"{head.fit:.2f}",
                    f"{head.overlap:.2f}",
                    f"{sum(head.prefix):.2f}",
                    f"{head.distance:.2f}",
                )
            )
        return "\n".join(text_table(rows))


def locality(maps: Maps | Sequence[Map], grid: tuple[int, ...] | None = None, prefix: int | None = None) -> Locality:
    r"""Fit a Gaussian around a fixed offset to each head's attention: the form of a convolution's taps.

    .. math:: G_{qk} = \mathrm{softmax}_k\bigl(-\alpha \lVert (k - q) - \Delta \rVert^2\bigr), \qquad
        (\Delta, \alpha) = \arg\max \sum_q \sum_k A_{qk} \log G_{qk}

    The likelihood is concave in (α, αΔ), so there is one best fit. The fit uses attention from the grid to the grid, over
    all samples of the batch at once: a head that follows content instead of position fits badly. A causal map of a text, in
    which some query attends to earlier keys and none to later ones, is fitted with a Gaussian over the earlier keys. Rows are
    normalized to sum to 1, and negative weights count by their size.

    Args:
        maps: self-attention over the tokens of an image (or a text), without padding, which the fit would take for tokens.
        grid, prefix: the layout of the tokens, for models that do not state it; a text has ``grid=(tokens,)``.

    >>> from regard.functional import gaussian_weights
    >>> from regard.maps import AttentionRecord, Map, Maps
    >>> center, sharpness = torch.tensor([[0.0, 1.0]]), torch.tensor([0.7])
    >>> gaussian = AttentionRecord.given(gaussian_weights(center, sharpness, (5, 5))[None])
    >>> head = regard.locality(Maps([Map("attn", [gaussian])]), grid=(5, 5))["attn", 0]
    >>> [abs(round(x, 3)) for x in (*head.center, head.sharpness, head.fit, head.overlap)]
    [0.0, 1.0, 0.7, 1.0, 1.0]
    """
    maps = check_maps(maps)
    check_over_tokens(maps, "locality")
    heads: list[Head] = []
    layouts: dict[str, Layout] = {}
    for name, found in maps.items():
        layouts[name] = found.layout(grid, prefix)
        heads += _fitted(found, layouts[name])
    return Locality(heads, layouts)


def _fitted(found: Map, layout: Layout) -> list[Head]:
    local = on_grid(found, layout).double()
    check_finite(found.name, found.weights)
    causal = _is_causal(local, layout)
    fitted = fit_gaussians(local, layout.grid, causal)
    away = mean_distance(local, layout)
    whole = shares(found.weights[:, :, layout.prefix :]).double()
    outside = [mean_of_rows(whole[..., token], whole) for token in range(layout.prefix)]
    numbers = found.latest.heads or tuple(range(local.shape[1]))
    heads = []
    for i, number in enumerate(numbers):
        head = Head(
            name=found.name,
            head=number,
            center=tuple(fitted.center[i].tolist()),
            sharpness=float(fitted.sharpness[i]),
            fit=float(fitted.fit[i]),
            overlap=0.0,
            prefix=tuple(float(share[i]) for share in outside),
            distance=float(away[i]),
            causal=causal,
        )
        gaussian = head.weights(layout.grid).to(local)
        apart = (local[:, i] - gaussian).abs().sum(-1)
        overlap = 1 - 0.5 * mean_of_rows(apart[:, None], local[:, i : i + 1])
        heads.append(replace(head, overlap=float(overlap)))
    return heads


def _is_causal(local: Tensor, layout: Layout) -> bool:
    if len(layout.grid) != 1 or layout.prefix:
        return False
    # If every token attends only to itself, we cannot know whether the map is causal.
    return bool(local.tril(-1).any()) and not bool(local.triu(1).any())
