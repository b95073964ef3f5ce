"""Collects the evidence for the meaning of axes (see :mod:`regard.maps.tokens._axes`).

It comes from the module's attributes, its output projection, the input with which it was called, and the strides of its
tensors.
"""

import re
from functools import lru_cache
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._module_names import CallSite, attribute, named_modules
from regard.maps.tokens._axes import AxisEvidence

# Attributes that state the number of heads, output projections, and names of a module's input.
_HEADS = ("num_heads", "heads", "n_heads", "num_attention_heads", "nhead", "n_head")
_OUTPUT = re.compile(r"^(proj|out|dense|wo|w_o|o|fc_o|c_proj|o_proj|attn_proj|to_out)(_?(proj|linear|layer))?(\.0)?$")
_FIRST = ("hidden_states", "query", "x", "q")


def evidence_for(site: CallSite, width: int, output_shape: tuple[int, ...], *inputs: Tensor) -> AxisEvidence:
    """All evidence about the axes of one attention.

    Args:
        width: of the values.
        output_shape: ``(…, queries, width)``, in the model's layout.
        inputs: queries, keys and values in the model's layout, with all leading axes.
    """
    stated, projected, first, arguments = stated_by(site, width)
    own = is_own(first, arguments, output_shape)
    turned = first is not None and _is_channels_first(first, site)
    if first is not None and turned:
        first = first.mT
    like = [x for x in inputs if x.ndim == len(output_shape)]
    beside = {axis for x in like if (axis := _beside_width(x)) is not None}
    return AxisEvidence(
        stated,
        projected if stated is None or projected == stated else None,  # over channels, the width is not that of a head
        _tokens(first, output_shape, stated) if own else (),
        _sequences(first) if first is not None and own else None,
        beside.pop() if len(beside) == 1 else None,
        _keys_beside(like[-1], first, turned) if like else False,
    )


def stated_by(site: CallSite, width: int) -> tuple[int | None, int | None, Tensor | None, FrameType | None]:
    """What the module that attends says about its heads.

    Returns the number of heads that it or the module around it states, the number that fits its output projection, the first
    tensor with which it was called (vectors, else token ids), and the frame of that call.
    """
    stated: int | None = None
    projected: int | None = None
    arguments = None
    for module, frame in _running_modules(site):
        if (heads := (id(module), "heads")) not in site.remembered:
            site.remembered[heads] = heads_of(module)
        stated = site.remembered[heads]
        if stated is not None or arguments is None:
            arguments = frame
        if module is site.module:
            if (key := (id(module), "projected", width)) not in site.remembered:
                site.remembered[key] = _projected(module, width)
            projected = site.remembered[key]
        if stated is not None:
            break
    if arguments is None:
        return stated, projected, None, None
    first = _first_input(arguments)
    return stated, projected, _first_input(arguments, numbers=True) if first is None else first, arguments


def is_own(first: Tensor | None, arguments: FrameType | None, output_shape: tuple[int, ...]) -> bool:
    """Whether the first tensor of a module's call is a layer input, not a query that is already split into heads."""
    if first is None:
        return False
    return tuple(first.shape) != output_shape or (first.ndim == 3 and _is_alone(first, arguments))


def _is_channels_first(x: Tensor, site: CallSite) -> bool:
    """Whether a module's input with three axes is ``(batch, channels, tokens)``: 1-D convolutions or linear layers of this module
    or of the one around it have as many channels as the second axis, and no linear layer has as many as the last axis."""
    if x.ndim != 3:
        return False
    found = False
    for module, _ in _running_modules(site):
        if (key := (id(module), "channels")) not in site.remembered:
            site.remembered[key] = _channels_of(module)
        of_linear, of_all = site.remembered[key]
        if x.shape[2] in of_linear:
            return False
        found = found or x.shape[1] in of_all
    return found


def _channels_of(module: nn.Module) -> tuple[set[int], set[int]]:
    """The numbers of channels of all linear layers in a module, and of these and its 1-D convolutions."""
    inside = named_modules(module).values()
    linear = {n for x in inside if isinstance(x, nn.Linear) for n in (x.in_features, x.out_features)}
    return linear, linear | {n for x in inside if isinstance(x, nn.Conv1d) for n in (x.in_channels, x.out_channels)}


def _keys_beside(value: Tensor, first: Tensor | None, turned: bool = False) -> bool:
    """Whether neighboring keys are next to each other in memory, as the channels of the module's input are.

    Args:
        turned: whether the input has its channels first: then its tokens are next to each other.
    """
    if value.shape[-2] < 2:
        return False
    if turned:
        return value.stride(-1) == 1 < value.stride(-2)
    if first is not None and first.ndim == 4 and first.shape[1] != first.shape[-1] and first.is_contiguous():
        # An image (batch, channels, height, width): tokens are contiguous, unless the values were transposed since.
        tokens = first.shape[-1] * first.shape[-2]
        if value.stride(-2) == 1 and value.stride(-1) != tokens:
            return value.stride(-1) % first.shape[1] == 0
        return value.stride(-1) == 1 and value.stride(-2) == tokens
    return value.stride(-2) == 1 < value.stride(-1)


