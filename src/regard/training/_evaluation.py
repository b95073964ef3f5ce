"""How good a network is on samples it was not trained on."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.data import Loader
from regard.training._fabric import total_over_processes
from regard.training._recipe import Task


class Score(NamedTuple):
    """Means over all targets."""

    loss: float
    accuracy: float
    targets: int


class FlipAveraged(nn.Module):
    """The mean of a network's class probabilities for an image and for its mirror image, as logits.

    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
    >>> images = torch.randn(2, 1, 1, 4)
    >>> torch.allclose(FlipAveraged(network)(images), FlipAveraged(network)(images.flip(-1)))
    True
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Float[Tensor, "n channels height width"]) -> Float[Tensor, "n classes"]:
        both = torch.stack([self.network(images), self.network(images.flip(-1))])
        return both.float().softmax(-1).mean(0).log()


@torch.no_grad()
def score(fabric: Any, task: Task, network: nn.Module, examples: Any, *, batch_size: int = 500) -> Score:
    """Loss and accuracy of ``network`` (in evaluation mode, and left in the mode it was in) over all ``examples``.

    Processes share the work and agree on the result, but for rounding, whatever their number.
    """
    size = fabric.world_size * max(1, batch_size // fabric.world_size)
    loader = Loader(
        examples, size, shuffle=False, drop_last=False, rank=fabric.global_rank, world_size=fabric.world_size
    )
    seen = []
    was_training = network.training
    network.eval()
    try:
        for step in range(len(loader)):
            batch = loader.batch(0, step)
            if len(batch.indices):
                with fabric.autocast():
                    outcome = task.outcome(network, batch)
                targets = torch.as_tensor(task.targets(batch), device=outcome.loss.device)
                seen.append(torch.stack([outcome.loss.float(), outcome.correct.float(), targets.float()]))
    finally:
        network.train(was_training)
    # Read once, and added in double precision, so that the number of targets stays exact.
    rows = torch.stack(seen).cpu().double() if seen else torch.zeros(1, 3, dtype=torch.float64)
    loss, correct, count = total_over_processes(fabric, rows.sum(0).to(_summing_device(fabric))).tolist()
    return Score(loss / count, correct / count, int(count))


def _summing_device(fabric: Any) -> torch.device:
    """Where processes' sums meet; one process alone keeps them on the host (not every device has float64)."""
    return fabric.device if fabric.world_size > 1 else torch.device("cpu")
