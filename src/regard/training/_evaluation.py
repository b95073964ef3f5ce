"""Loss and accuracy of a network on samples it was not trained on."""

from typing import Any, NamedTuple

import torch
from torch import nn

from regard.data import Loader
from regard.support.checks import UnusableInputError
from regard.training._fabric import share_buffers, total_over_processes
from regard.training.tasks import Task, evaluation_mode


class Score(NamedTuple):
    """Mean loss and accuracy over all targets."""

    loss: float
    accuracy: float
    targets: int


@torch.no_grad()
def score(fabric: Any, task: Task, network: nn.Module, examples: Any, *, batch_size: int = 500) -> Score:
    """Loss and accuracy of ``network`` in evaluation mode over all ``examples``. The network's mode is restored afterwards.

    Processes share the work and agree on the result, for the buffers of the first. Their number changes it only by rounding.
    """
    share_buffers(fabric, network)
    size = fabric.world_size * max(1, batch_size // fabric.world_size)
    loader = Loader(
        examples, size, shuffle=False, drop_last=False, rank=fabric.global_rank, world_size=fabric.world_size
    )
    seen = []
    with evaluation_mode(network):
        for step in range(len(loader)):
            batch = loader.batch(0, step)
            if len(batch.indices):
                with fabric.autocast():
                    outcome = task.outcome(network, batch)
                targets = torch.as_tensor(task.targets(batch), device=outcome.loss.device)
                seen.append(torch.stack([outcome.loss.float(), outcome.correct.float(), targets.float()]))
    # One read from the device, summed in double precision so that the number of targets is exact.
    rows = torch.stack(seen).cpu().double() if seen else torch.zeros(1, 3, dtype=torch.float64)
    loss, correct, count = total_over_processes(fabric, rows.sum(0).to(_summing_device(fabric))).tolist()
    if not count:
        raise UnusableInputError(f"there are no {task.target_name} to measure the network on")
    return Score(loss / count, correct / count, int(count))


def _summing_device(fabric: Any) -> torch.device:
    """The device on which processes add their sums; a single process uses the CPU (not every device has float64)."""
    return fabric.device if fabric.world_size > 1 else torch.device("cpu")
