"""Computing a map must not depend on the modes in which the model runs."""

from typing import Any

import torch


def leave_inference_mode() -> Any:
    """Leave inference mode, whose tensors cannot be used where gradients are needed, until ``__exit__(None, None, None)`` of
    what is returned; None if that mode is off."""
    return torch._C._InferenceMode(False) if torch.is_inference_mode_enabled() else None


class ModesOff:
    """Without gradients, inference mode and autocast. A class, and not nested contexts: it is entered at each attention."""

    __slots__ = ("_autocast", "_device", "_grad", "_mode")

    def __init__(self, device: torch.device) -> None:
        self._device = device.type

    def __enter__(self) -> None:
        self._grad = torch.is_grad_enabled()
        self._mode = leave_inference_mode()
        torch._C._set_grad_enabled(False)
        self._autocast = None
        if torch.is_autocast_enabled(self._device):
            self._autocast = torch.autocast(self._device, enabled=False)
            self._autocast.__enter__()

    def __exit__(self, *error: Any) -> None:
        if self._autocast is not None:
            self._autocast.__exit__(*error)
        torch._C._set_grad_enabled(self._grad)
        if self._mode is not None:
            self._mode.__exit__(None, None, None)


def in_backward() -> bool:
    """In a backward pass only activation checkpointing calls the model: its attention was recorded before."""
    return torch._C._current_graph_task_id() != -1
