"""Memory on a GPU for the maps of several calls and for their checks, allocated at once: each allocation takes time."""

import torch
from torch import Tensor

from regard.functional import kernels
from regard.maps._torch_modes import leave_inference_mode
from regard.maps.repeats._check_buffers import CheckBuffers, CheckNumbers

_TOGETHER = 2**22  # bytes of maps that are allocated as one tensor, and so can only be freed together


class MapRooms:
    """Memory for the next maps of one form, which are written in one CUDA stream.

    Attributes:
        stream: the raw handle of the stream.
        left: for how many calls there is memory left.
    """

    __slots__ = ("_buffer", "_memory", "_number", "_place", "_several", "_size", "_step", "_to", "left", "stream")

    def __init__(
        self,
        writer: kernels.WeightsPlan,
        dtype: torch.dtype,
        size: int,
        most: int,
        numbers: CheckBuffers,
        stream: int,
    ) -> None:
        """
        Args:
            size: bytes of a map.
            most: for how many calls there may be memory, at least 1.
            numbers: the buffers for the checks.
        """
        left = leave_inference_mode()
        try:
            self._buffer, self._number, count = numbers.reserve(most, writer.count, writer.device, stream)
            self.stream, self.left, self._size, self._to = stream, count, size, 0
            self._step = self._buffer.step
            self._place = self._buffer.begin + self._number * self._step
            self._memory: Tensor | None = None
            self._several: list[Tensor] = []
            if count * size <= _TOGETHER and size % 16 == 0:  # each map must be aligned to 16 bytes
                self._memory = torch.empty((count, *writer.shape), dtype=dtype, device=writer.device)
                self._to = self._memory.data_ptr()
            else:
                one = torch.empty(writer.shape, dtype=dtype, device=writer.device)
                self._several = [one, *(torch.empty_like(one) for _ in range(count - 1))]
        finally:
            if left is not None:
                left.__exit__(None, None, None)

    def take(self) -> tuple[Tensor, int | None, CheckNumbers, int, int]:
        """Memory for one call: a tensor, the index of the map in it (None if it is the map), the place of its check, and the
        addresses of both."""
        self.left = index = self.left - 1
        check = CheckNumbers(self._buffer, self._number + index)
        place, memory = self._place + index * self._step, self._memory
        if memory is not None:
            return memory, index, check, self._to + index * self._size, place
        memory = self._several.pop()
        return memory, None, check, memory.data_ptr(), place
