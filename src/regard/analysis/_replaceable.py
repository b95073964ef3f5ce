"""Whether the output of a running attention can be replaced, and whether it has gradients."""

import sys
from collections.abc import Sequence
from types import FrameType

import torch
import torch.utils.checkpoint
from torch import Tensor

from regard.maps import AttentionRecord

_FILE = torch.utils.checkpoint.__file__


def why_fixed(record: AttentionRecord) -> str | None:
    """Why the model goes on with its own output of this attention, whatever a listener returns, if so."""
    running = record.running
    if running.output is None or running.restore is None:
        return f"does not let its output be replaced ({record.kernel or record.kind})"
    return None


def why_no_gradient() -> str | None:
    """Why the running attention has no gradients although the caller turned them on, if so. They would be zero, without an
    error."""
    if torch.is_grad_enabled():
        return None
    return "runs where gradients are off (in a reentrant checkpoint, a reversible layer or torch.no_grad)"


def gradients(total: Tensor, tensors: Sequence[Tensor], advice: str) -> tuple[Tensor | None, ...]:
    """The derivatives by tensors that a listener put into the model; None where it does not depend on them.

    A checkpoint runs the model a second time, without the listener, and refuses what it finds then.

    Args:
        advice: what to do in this case, in the message.
    """
    try:
        return torch.autograd.grad(total, tensors, allow_unused=True)
    except torch.utils.checkpoint.CheckpointError as error:
        raise ValueError(f"checkpoints in the model run it again for its gradients, unchanged: {advice}") from error


def check_runs_once(name: str) -> None:
    """Raise an error if this attention runs in a reentrant checkpoint whose gradients are needed.

    Its backward pass computes the gradients of the unchanged model, without an error. Other checkpoints compare what the two
    passes saved, and torch raises an error.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == _FILE and frame.f_code.co_name == "forward":
            # Under torch.no_grad the checkpoint has no next functions, though its inputs may need gradients.
            needed = getattr(frame.f_locals.get("ctx"), "next_functions", ())
            if needed:
                raise ValueError(
                    f"{name!r} cannot be changed in a reentrant checkpoint: its backward pass runs the attention again without "
                    "the change. Turn gradient checkpointing off, or run the model under torch.no_grad()"
                )
        frame = frame.f_back
