"""Launches of the kernels that write an attention map from queries, keys and logsumexp."""

import functools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.functional.kernels._limits import MOST_PROGRAMS
from regard.functional.kernels._tensors import is_aligned, on_device_of, power_of_two, raw_stream, rows_of

# Functions of torch that run at each attention: looking them up takes as long as calling them. A build without CUDA has none.
_stream_of: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_current_device: Any = getattr(torch._C, "_cuda_getDevice", None)
_FAR = 1 << 30  # a distance limit that hides nothing
WIDEST = 256  # largest width of a head
MOST_HEADS = MOST_PROGRAMS  # batch · heads


@dataclass(frozen=True)
class ScoreTensors:
    """The tensors and numbers that determine an attention map.

    Attributes:
        query, key: ``(batch, heads, tokens, width)``; keys may have fewer heads, each shared by neighboring query heads.
        logsumexp: ``(batch, heads, queries)``, natural logarithm.
        scale: factor of the products of queries and keys.
        shift: ``(batch,)``, the position of query 0 among the keys.
        left, right: how many keys before and after its position a query sees; None for all.
        present: ``(batch, queries)`` and ``(batch, keys)``, True for tokens that exist; None if all do.
        softcap: scores are softcap · tanh(scores / softcap); 0 for none.
        slopes: ``(batch, heads)``, the slopes of ALiBi.
    """

    query: Tensor
    key: Tensor
    logsumexp: Tensor
    scale: float
    shift: Tensor
    left: int | None = None
    right: int | None = None
    present: tuple[Tensor, Tensor] | None = None
    softcap: float = 0.0
    slopes: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (*self.query.shape[:3], self.key.shape[2])

    @cached_property
    def constants(self) -> dict[str, object]:
        return {
            "PADDED": self.present is not None,
            "CAPPED": self.softcap != 0.0,
            "SLOPED": self.slopes is not None,
            "PRECISION": "ieee" if self.query.dtype is torch.float32 else "tf32",
            "BD": max(16, power_of_two(self.query.shape[3])),
        }

    @property
    def masks(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """shift, present queries, present keys, slopes. ``shift`` also stands in for missing ones, which are never read."""
        shift = self.shift
        if shift.dtype is torch.int32 and self.present is None and self.slopes is None and shift.stride() == (1,):
            return shift, shift, shift, shift
        shift = shift.to(torch.int32)
        queries, keys = (shift, shift) if self.present is None else (x.to(torch.uint8) for x in self.present)
        slopes = shift if self.slopes is None else self.slopes.float().expand(self.shape[:2])
        return shift.contiguous(), queries.contiguous(), keys.contiguous(), slopes.contiguous()

    @property
    def limits(self) -> tuple[float, float, int, int]:
        """scale, softcap, left and right."""
        left, right = (_FAR if limit is None else limit for limit in (self.left, self.right))
        return self.scale, self.softcap, left, right


class WeightsPlan:
    """The launch that writes the weights of calls with the same shapes, strides and dtypes; only the tensors are missing.

    Attributes:
        shape: the shape of the weights.
        count: the number of programs; each writes three numbers.
    """

    __slots__ = ("_kind", "_launch", "_nothing", "count", "device", "dtype", "index", "shape")

    def __init__(
        self,
        given: ScoreTensors,
        value: Tensor,
        output: Tensor,
        dtype: torch.dtype,
        rows: slice,
        shift: int,
        alone: bool = False,
    ) -> None:
        """
        Args:
            rows: the range of queries to compute.
            shift: is added to the shifts of ``given``.
            alone: whether the kernel computes the logsumexp itself, instead of reading that of ``given``.
        """
        from regard.functional.kernels._map_write import map_weights
        from regard.functional.kernels._start import Launch

        query, key = given.query, given.key
        batch, heads, _, width = query.shape
        queries, keys, value_width, self.device = rows.stop - rows.start, key.shape[2], value.shape[3], query.device
        height = min(64, max(16, power_of_two(queries)))
        bytes_of_key = power_of_two(max(width, value_width)) * query.element_size()
        columns = min(max(16, min(64, 2**14 // bytes_of_key)), max(16, power_of_two(keys)))
        programs, constants = math.ceil(queries / height), given.constants
        numbers = (
            queries, keys, heads, heads // key.shape[1], heads // value.shape[1], width, value_width,
            rows.start, shift, *((0, 0, 0) if alone else given.logsumexp.stride()),
            *given.limits, *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *output.stride()[:3],
            constants["PADDED"], constants["CAPPED"], constants["SLOPED"], constants["PRECISION"], alone,
            height, columns, constants["BD"], max(16, power_of_two(value_width)),
        )  # fmt: skip
        self.shape, self.dtype, self.count = (batch, heads, queries, keys), dtype, programs * batch * heads
        self.index = self.device.index if self.device.type == "cuda" else None
        self._launch = Launch(map_weights, (programs, batch * heads, 1), numbers, {"num_warps": 4}, 1)
        self._nothing = 0
        # Triton specializes kernels by dtypes, and by whether each integer is 1 or a multiple of 16.
        about = (_compiled_for(i, x) for i, x in enumerate(numbers))
        self._kind = (self.device, query.dtype, value.dtype, output.dtype, dtype, *about)

    @property
    def stream(self) -> int:
        """The raw handle of the current stream of the plan's device."""
        return 0 if self.index is None else _stream_of(self.index)

    def start(self, *tensors: Tensor) -> None:
        """Write the weights. ``tensors``: query, key, value, logsumexp, output; shift, present queries, present keys, slopes;
        weights, numbers."""
        launch = self._launch
        with on_device_of(tensors[0]):
            launch(is_aligned(*tensors), raw_stream(tensors[0]), *tensors)
        if launch.run is not None:
            _compiled[self._kind] = launch.run, launch.head

    def start_at_once(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        logsumexp: Tensor | None,
        output: Tensor,
        weights: int,
        numbers: int,
        stream: int,
    ) -> bool:
        """The same with the least overhead, if all shifts are zero and all tokens exist.

        Returns False if nothing was launched: another device is current, the kernel cannot be compiled, or a tensor does not
        start at a multiple of 16 bytes, which the compiled kernel assumes.

        Args:
            logsumexp: None if the plan is ``alone``.
            weights, numbers: the addresses of what is written.
            stream: the raw handle of the device's stream.
        """
        launch = self._launch
        if self.index is not None and self.index != _current_device():
            return False
        if launch.run is None:
            found = _compiled.get(self._kind) or self._compile(query.dtype, value.dtype, output.dtype)
            if found is None:
                return False
            launch.run, launch.head = found
            self._nothing = _zeros_on(self.device)
        nothing = self._nothing
        total = nothing if logsumexp is None else logsumexp.data_ptr()
        places = query.data_ptr(), key.data_ptr(), value.data_ptr(), total, output.data_ptr()
        if (places[0] | places[1] | places[2] | places[3] | places[4] | weights | numbers) & 15:
            return False
        launch.run(
            *launch.grid, stream, *launch.head, *places, nothing, nothing, nothing, nothing, weights, numbers,
            *launch.numbers,
        )  # fmt: skip
        return True

    def _compile(
        self, query: torch.dtype, value: torch.dtype, output: torch.dtype
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Compile the kernel for tensors that start at multiples of 16 bytes, if no aligned launch has done so before."""
        from triton.runtime.jit import JITFunction

        from regard.functional.kernels._start import launcher_of

        launch, whole = self._launch, torch.int32
        if not isinstance(launch.kernel, JITFunction) or self.device.type != "cuda":  # Triton's interpreter, or a test
            return None
        made = launch.kernel.warmup(
            query, query, value, torch.float32, output, whole, whole, whole, whole, self.dtype, torch.float32,
            *launch.numbers, grid=launch.grid, **launch.options,
        )  # fmt: skip
        found = _compiled[self._kind] = launcher_of(made)
        return found


@functools.cache
def _zeros_on(device: torch.device) -> int:
    """The address of ``MOST_HEADS`` zeros. The synchronization makes them ready for use on every stream."""
    zeros = torch.zeros(MOST_HEADS, dtype=torch.int32, device=device)
    if zeros.is_cuda:
        torch.cuda.synchronize(device)
    _kept.append(zeros)
    return zeros.data_ptr()


_kept: list[Tensor] = []
_UNSPECIALIZED = (7, 8)  # positions among the numbers of the first row and the shift, which differ from call to call
# Compiled kernels by specialization. They are reused across plans: each step of ``generate`` has one more key, so a new plan.
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}


def _compiled_for(index: int, x: Any) -> Any:
    if type(x) is not int or index in _UNSPECIALIZED or index >= _FIRST_CONSTANT:
        return x if index >= _FIRST_CONSTANT else type(x)
    return x == 1, x % 16 == 0, -(2**31) <= x < 2**31


_FIRST_CONSTANT = 28  # from this position on, the numbers are compile-time constants


def write_weights(
    given: ScoreTensors, value: Tensor, output: Tensor, dtype: torch.dtype, alone: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The weights, and for each program max |weights @ value − output| and the largest error of the logsumexp. The caller
    reduces these when it reads them, so there is no synchronization here.

    Args:
        alone: compute the logsumexp instead of reading it. Then it has no error.
    """
    value, output = rows_of(value), rows_of(output)
    given = replace(given, query=rows_of(given.query), key=rows_of(given.key), logsumexp=_float(given.logsumexp))
    plan = WeightsPlan(given, value, output, dtype, slice(0, given.query.shape[2]), 0, alone)
    weights = torch.empty(plan.shape, dtype=dtype, device=plan.device)
    numbers = torch.empty((3, plan.count), device=plan.device)
    total = torch.zeros(1, device=plan.device) if alone else given.logsumexp
    plan.start(given.query, given.key, value, total, output, *given.masks, weights, numbers)
    return weights, numbers[0], numbers[1]


def _float(logsumexp: Tensor) -> Tensor:
    return logsumexp if logsumexp.dtype is torch.float32 else logsumexp.float()
