"""``Overview``: a long map as the exact mass of its cells, with statistics of every query and of every key."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

FIRST = 4  # how many tokens are the first ones: attention sinks lie there


@dataclass(frozen=True)
class QueryStatistics:
    """What each query attends to, ``(batch, heads, queries)`` each. A query without keys has zeros, and −1 for where.

    On a GPU the sums are added up in an order that differs between runs, and with it their last digits.

    Attributes:
        entropy: of its weights, in nats: 0 if one key has all of them, log n if n keys share them.
        first: its mass on the first four keys.
        distance: Σ weight · |key − query|, in tokens. Where keys are more than queries, a causal mask or a cache may state
            where the queries begin; else both end together.
        largest: its largest weight.
        where: the key that has it.
    """

    entropy: Float[Tensor, "batch heads queries"]
    first: Float[Tensor, "batch heads queries"]
    distance: Float[Tensor, "batch heads queries"]
    largest: Float[Tensor, "batch heads queries"]
    where: Int[Tensor, "batch heads queries"]


@dataclass(frozen=True)
class KeyStatistics:
    """What each key receives, ``(batch, heads, keys)`` each. A key that nobody sees has zeros, and −1 for source.

    Attributes:
        received: the sum of its weights over all queries.
        largest: the largest of them.
        source: the query that gives it.
    """

    received: Float[Tensor, "batch heads keys"]
    largest: Float[Tensor, "batch heads keys"]
    source: Int[Tensor, "batch heads keys"]


@dataclass(frozen=True)
class Overview:
    """A map in cells of ``cell[0]`` queries × ``cell[1]`` keys; cells at the end may be smaller.

    Attributes:
        mass: ``(batch, heads, rows, columns)``, the sum of the weights in each cell.
        largest: the largest weight in each cell.
        cell: how many queries and how many keys a cell covers.
        per_query, per_key: statistics of every query and of every key.
    """

    mass: Float[Tensor, "batch heads rows columns"]
    largest: Float[Tensor, "batch heads rows columns"]
    cell: tuple[int, int]
    per_query: QueryStatistics
    per_key: KeyStatistics

    @classmethod
    def empty(cls, shape: tuple[int, int, int, int], cells: int, device: torch.device) -> "Overview":
        """Room for the overview of a map of this shape, in the dtypes in which it is computed."""
        batch, heads, queries, keys = shape
        cell = cell_size(queries, cells), cell_size(keys, cells)
        rows, columns = math.ceil(queries / cell[0]), math.ceil(keys / cell[1])

        def zeros(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(batch, heads, *sizes, dtype=dtype, device=device)

        nowhere = {"dtype": torch.int32}
        return cls(
            zeros(rows, columns),
            zeros(rows, columns),
            cell,
            QueryStatistics(
                zeros(queries), zeros(queries), zeros(queries), zeros(queries), zeros(queries, **nowhere).sub_(1)
            ),
            KeyStatistics(zeros(keys), zeros(keys), zeros(keys, **nowhere).sub_(1)),
        )

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        named = {"mass": self.mass, "largest": self.largest}
        for part in ("per_query", "per_key"):
            statistics = getattr(self, part)
            named |= {f"{part}.{field.name}": getattr(statistics, field.name) for field in fields(statistics)}
        return named

    @classmethod
    def of(cls, tensors: dict[str, Tensor], cell: tuple[int, int]) -> "Overview":
        """The reverse of :attr:`tensors`."""
        return cls(
            tensors["mass"],
            tensors["largest"],
            cell,
            QueryStatistics(*(tensors[f"per_query.{field.name}"] for field in fields(QueryStatistics))),
            KeyStatistics(*(tensors[f"per_key.{field.name}"] for field in fields(KeyStatistics))),
        )

    def kept(self) -> "Overview":
        """On the host, in the dtypes in which it is kept. From a GPU the copies run on: wait for the device before reading.

        Masses and distances reach the number of tokens, which is more than float16 holds."""
        if self.largest.dtype is torch.float16 and not self.largest.is_cuda:  # while it is computed it is float32
            return self

        def keep(name: str, x: Tensor) -> Tensor:
            x = x.to(_dtype(name))
            if not x.is_cuda:
                return x
            return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)

        return self.of({name: keep(name, x) for name, x in self.tensors.items()}, self.cell)

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.tensors.values())

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """``(batch, heads, queries, keys)`` of the whole map."""
        return (*self.mass.shape[:2], self.per_query.where.shape[2], self.per_key.source.shape[2])

    def sample(self, index: int) -> "Overview":
        """One item of the batch."""
        return replace(self.of({name: x[index : index + 1] for name, x in self.tensors.items()}, self.cell))


def cell_size(tokens: int, cells: int) -> int:
    """How many tokens a cell covers, so that there are at most ``cells`` of them.

    >>> cell_size(131072, 128), cell_size(197, 128), cell_size(5, 128)
    (1024, 2, 1)
    """
    return max(1, math.ceil(tokens / cells))


def overview_size(shape: tuple[int, ...], cells: int) -> int:
    """Bytes of a kept overview of a map of this shape.

    >>> overview_size((1, 2, 300, 300), 128) == Overview.empty((1, 2, 300, 300), 128, torch.device("cpu")).kept().nbytes
    True
    """
    batch, heads, queries, keys = shape
    rows, columns = (math.ceil(n / cell_size(n, cells)) for n in (queries, keys))
    return batch * heads * (6 * rows * columns + 14 * queries + 10 * keys)


def check_parts(overview: Overview, shape: Any) -> None:
    """Refuse tensors that do not fit together: what is drawn from them would be wrong."""
    cell, tensors = overview.cell, overview.tensors
    if len(cell) != 2 or any(type(n) is not int or n < 1 for n in cell) or overview.mass.ndim != 4:
        raise ValueError(f"an overview has cells of {cell!r:.40}, which is no size of a cell")
    batch, heads, queries, keys = shape
    batch_heads = tuple(overview.mass.shape[:2])
    if batch_heads[0] != batch or batch_heads[1] > heads:
        raise ValueError(f"an overview is {tuple(overview.mass.shape)}, but its map is {shape}")
    rows, columns = math.ceil(queries / cell[0]), math.ceil(keys / cell[1])
    for name, x in tensors.items():
        sizes = (rows, columns) if "." not in name else (queries if name.startswith("per_query") else keys,)
        if tuple(x.shape) != (*batch_heads, *sizes) or x.dtype is not _dtype(name):
            raise ValueError(f"{name} of an overview is {tuple(x.shape)} {x.dtype}, which does not fit {shape}")


def _dtype(name: str) -> torch.dtype:
    if name in ("per_query.where", "per_key.source"):
        return torch.int32
    return torch.float32 if name in ("mass", "per_query.distance", "per_key.received") else torch.float16
