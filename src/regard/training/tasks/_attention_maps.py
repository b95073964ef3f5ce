"""Attention maps of a network in evaluation mode, for the tasks."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps import Maps, capture


def attention_maps(network: nn.Module, *inputs: Any, **options: Any) -> Maps:
    """The attention maps of ``network(*inputs, **options)`` in evaluation mode; empty for a network without attention.

    The network's mode is restored afterwards.

    >>> from regard.training import attention_maps
    >>> maps = attention_maps(regard.models.VisionTransformer(8, 4, 3, dim=8, depth=2, heads=2), torch.randn(1, 3, 8, 8))
    >>> list(maps)
    ['blocks.0.attention', 'blocks.1.attention']
    """
    return captured(network, lambda: network(*inputs, **options))


@torch.no_grad()
def captured(network: nn.Module, call: Callable[[], object]) -> Maps:
    """The attention maps of ``call()``, with the network in evaluation mode."""
    with evaluation_mode(network), warnings.catch_warnings():
        # A network without attention has no maps, and maps.missed lists maps that are too large. The advice of these warnings
        # is for someone who calls capture.
        warnings.filterwarnings("ignore", message="no attention was seen")
        warnings.filterwarnings("ignore", message=r"\d+ maps? (was|were) dropped")
        with capture(network) as maps:
            call()
    return maps


class evaluation_mode:
    """Inside the block the network is in evaluation mode; its mode is restored afterwards."""

    def __init__(self, network: nn.Module) -> None:
        self.network, self.was_training = network, network.training

    def __enter__(self) -> None:
        self.network.eval()

    def __exit__(self, *error: object) -> None:
        self.network.train(self.was_training)


def on_device_of(network: nn.Module, batch: Any) -> Any:
    """The batch, a named tuple of tensors, on the device of the network's parameters."""
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    return type(batch)(*(column.to(device) for column in batch))


def best_guesses(chances: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
    """The five most probable classes: ``[{"label": …, "chance": …}, …]``."""
    best = chances.topk(min(5, len(chances)))
    pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
    return [{"label": names[at], "chance": chance} for chance, at in pairs]
