"""Launches of the kernels that compute an overview of an attention map. All sums are parts of one tensor, so that a single
fill zeroes them; all results are parts of another, so that a single copy moves them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional.kernels._map_launch import ScoreTensors
from regard.functional.kernels._packing import CellSums, PackedParts
from regard.functional.kernels._start import Launch, launcher_of
from regard.functional.kernels._tensors import is_aligned, on_device_of, power_of_two, raw_stream, rows_of
from regard.support.tensor_cache import constant

# Whether a Hopper GPU loads the queries of full tiles by TMA descriptors: 210 ms instead of 238 for a layer of 131,072 tokens.
COPIES = True
REGISTERS: int | None = 168  # per thread on Hopper, so that three programs of 128 threads share its 65,536 registers
_AT_A_TIME = 256  # elements per program of the preparing and packing kernels
_plans: dict[tuple[Any, ...], "OverviewPlan"] = {}


class _Parts(NamedTuple):
    """Some of the tensors packed into one, as arguments of a kernel."""

    layout: PackedParts
    whole: Tensor
    names: Sequence[str]

    def addresses(self) -> list[int]:
        return self.layout.places(self.whole.data_ptr(), self.names)

    def tensors(self) -> list[Tensor]:
        return list(self.layout.all_of(self.whole, self.names).values())


class _LaunchAt(Launch):
    """A launch that passes raw addresses instead of tensors once Triton has compiled the kernel."""

    __slots__ = ()

    def at(self, stream: int, *arguments: Any) -> None:
        """Launch. ``arguments``: tensors, parts, or a descriptor."""
        given = list[Any]()
        known = self.run is not None
        for x in arguments:
            if isinstance(x, _Parts):
                given += x.addresses() if known else x.tensors()
            else:
                given.append(x.data_ptr() if known and isinstance(x, Tensor) else x)
        if self.run is not None:
            self.run(*self.grid, stream, *self.head, *given, *self.numbers)
            return
        made = self.kernel[self.grid](*given, *self.numbers, **self.options)
        if given[-1].is_cuda and hasattr(made, "packed_metadata"):
            self.run, self.head = launcher_of(made)


_SUMS = ("mass", "largest", "sums", "best", "received", "top", "source")
_KEPT = (
    *("mass", "per_query.distance", "per_key.received", "per_query.where", "per_key.source"),
    *("largest", "per_query.entropy", "per_query.first", "per_query.largest", "per_key.largest"),
)  # fmt: skip


class OverviewPlan:
    """The launches that compute overviews of calls with the same shapes, strides and dtypes; only the tensors are missing.

    Attributes:
        kept: the layout of the results; see ``regard.maps.Overview``. ``numbers`` are the error of the check, the error of
            the logsumexp, and the largest |value|.
    """

    def __init__(self, given: ScoreTensors, cell: tuple[int, int], first_keys: int) -> None:
        from regard.functional.kernels._map_finish import map_prepare
        from regard.functional.kernels._map_scores import map_overview

        query, key = given.query, given.key
        batch, heads, queries, keys = given.shape
        (height, width), whole = cell, batch * heads
        rows, columns = math.ceil(queries / height), math.ceil(keys / width)
        block_rows, block_columns, warps = _blocks(height, width, given)
        blocks, bands = math.ceil(width / block_columns), min(warps, block_rows // 16)
        # The number of positions (tile, row within the thread) that are packed with a key's largest weight.
        places = power_of_two(rows * math.ceil(height / block_rows)) * (block_rows // (8 * bands))
        self.cells, self.blocks, self.first_keys = (rows, columns), blocks, first_keys
        cells, of_queries, of_keys = (
            (batch, heads, columns, blocks, rows),
            (batch, heads, queries),
            (batch, heads, keys),
        )
        single, half, number = torch.float32, torch.float16, torch.int32
        self._sums = PackedParts(
            {
                "mass": (single, cells),
                "largest": (single, cells),
                "sums": (single, (*of_queries, 4)),
                "best": (torch.int64, of_queries),
                "received": (single, of_keys),
                "top": (single, of_keys),
                "source": (number, of_keys),
                "binary": (single, of_queries),
                "numbers": (single, (6,)),
            }
        )
        shapes = {"per_query": of_queries, "per_key": of_keys}
        dtypes = (single, single, single, number, number, half, half, half, half, half)
        found = {
            name: (dtype, shapes.get(name.partition(".")[0], (batch, heads, rows, columns)))
            for name, dtype in zip(_KEPT, dtypes, strict=True)
        }
        self.kept = PackedParts({**found, "numbers": (single, (3,))})
        constants = given.constants
        masks = constants["PADDED"], constants["CAPPED"], constants["SLOPED"]
        logsumexp = (whole * queries, queries, heads, *given.logsumexp.stride(), constants["PADDED"], _AT_A_TIME)
        self._prepare = _LaunchAt(map_prepare, (math.ceil(whole * queries / _AT_A_TIME), 1, 1), logsumexp, {}, 1)
        numbers = (
            queries, keys, heads, heads // key.shape[1], height, width, rows, blocks, query.shape[3], first_keys,
            *given.limits, *query.stride()[:3], *key.stride()[:3], -block_columns, -places, *masks, constants["PRECISION"],
        )  # fmt: skip
        self._overview: list[_LaunchAt] = []
        self.copied = _copies(query, given)
        self.block_rows = block_rows
        for masked in (False, True):
            copied = self.copied and not masked
            more = (
                masked, given.right is not None and given.right <= 0,
                not copied and queries >= block_rows and query.shape[3] == constants["BD"], copied,
                block_rows, block_columns, constants["BD"], bands,
            )  # fmt: skip
            options = {"num_warps": warps, "num_stages": 2, **({} if masked else _registers(query, block_columns))}
            grid = columns * blocks, whole, 1
            self._overview.append(_LaunchAt(map_overview, grid, (*numbers, *more), options, 1))
        self._finish: tuple[_LaunchAt, _LaunchAt, _LaunchAt] | None = None

    def add_up(self, given: ScoreTensors, stream: int) -> Tensor:
        """All sums, in one tensor of bytes. If the tensors were aligned to 16 bytes in the first call, they must be in all."""
        query, key = given.query, given.key
        shift, present_q, present_k, slopes = given.masks
        sums = torch.zeros(self._sums.size, dtype=torch.uint8, device=query.device)
        binary, found = _Parts(self._sums, sums, ("binary",)), _Parts(self._sums, sums, _SUMS)
        self._prepare.at(stream, given.logsumexp, present_q, binary)
        for index, step in enumerate(self._overview):
            read = _descriptor(query, self.block_rows) if self.copied and index == 0 else query
            step.at(stream, read, key, binary, shift, present_k, slopes, found)
        return sums

    def unpacked(self, sums: Tensor) -> CellSums:
        """The results from the sums, by torch operations."""
        mass, largest, row_sums, best, received, top, source = (self._sums.of(sums, name) for name in _SUMS)
        # The upper 32 bits hold the weight, the lower 32 bits 2³¹ − 1 − key.
        weight = (best >> 32).to(torch.int32).view(torch.float32)
        where = torch.where(best > 0, 0x7FFFFFFF - (best & 0x7FFFFFFF), -1).to(torch.int32)
        found, distance, information, first = row_sums.movedim(3, 0).contiguous()
        of_queries, of_keys = (information.mul_(-math.log(2)), first, distance, weight, where), (received, top, source)
        return CellSums(mass.sum(3).mT.contiguous(), largest.amax(3).mT.contiguous(), found, of_queries, of_keys)

    def pack(
        self, given: ScoreTensors, sums: Tensor, value: Tensor, output: Tensor, rows: Sequence[int], stream: int
    ) -> Tensor:
        """The results in one tensor of bytes, after a check against the full ``rows``."""
        if self._finish is None:
            self._finish = self._finishing(given, value, output, len(rows))
        check, pack, finish = self._finish
        shift, present_q, present_k, slopes = given.masks
        device = given.query.device
        kept = torch.empty(self.kept.size, dtype=torch.uint8, device=device)
        chosen = constant(tuple(rows), device, torch.int32)
        tensors = (given.query, given.key, value, given.logsumexp, output, shift, present_q, present_k, slopes, chosen)
        check.at(stream, *tensors, _Parts(self._sums, sums, ("sums", "best", "numbers")))
        pack.at(stream, _Parts(self._sums, sums, (*_SUMS, "numbers")), _Parts(self.kept, kept, _KEPT))
        finish.at(stream, _Parts(self._sums, sums, ("numbers",)), _Parts(self.kept, kept, ("numbers",)))
        return kept

    def _finishing(
        self, given: ScoreTensors, value: Tensor, output: Tensor, count: int
    ) -> tuple[_LaunchAt, _LaunchAt, _LaunchAt]:
        from regard.functional.kernels._map_finish import map_check, map_finish, map_pack

        query, key, constants = given.query, given.key, given.constants
        batch, heads, queries, keys = given.shape
        whole, (rows, columns) = batch * heads, self.cells
        # Long rows take twice as many keys per step, because each step waits for its loads.
        at_once, warps = (128, 8) if keys >= 4096 and power_of_two(query.shape[3]) <= 128 else (64, 4)
        numbers = (
            queries, keys, heads, heads // key.shape[1], heads // value.shape[1], query.shape[3], value.shape[3],
            self.first_keys, *given.logsumexp.stride(), *given.limits,
            max(1.0, math.log(max(2, keys))), float(max(1, queries, keys)),
            *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *output.stride()[:3],
            constants["PADDED"], constants["CAPPED"], constants["SLOPED"],
            at_once, constants["BD"], max(16, power_of_two(value.shape[3])),
        )  # fmt: skip
        most = max(whole * rows * columns, whole * queries, whole * keys)
        sizes = (whole * rows * columns, whole * queries, whole * keys, rows, columns, self.blocks, _AT_A_TIME)
        return (
            _LaunchAt(map_check, (count, whole, 1), numbers, {"num_warps": warps}, 1),
            _LaunchAt(map_pack, (math.ceil(most / _AT_A_TIME), 3, 1), sizes, {"num_warps": 4}, 1),
            _LaunchAt(map_finish, (1, 1, 1), (), {"num_warps": 1}, 1),
        )


def cell_sums(given: ScoreTensors, cell: tuple[int, int], first_keys: int) -> CellSums:
    """See :func:`regard.functional.kernels.overview`."""
    given = replace(given, query=rows_of(given.query), key=rows_of(given.key))
    plan = OverviewPlan(given, cell, first_keys)
    with on_device_of(given.query):
        return plan.unpacked(plan.add_up(given, raw_stream(given.query)))


def packed(
    given: ScoreTensors, cell: tuple[int, int], first_keys: int, value: Tensor, output: Tensor, rows: Sequence[int]
) -> tuple[PackedParts, Tensor] | None:
    """See :func:`regard.functional.kernels.packed_overview`."""
    query, key, total = given.query, given.key, given.logsumexp
    if not is_aligned(query, key, value, output, total) or any(x.stride(3) != 1 for x in (query, key, value, output)):
        return None
    like = (
        query.shape, query.stride(), key.shape, key.stride(), value.shape, value.stride(), output.stride(), total.stride(),
        query.dtype, value.dtype, query.device, total.dtype, given.limits, given.present is None, given.slopes is None, cell,
        first_keys, len(rows),
    )  # fmt: skip
    plan = _plans.get(like)
    if plan is None:
        if len(_plans) >= 256:
            _plans.clear()
        plan = _plans[like] = OverviewPlan(given, cell, first_keys)
    with on_device_of(query):
        stream = raw_stream(query)
        return plan.kept, plan.pack(given, plan.add_up(given, stream), value, output, rows, stream)


def _blocks(height: int, width: int, given: ScoreTensors) -> tuple[int, int, int]:
    """Block sizes (queries, keys) for cells of this size, and warps."""
    if given.query.element_size() * power_of_two(given.query.shape[3]) > 256 or given.query.dtype is torch.float32:
        return 64, 32, 4
    if height <= 16 and width <= 16:
        return 16, 16, 4
    return 64, 64 if width <= 64 else 128, 4


def _registers(query: Tensor, block_columns: int) -> dict[str, int]:
    """A limit on registers per thread where fewer than the compiler's choice let more programs share a multiprocessor."""
    return {"maxnreg": REGISTERS} if REGISTERS is not None and block_columns == 128 and _on_hopper(query) else {}


def _on_hopper(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] == 9


def _copies(query: Tensor, given: ScoreTensors) -> bool:
    """Whether the GPU can load tiles of these queries by TMA: their address and strides must be multiples of 16 bytes."""
    places = query.data_ptr(), *(step * query.element_size() for step in query.stride()[:3])
    return COPIES and _on_hopper(query) and query.shape[3] == given.constants["BD"] and not any(n % 16 for n in places)


def _descriptor(query: Tensor, block_rows: int) -> Any:
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(query, [1, 1, block_rows, query.shape[3]])
