"""Buffers on the GPU for the results of checks: kernels write them there, and one copy brings all of them to the host.

A kernel that writes a map compares it with the model's output in the same pass. Each of its programs (thread blocks)
writes three numbers. Many calls share a buffer, because allocating and copying a small tensor for each call would cost
time on the host.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_FIRST, _MOST_BYTES = 16, 2**20  # calls that the first buffer holds, and bytes of the largest buffer
_NOTHING = torch.empty(0)


class CheckNumbers(NamedTuple):
    """The check of one call: the error of the product, that of the logsumexp and the largest value, for each program."""

    buffer: "_Buffer"
    number: int

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three numbers as tensors. Before :meth:`CheckBuffers.fetch` the errors are still those of each program."""
        buffer = self.buffer
        if buffer.host is not None:
            error, log_error, largest = buffer.host[self.number]
            return torch.tensor(error), torch.tensor(log_error), torch.tensor(largest)
        error, log_error, top = buffer.tensor[self.number, : 3 * buffer.count].view(3, -1)
        return error, log_error, top.amax()

    @property
    def values(self) -> tuple[float, float, float]:
        """The three numbers. Before :meth:`CheckBuffers.fetch` this synchronizes with the device."""
        if self.buffer.host is not None:
            error, log_error, largest = self.buffer.host[self.number]
            return error, log_error, largest
        error, log_error, largest = (float(x.amax()) for x in self.tensors)
        return error, log_error, largest


class _Buffer:
    """A tensor with one row for each of several calls that have ``count`` programs each."""

    __slots__ = ("begin", "capacity", "count", "host", "step", "tensor", "used")

    def __init__(self, count: int, capacity: int, device: torch.device) -> None:
        floats = -(-3 * count // 4) * 4  # rows are aligned to 16 bytes
        self.count, self.step, self.used = count, 4 * floats, 0
        self.capacity = max(1, min(capacity, _MOST_BYTES // self.step))
        self.tensor = torch.empty((self.capacity, floats), device=device)
        self.begin = self.tensor.data_ptr()
        self.host: list[list[float]] | None = None

    @property
    def waits(self) -> bool:
        """Whether reading the numbers must wait for the device."""
        return self.host is None and self.used > 0 and self.tensor.device.type != "cpu"

    @property
    def largest(self) -> Tensor:
        """The maximum of each number over the programs of a call, ``(calls, 3)``."""
        # One view instead of several, without the rows that were not used and without the padding of rows.
        return self.tensor.as_strided((self.used, 3, self.count), (self.step // 4, self.count, 1)).amax(-1)


class CheckBuffers:
    """The buffers of a capture."""

    def __init__(self) -> None:
        self._buffers: list[_Buffer] = []
        self._open: dict[tuple[torch.device, int, int], _Buffer] = {}

    def reserve(self, calls: int, count: int, device: torch.device, stream: int) -> tuple["_Buffer", int, int]:
        """Rows for calls with ``count`` programs each, which write in this stream: a buffer, the number of the first row, and for
        how many calls, at most ``calls``, the buffer has rows."""
        buffer = self._open.get((device, stream, count))
        if buffer is None or buffer.used == buffer.capacity or buffer.host is not None:
            capacity = max(calls, _FIRST if buffer is None else 4 * buffer.capacity)
            buffer = self._open[device, stream, count] = _Buffer(count, capacity, device)
            self._buffers.append(buffer)
        first = buffer.used
        buffer.used = min(buffer.capacity, first + calls)
        return buffer, first, buffer.used - first

    @property
    def are_on_device(self) -> bool:
        """Whether some of the numbers are on a device for which :meth:`fetch` would have to wait."""
        return any(buffer.waits for buffer in self._buffers)

    def fetch(self) -> None:
        """Copy all numbers to the host, with one copy from each device. This synchronizes."""
        devices: dict[torch.device, list[_Buffer]] = {}
        for buffer in self._buffers:
            if buffer.host is None and buffer.used:
                devices.setdefault(buffer.tensor.device, []).append(buffer)
        for device, buffers in devices.items():
            if device.type == "cuda":  # the kernels may have run in streams other than the current one
                torch.cuda.synchronize(device)
            found = [buffer.largest for buffer in buffers]
            host = (found[0] if len(found) == 1 else torch.cat(found)).tolist()
            for buffer in buffers:
                buffer.host, host = host[: buffer.used], host[buffer.used :]
                buffer.tensor = _NOTHING
        self._buffers = []
