"""Attention in activation checkpoints, which the backward pass runs a second time, when no change of it is active."""

import sys
from types import FrameType

import torch.utils.checkpoint

_FILE = torch.utils.checkpoint.__file__


def check_runs_once(name: str) -> None:
    """Raise an error if this attention runs in a reentrant checkpoint whose gradients are needed.

    Its backward pass computes the gradients of the unchanged model, without an error. Other checkpoints compare what the two
    passes saved, and torch raises an error.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _FILE and frame.f_code.co_name == "forward":
            needed = getattr(frame.f_locals.get("ctx"), "needs_input_grad", ())
            if any(needed):
                raise ValueError(
                    f"{name!r} cannot be changed in a reentrant checkpoint: its backward pass runs the attention again without "
                    "the change. Turn gradient checkpointing off, or run the model under torch.no_grad()"
                )
        frame = frame.f_back
