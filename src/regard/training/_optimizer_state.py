"""The optimizers' state: setting learning rates, and saving and restoring the state of each parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.training._optimizer_settings import PEAK


def set_learning_rates(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Set each group to its peak learning rate times ``factor``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group[PEAK] * factor


def optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], names: dict[int, str]
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """The optimizers' state of each parameter: tensors by name, and the plain numbers of each optimizer.

    ``names`` gives the parameters' names by ``id``.
    """
    tensors, numbers = {}, []
    for optimizer in optimizers:
        plain = {}
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
    numbers: list[dict[str, float]],
) -> None:
    """Load what :func:`optimizer_state` returned."""
    remembered: dict[str, dict[str, Any]] = {}
    sources: list[Mapping[str, Any]] = [tensors, *numbers]
    for source in sources:
        for name, value in source.items():
            key, _, parameter = name.partition(".")
            remembered.setdefault(parameter, {})[key] = value
    for optimizer in optimizers:
        state = optimizer.state_dict()
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state["state"] = {
            at: {key: _in_layout_of(value, parameter) for key, value in remembered[names[id(parameter)]].items()}
            for at, parameter in enumerate(ordered)
            if names[id(parameter)] in remembered
        }
        optimizer.load_state_dict(state)


def _in_layout_of(value: Any, parameter: Tensor) -> Any:
    """The tensor in the parameter's memory layout (for example channels last), which fused optimizers require."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or parameter.is_contiguous():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
