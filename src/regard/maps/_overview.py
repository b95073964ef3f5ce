"""``Overview``: a long map reduced to the exact mass of its cells, with statistics of every query and every key."""

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

FIRST = 4  # the number of first keys whose mass is summed: attention sinks are there


@dataclass(frozen=True)
class QueryStatistics:
    """What each query attends to; each tensor is ``(batch, heads, queries)``. A query without keys has zeros, ``where`` −1.

    On a GPU the order of summation differs between runs, and so do the last digits.

    Attributes:
        entropy: the entropy of its weights in nats: 0 if one key has all the weight, log n if n keys share it evenly.
        first: its mass on the first four keys.
        distance: Σ weight · |key − query|, in tokens. If there are more keys than queries, a causal mask or a cache says at
            which key the queries start; if neither does, queries and keys end together.
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
    """What each key receives; each tensor is ``(batch, heads, keys)``. A key that no query sees has zeros, and −1 in ``source``.

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
        """An overview of zeros for a map of this shape, in at most ``cells`` cells a side."""
        return cls.in_cells(shape, cell_sizes(shape, cells), device)

    @classmethod
    def in_cells(cls, shape: tuple[int, ...], cell: tuple[int, int], device: torch.device) -> "Overview":
        """An overview of zeros in cells of this size, in the dtypes in which it is computed."""
        batch, heads, queries, keys = shape
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
        """All tensors by name, such as ``"per_query.entropy"``."""
        named = {"mass": self.mass, "largest": self.largest}
        for part in ("per_query", "per_key"):
            statistics = getattr(self, part)
            named |= {f"{part}.{field.name}": getattr(statistics, field.name) for field in fields(statistics)}
        return named

    @classmethod
    def of(cls, tensors: dict[str, Tensor], cell: tuple[int, int]) -> "Overview":
        """The inverse of :attr:`tensors`."""
        return cls(
            tensors["mass"],
            tensors["largest"],
            cell,
            QueryStatistics(*(tensors[f"per_query.{field.name}"] for field in fields(QueryStatistics))),
            KeyStatistics(*(tensors[f"per_key.{field.name}"] for field in fields(KeyStatistics))),
        )

    def kept(self) -> "Overview":
        """The overview on the host, in the dtypes in which it is kept. From a GPU it is copied asynchronously: synchronize
        before reading it.

        Masses and distances stay float32: they may be as large as the number of tokens, which float16 cannot hold."""
        if self.largest.dtype is torch.float16 and not self.largest.is_cuda:  # converted already
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
        return self.of({name: x[index : index + 1] for name, x in self.tensors.items()}, self.cell)


def cell_size(tokens: int, cells: int) -> int:
    """How many tokens a cell covers, such that there are at most ``cells`` cells.

    >>> cell_size(131072, 128), cell_size(197, 128), cell_size(5, 128)
    (1024, 2, 1)
    """
    return max(1, math.ceil(tokens / cells))


def cell_sizes(shape: tuple[int, ...], cells: int) -> tuple[int, int]:
    """The sizes of the cells of a map ``(…, queries, keys)``, at most ``cells`` a side: in queries and in keys."""
    return cell_size(shape[-2], cells), cell_size(shape[-1], cells)


def overview_size(shape: tuple[int, ...], cells: int) -> int:
    """Bytes of a kept overview of a map of this shape.

    >>> overview_size((1, 2, 300, 300), 128) == Overview.empty((1, 2, 300, 300), 128, torch.device("cpu")).kept().nbytes
    True
    """
    batch, heads, queries, keys = shape
    rows, columns = (math.ceil(n / cell_size(n, cells)) for n in (queries, keys))
    return batch * heads * (6 * rows * columns + 14 * queries + 10 * keys)


def working_size(shape: tuple[int, ...], cells: int) -> int:
    """Bytes of an overview of a map of this shape while it is computed.

    >>> sums = 4 * 2 * 300
    >>> working_size((1, 2, 300, 300), 128) == Overview.empty((1, 2, 300, 300), 128, torch.device("cpu")).nbytes + sums
    True
    """
    batch, heads, queries, keys = shape
    rows, columns = (math.ceil(n / cell_size(n, cells)) for n in (queries, keys))
    return batch * heads * (8 * rows * columns + 24 * queries + 12 * keys)


def check_overview(overview: Overview, shape: Any) -> None:
    """Raise an error if the tensors of an overview, read from a file, do not fit together or do not fit the map's shape."""
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
    """The dtype in which the tensor of this name is kept."""
    if name in ("per_query.where", "per_key.source"):
        return torch.int32
    return torch.float32 if name in ("mass", "per_query.distance", "per_key.received") else torch.float16
