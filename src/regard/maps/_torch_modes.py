"""The modes of torch in which a model may run, and how to leave them: a map must not depend on them."""

from typing import Any

import torch

ANOTHER_THREAD = "a block that watches a model must end in the thread in which it began"


def leave_inference_mode() -> Any:
    """Leave inference mode, because its tensors cannot be used later where gradients are needed.

    Returns a guard: ``__exit__(None, None, None)`` enters the mode again. None if the mode is off.
    """
    return torch._C._InferenceMode(False) if torch.is_inference_mode_enabled() else None


class ModesOff:
    """Turns gradients, inference mode and autocast off.

    One class is faster than three nested contexts, and this is entered at each attention.
    """

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
    """Whether a backward pass is running. Only activation checkpointing calls the model in it, to repeat what was recorded."""
    return backward_pass() != NO_PASS


backward_pass, NO_PASS = torch._C._current_graph_task_id, -1  # for code that has no time to call a Python function


def remove_function_mode(mode: torch.overrides.TorchFunctionMode) -> None:
    """Take a function mode off the stack of this thread. Modes that were entered later, and that are not left yet, stay."""
    later: list[torch.overrides.TorchFunctionMode] = []
    found = None
    while found is not mode and torch._C._len_torch_function_stack():
        found = torch.overrides._pop_mode()
        later.append(found)
    for other in reversed(later):
        if other is not mode:
            torch.overrides._push_mode(other)
    if found is not mode:
        raise RuntimeError(ANOTHER_THREAD)
