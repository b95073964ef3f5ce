"""The optimizers of a network: building them, setting learning rates, and saving and restoring their state."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.support.checks import UnusableInputError, describe
from regard.training._optimizer_settings import PEAK, OptimizerSettings

GROUPS = "groups"  # the entry with the numbers of the parameter groups; every other name has a dot
# Options of torch's optimizers that fit a device, not a run: it may be resumed on another one.
OF_DEVICES = ("capturable", "differentiable", "foreach", "fused")


def build_optimizers(settings: OptimizerSettings, network: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers that the settings build, each group with its peak learning rate: by default the one it was built with."""
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UnusableInputError(f"the network ({type(network).__name__}) has no parameters to train")
    built: object = settings.build(network)
    if not isinstance(built, list | tuple) or not all(isinstance(each, torch.optim.Optimizer) for each in built):
        raise UnusableInputError(
            f"{type(settings).__name__}.build must return a list of torch.optim.Optimizer, got {describe(built)}"
        )
    for optimizer in built:
        for group in optimizer.param_groups:
            group.setdefault(PEAK, group["lr"])
    return list(built)


def set_learning_rates(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Set each group to its peak learning rate times ``factor``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group[PEAK] * factor


def optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], names: dict[int, str]
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The optimizers' state: the tensors of each parameter by name, and the plain numbers of each optimizer, those of its
    groups included: some optimizers count their steps there.

    ``names`` gives the parameters' names by ``id``.
    """
    tensors: dict[str, Tensor] = {}
    numbers: list[dict[str, Any]] = []
    for optimizer in optimizers:
        plain: dict[str, Any] = {GROUPS: [_numbers(group) for group in optimizer.param_groups]}
        for parameter, memory in optimizer.state.items():
            for key, value in memory.items():
                name = f"{key}.{names[id(parameter)]}"
                if isinstance(value, Tensor):
                    tensors[name] = value
                else:
                    plain[name] = value
        numbers.append(plain)
    return tensors, numbers


def restore_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    names: dict[int, str],
    tensors: dict[str, Tensor],
    numbers: Sequence[Mapping[str, Any]],
) -> None:
    """Load what :func:`optimizer_state` returned."""
    remembered: dict[str, dict[str, Any]] = {}
    sources: list[Mapping[str, Any]] = [tensors, *numbers]
    for source in sources:
        for name, value in source.items():
            key, _, parameter = name.partition(".")
            remembered.setdefault(parameter, {})[key] = value
    for at, optimizer in enumerate(optimizers):
        state = optimizer.state_dict()
        saved = numbers[at].get(GROUPS, []) if at < len(numbers) else []  # older checkpoints have none
        for group, values in zip(state["param_groups"], saved, strict=False):
            group.update({key: value for key, value in _numbers(values).items() if key in group})
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state["state"] = {
            number: {key: _in_layout_of(value, parameter) for key, value in remembered[names[id(parameter)]].items()}
            for number, parameter in enumerate(ordered)
            if names[id(parameter)] in remembered
        }
        optimizer.load_state_dict(state)


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """The plain numbers of a parameter group, without the options of devices."""
    found = {key: value for key, value in group.items() if isinstance(value, bool | int | float)}
    return {key: value for key, value in found.items() if key not in OF_DEVICES}


def _in_layout_of(value: Any, parameter: Tensor) -> Any:
    """The tensor in the parameter's memory layout (for example channels last), which fused optimizers require."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or parameter.is_contiguous():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
