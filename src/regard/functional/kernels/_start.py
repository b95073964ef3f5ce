"""Starting a compiled kernel with as little between two launches as Python allows."""

from collections.abc import Callable, Sequence
from typing import Any

import triton
from torch import Tensor
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

# Triton's own launcher asks at each call whether a kernel needs scratch memory. Only of this version do we know what the
# compiled function behind it takes, so that it can be called at once.
KNOWN_LAUNCHER = triton.__version__.startswith("3.6.")

_address = Tensor.data_ptr


class Launch:
    """One kernel with its grid and everything but its tensors. After the first launch Triton's own is not asked again:
    what it compiled is called at once, as long as all tensors begin at multiples of 16 bytes, as they did then."""

    __slots__ = ("grid", "head", "kernel", "numbers", "options", "programs", "run")

    def __init__(
        self, kernel: Any, grid: tuple[int, int, int], numbers: tuple[Any, ...], options: dict[str, int], programs: int
    ) -> None:
        self.kernel, self.grid, self.numbers, self.options, self.programs = kernel, grid, numbers, options, programs
        self.run: Callable[..., None] | None = None
        self.head: tuple[Any, ...] = ()

    def __call__(self, aligned: bool, stream: int, *tensors: Tensor) -> None:
        """``stream``: the raw one of the tensors' device, as Triton would find it."""
        if aligned and self.run is not None:
            # No hooks of profilers, which would be called from Python; addresses, which need no look at the tensors.
            self.run(*self.grid, stream, *self.head, *map(_address, tensors), *self.numbers)
            return
        made = self.kernel[self.grid](*tensors, *self.numbers, **self.options)
        if aligned and isinstance(self.kernel, JITFunction) and tensors[0].is_cuda:  # neither interpreter nor a test
            self.run, self.head = launcher_of(made)


def launcher_of(made: Any) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """What starts a compiled kernel, and what it takes between the stream and the kernel's own arguments."""
    run, about = made.run, (made.packed_metadata, None, None, None)
    if KNOWN_LAUNCHER and run.global_scratch_size == 0 and run.profile_scratch_size == 0:
        return run.launch, (made.function, run.launch_cooperative_grid, run.launch_pdl, None, None, *about)
    return run, (made.function, *about)


class Ways:
    """The ways to launch one step, the best first; one for which the card has no room is not tried again, so that the
    same step is always cut alike: the cut decides the order of summation."""

    __slots__ = ("now", "ways")

    def __init__(self, ways: Sequence[Launch]) -> None:
        self.ways, self.now = list(ways), ways[0]

    @property
    def most_programs(self) -> int:
        return max(way.programs for way in self.ways)

    def start(self, aligned: bool, stream: int, *tensors: Tensor) -> None:
        """``MemoryError`` where the card has no room for any of them. Triton says so before anything runs."""
        while True:
            try:
                return self.now(aligned, stream, *tensors)
            except OutOfResources:
                if len(self.ways) == 1:
                    raise MemoryError("the card has no room for a pass along one axis") from None
                del self.ways[0]
                self.now = self.ways[0]
