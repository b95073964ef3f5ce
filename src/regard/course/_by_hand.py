"""Answers run under watch: one that hands the work to a ready-made function is refused, however it got hold of it."""

import functools
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from torch.overrides import TorchFunctionMode

# What the name of a torch function contains if it is attention in one call.
_ATTENTION = ("scaled_dot_product", "multi_head_attention", "transformer_encoder_layer", "flex_attention")
# By what an exercise asks for: names of torch functions that would answer it in one call.
_READY_MADE = {
    "softmax": ("softmax", "softmin", "log_softmax", "gumbel_softmax", "logsumexp"),
    "layer_norm": ("layer_norm", "native_layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm"),
    "gelu": ("gelu", "gelu_"),
    "convolution": ("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d"),
    "recurrence": ("rnn_tanh", "rnn_relu", "gru", "lstm", "rnn_tanh_cell", "rnn_relu_cell", "gru_cell", "lstm_cell"),
    "kron": ("kron",),
}


class ReadyMadeError(AssertionError):
    """The answer calls the function it is asked to write."""


def by_hand(answer: Any, *, without: str | Iterable[str] = ()) -> Callable[..., Any]:
    """The answer, to be called as before; but if it reaches for a ready-made function, the call fails and says so.

    Refused are always this library's own functions and layers, torch's fused attention, and a detour through NumPy.
    Functions are recognized while they run, so that neither an alias nor an import under another name helps.

    Args:
        answer: a function or a module.
        without: further kinds to refuse: ``"softmax"``, ``"layer_norm"``, ``"gelu"``, ``"convolution"``,
            ``"recurrence"``, ``"kron"``.

    >>> import regard.course
    >>> regard.course.by_hand(lambda x: x.exp())(torch.zeros(1))
    tensor([1.])
    >>> regard.course.by_hand(lambda x: regard.softargmax(x))(torch.zeros(1))
    Traceback (most recent call last):
    regard.course._by_hand.ReadyMadeError: your answer calls regard's softargmax; write it out yourself
    """
    kinds = (without,) if isinstance(without, str) else tuple(without)
    unknown = [kind for kind in kinds if kind not in _READY_MADE]
    if unknown:
        raise ValueError(f"without must name kinds of {', '.join(_READY_MADE)}, got {', '.join(unknown)}")
    if answer is None or answer is Ellipsis or not callable(answer):
        what = "is not there yet" if answer is None or answer is Ellipsis else f"is {answer!r}, which cannot be called"
        raise AssertionError(f"your answer {what}: run its cell first, and keep the name it was given")
    refused = {name: kind for kind in kinds for name in _READY_MADE[kind]}

    @functools.wraps(answer, updated=())
    def watched(*args: Any, **options: Any) -> Any:
        with _Watch(refused):
            return answer(*args, **options)

    return watched


class _Watch(TorchFunctionMode):
    """Sees every torch function called inside, and from where."""

    def __init__(self, refused: dict[str, str]) -> None:
        super().__init__()
        self.refused = refused

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", str(function))
        if any(part in name for part in _ATTENTION):
            raise ReadyMadeError(
                f"your answer calls torch's {name}, which is attention in one call; write it out yourself"
            )
        if name in self.refused:
            raise ReadyMadeError(
                f"your answer calls torch's {name}; this exercise asks you to write {self.refused[name]} out yourself"
            )
        if name in ("numpy", "__array__"):
            raise ReadyMadeError("your answer leaves torch for NumPy, where gradients end; stay with tensors")
        own = _own_code(sys._getframe(1))
        if own is not None:
            raise ReadyMadeError(f"your answer calls regard's {own}; write it out yourself")
        return function(*args, **(kwargs or {}))


def _own_code(frame: FrameType | None) -> str | None:
    """The outermost of this library's functions between the answer and here, if there is one."""
    found = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module == __name__ and frame.f_code.co_name == "watched":
            return found
        if module.startswith("regard.") and not module.startswith("regard.course"):
            found = frame.f_code.co_qualname.removesuffix(".forward")
        frame = frame.f_back
    return found
