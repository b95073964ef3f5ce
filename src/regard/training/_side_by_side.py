"""Independent work on CUDA streams of its own, so that small kernels fill the device together."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch

# Of each device. Work is given to them here only, so each begins after all that any of them did at former calls: memory
# that one of them allocated can be used by others, and freed, without being marked for them.
_streams: dict[torch.device, list[Any]] = defaultdict(list)


def side_by_side(tasks: Sequence[Callable[[], Any]], device: torch.device) -> None:
    """Run tasks of which none writes what another reads or writes.

    On a GPU each task has a stream of its own. The streams begin after what the current stream was given before, and end
    before what it is given next, so the results are the same as of one task after the other. The host does not wait.

    Args:
        tasks: functions without arguments.
        device: the device of all their tensors.

    >>> done = []
    >>> side_by_side([lambda: done.append(1), lambda: done.append(2)], torch.device("cpu"))
    >>> done
    [1, 2]
    """
    if device.type != "cuda" or len(tasks) < 2:
        for task in tasks:
            task()
        return
    streams = _streams[device]
    while len(streams) < len(tasks):
        streams.append(torch.cuda.Stream(device))
    here, used = torch.cuda.current_stream(device), streams[: len(tasks)]
    for task, stream in zip(tasks, used, strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            task()
    for stream in used:
        here.wait_stream(stream)
