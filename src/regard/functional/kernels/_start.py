"""Start compiled kernels with little Python overhead: without Triton's launcher, which inspects all arguments at each call."""

from collections.abc import Callable, Sequence
from typing import Any

import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

# Triton's launcher checks at each call whether a kernel needs scratch memory. Only for this version do we know the arguments
# of the compiled function behind it, and call that directly.
KNOWN_LAUNCHER = triton.__version__.startswith("3.6.")

_address = Tensor.data_ptr


class Launch:
    """One kernel with its launch grid and all arguments but the tensors. After the first launch with aligned tensors, later
    ones bypass Triton and call the compiled kernel directly, if all tensors again start at multiples of 16 bytes."""

    __slots__ = ("grid", "head", "kernel", "numbers", "options", "programs", "run")

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...], options: dict[str, int], programs: int
    ) -> None:
        self.kernel, self.grid, self.numbers, self.options, self.programs = kernel, grid, numbers, options, programs
        self.run: Callable[..., None] | None = None
        self.head: tuple[Any, ...] = ()

    def __call__(self, aligned: bool, stream: int, *tensors: Tensor) -> None:
        """``stream``: the raw handle of the current stream of the tensors' device."""
        if aligned and self.run is not None:
            # No launch hooks for profilers, which would run in Python; addresses, so that tensors are not inspected.
            self.run(*self.grid, stream, *self.head, *map(_address, tensors), *self.numbers)
            return
        made = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        if aligned and isinstance(self.kernel, JITFunction) and tensors[0].is_cuda:  # no interpreter, no test double
            self.run, self.head = launcher_of(made)


def launcher_of(made: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """The function that launches a compiled kernel, and its arguments between the stream and the kernel's own arguments."""
    run, about = made.run, (made.packed_metadata, None, None, None)
    if KNOWN_LAUNCHER and run.global_scratch_size == 0 and run.profile_scratch_size == 0:
        return run.launch, (made.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *about)
    return run, (made.function, *about)


class Launches:
    """Launch configurations of one step, the fastest first. One that does not fit the GPU is not tried again, so that equal
    steps use equal configurations, which decide the order of summation."""

    __slots__ = ("launches", "now")

    def __init__(self, launches: Sequence[Launch]) -> None:
        self.launches, self.now = list(launches), launches[0]

    @property
    def most_programs(self) -> int:
        return max(launch.programs for launch in self.launches)

    def start(self, aligned: bool, stream: int, *tensors: Tensor) -> None:
        """Launch the first that fits. Raises ``MemoryError`` if none fits; Triton detects that before anything runs."""
        while True:
            try:
                return self.now(aligned, stream, *tensors)
            except OutOfResources:
                if len(self.launches) == 1:
                    raise MemoryError("no configuration of a pass along one axis fits this GPU") from None
                del self.launches[0]
                self.now = self.launches[0]