def heads_of(module: nn.Module | None) -> int | None:
    """The number of heads that a module states under one of the usual names, else None."""
    for name in _HEADS:
        count = attribute(module, name)
        if isinstance(count, int) and not isinstance(count, bool):
            return count
    return None


def sequences_of(site: CallSite) -> tuple[int, int] | None:
    """The number of samples of the module's input and their length, if it is ``(batch, tokens, channels)``."""
    found = _running_modules(site)
    first = _first_input(found[0][1]) if found else None
    if first is None or first.ndim != 3:
        return None
    return first.shape[0], first.shape[2 if _is_channels_first(first, site) else 1]


def inputs_around(site: CallSite) -> list[Tensor]:
    """The first input of the module that attends and of each module around it.

    Several inputs with four axes are skipped: those are queries, keys and values.
    """
    found = []
    for _, frame in site.calls():
        x = _first_input(frame, numbers=True)
        if x is not None and (x.ndim < 4 or _is_alone(x, frame)):
            found.append(x)
    return found


def _is_alone(x: Tensor, frame: FrameType | None) -> bool:
    """Whether no other tensor with the same number of axes was passed to a module. A query comes with keys."""
    here: dict[str, Any] = {} if frame is None else frame.f_locals
    given = (*here.get("args", ()), *here.get("kwargs", {}).values())
    return sum(isinstance(y, Tensor) and y.ndim == x.ndim for y in given) <= 1


def _running_modules(site: CallSite) -> list[tuple[nn.Module, FrameType]]:
    """The module that attends and the one that called it, with the frames of their calls."""
    return list(islice(site.calls(), 2))


@lru_cache(4096)
def _is_output(name: str) -> bool:
    return _OUTPUT.search(name) is not None


def _projected(module: nn.Module, width: int) -> int | None:
    """How many heads of this width fit the layer's output projection; None without one, or if several disagree."""
    counts = set()
    for name, child in named_modules(module).items():
        if _is_output(name) and width > 0 and isinstance(child, nn.Linear | nn.Conv1d | nn.Conv2d):
            entering = child.in_features if isinstance(child, nn.Linear) else child.in_channels
            counts |= {entering // width} if entering % width == 0 else set()
    return counts.pop() if len(counts) == 1 else None


def _first_input(frame: FrameType, numbers: bool = False) -> Tensor | None:
    """The first tensor with which the module was called. The frame of the call still has it if ``forward`` rebinds its name.

    Args:
        numbers: also accept token ids, ``(batch, tokens)``.
    """
    variables = frame.f_locals
    args, kwargs = variables.get("args", ()), variables.get("kwargs", {})
    for x in args:
        if _is_input(x, numbers):
            return x  # type: ignore[no-any-return]
    for x in (*(kwargs[name] for name in _FIRST if name in kwargs), *kwargs.values()) if kwargs else ():
        if _is_input(x, numbers):
            return x
    return None


def _is_input(x: Any, numbers: bool) -> bool:
    if not isinstance(x, Tensor) or x.ndim < 2:
        return False
    return x.is_floating_point() or (numbers and x.ndim == 2 and x.dtype in (torch.int64, torch.int32))


def _sequences(x: Tensor) -> tuple[int, int] | None:
    """The number of sequences in a module's input, vectors or token ids, and their length."""
    return (x.shape[0], x.shape[1]) if x.ndim == 3 or not x.is_floating_point() else None


def _tokens(x: Tensor | None, output_shape: tuple[int, ...], stated: int | None) -> tuple[tuple[int, int], ...]:
    """Possible pairs (tokens, channels) of the module's input: channels are the last axis, or the second one of images."""
    if x is None or x.numel() == 0:
        return ()
    if not x.is_floating_point():
        return ((x.numel(), 0),)
    shape, width = tuple(x.shape), output_shape[-1]
    if len(shape) >= 4 and shape[-1] == width and stated is not None and stated in shape[:-2]:
        return ((x.numel() // (width * stated), width * stated),)  # the input is already split into heads
    if len(shape) >= 4 and shape[:-1] == output_shape[:-1]:
        return ()  # the input seems to be split into heads
    found = [(x.numel() // shape[-1], shape[-1])]
    if len(shape) == 4 and shape[1] != shape[-1]:
        found.append((x.numel() // shape[1], shape[1]))
    return tuple(found)


def _beside_width(x: Tensor) -> int | None:
    """The leading axis of ``(…, tokens, width)`` with a smaller stride than the tokens: most likely the heads."""
    width, tokens = x.shape[-1], x.shape[-2]
    if x.layout is not torch.strided or x.ndim < 3 or tokens < 2 or x.stride(-1) != 1:
        return None
    step = x.stride(-2)
    near = [axis for axis in range(x.ndim - 2) if x.shape[axis] > 1 and width <= x.stride(axis) < step]
    if x.ndim == 3:  # with tokens first in memory the samples qualify, too: heads follow the width at once
        near = [axis for axis in near if x.stride(axis) == width]
    return min(near, key=x.stride) if near else None
