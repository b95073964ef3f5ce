"""An exponential moving average of a network's parameters."""

import copy

import torch
from torch import nn


class Average:
    r"""A network whose parameters are a moving average of another's.

    .. math:: \bar\theta_t = d_t\,\bar\theta_{t-1} + (1 - d_t)\,\theta_t, \qquad
        d_t = \min\bigl(d, \tfrac{1 + t}{10 + t}\bigr)

    so that the random initialization is soon forgotten. Buffers are copied.

    Args:
        network: the network in training.
        decay: d, in [0, 1).

    >>> network = torch.nn.Linear(1, 1, bias=False)
    >>> average = Average(network, decay=0.5)
    >>> _ = torch.nn.init.constant_(network.weight, 3.0), torch.nn.init.constant_(average.network.weight, 0.0)
    >>> average.update(step=1000)
    >>> average.network.weight.item()
    1.5
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self._followed = network
        self.network = copy.deepcopy(network).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after step number ``step``, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        own, followed = ([x.detach() for x in each.parameters()] for each in (self.network, self._followed))
        torch._foreach_lerp_(own, followed, 1 - decay)
        for mine, theirs in zip(self.network.buffers(), self._followed.buffers(), strict=True):
            mine.copy_(theirs)
