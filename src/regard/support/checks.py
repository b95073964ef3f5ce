"""Argument checks. Each error names the argument, what was passed and what would fit."""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.forward_ad as fwAD
from torch import Tensor, nn

LONGEST = 300  # most characters of a value in an error message
# Python sequences that are text or bytes and must not be read as sequences of numbers.
TEXT = (str, bytes, bytearray, memoryview)
SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
MOST_BLOCKS = 10_000


class UnusableInputError(ValueError):
    """A file, folder or option from the user cannot be used. Commands end with exit code 2."""


def describe(value: Any) -> str:
    """A short description of a value for an error message."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    if getattr(value, "ndim", 0) and hasattr(value, "dtype") and not isinstance(value, type):  # an array of any library
        return f"a {type(value).__name__} of {value.dtype} and shape {tuple(value.shape)}"
    said = repr(value)
    said = " ".join(said.split()) if "\n" in said else said
    return f"{said if len(said) <= LONGEST else said[:LONGEST] + ' …'} ({type(value).__name__})"


def is_iterable(value: Any, kind: Any = Iterable) -> bool:
    """Whether one can iterate over the value. A tensor without axes only looks iterable."""
    return isinstance(value, kind) and not (isinstance(value, Tensor) and value.ndim == 0)


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {describe(value)}")
    if not torch.compiler.is_compiling() and value.layout in SPARSE:
        raise TypeError(f"{name} must be a dense tensor, got a sparse one: {describe(value)}")


def check_floating(name: str, value: Any) -> None:
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {describe(value)}")


def check_ndim(name: str, value: Any, axes: str) -> None:
    """Check the number of axes; ``axes`` names them, as in ``"batch heads tokens width"``."""
    check_floating(name, value)
    expected = axes.split()
    if value.ndim != len(expected):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, {value.ndim} axes, but must have {len(expected)}: "
            f"({', '.join(expected)})"
        )


def check_width(name: str, value: Any, width: int) -> None:
    """Check the size of the last axis."""
    check_floating(name, value)
    if value.ndim == 0 or value.shape[-1] != width:
        second = value.ndim > 2 and value.shape[1] == width
        hint = f": with channels first, pass {name}.movedim(1, -1)" if second else ""
        raise ValueError(f"{name} has shape {tuple(value.shape)}, but its last axis must be {width} wide{hint}")


def is_tracing() -> bool:
    """Whether ``torch.jit.trace`` is running, which the TorchScript ONNX exporter also uses."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined]


def static_sizes(value: Tensor) -> tuple[int, ...]:
    """The shape as integers, even inside ``torch.jit.trace``, which gives tensors: a trace is valid for one grid only."""
    if not is_tracing():
        return tuple(value.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        return tuple(int(size) for size in value.shape)


def check_dtype(name: str, value: Tensor, parameter: Any) -> None:
    """Check that ``value`` has the dtype of the layer's parameter, unless autocast converts it. A layer with packed weights
    (``torch.ao.quantization`` makes ``weight`` a method) checks its input itself."""
    if not isinstance(parameter, Tensor):
        return
    if value.dtype != parameter.dtype and not (under_autocast(value) and under_autocast(parameter)):
        raise TypeError(f"{name} is {describe(value)}, but must be {parameter.dtype} like the layer's parameters")


def under_autocast(value: Tensor) -> bool:
    """Whether autocast is on for ``value``. It leaves float64 as it is, and the device ``meta`` has none."""
    device = value.device.type
    # torch.compile before 2.12 cannot trace amp.is_autocast_available, so we name the one device that lacks autocast.
    return device != "meta" and value.dtype is not torch.float64 and torch.is_autocast_enabled(device)


def is_transformed() -> bool:
    """Whether ``torch.func``'s transforms or forward-mode gradients are active, which need plain operations. Always False while
    compiling, because compilers handle transforms themselves."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or fwAD._current_level >= 0


def is_exporting() -> bool:
    """Whether ``torch.export`` is running. Before torch 2.13, torch.compiler.is_exporting is also true inside
    ``torch.compile``, so we read the flag behind it."""
    return bool(torch.compiler._is_exporting_flag)


def check_beta(beta: Any) -> None:
    """An inverse temperature in [0, ∞]. Values of a tensor are read only on the CPU, to avoid a synchronization."""
    if isinstance(beta, Tensor):
        check_floating("beta", beta)
        if values_are_readable(beta) and not bool((beta >= 0).all()):
            raise ValueError(
                f"beta must lie in [0, ∞], but is {describe(beta)} whose smallest value is {beta.min().item()}"
            )
        return
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise TypeError(f"beta must be a number in [0, ∞] or a tensor of such, got {describe(beta)}")
    if not beta >= 0:  # also true for NaN
        # Python refuses to convert an integer of thousands of digits to text.
        raise ValueError(
            f"beta must lie in [0, ∞], got {beta if isinstance(beta, float) or beta > -1e300 else 'less than -1e300'}"
        )


def check_probability(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number in [0, 1), got {describe(value)}")
    if not 0 <= value < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {value}")


def check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{name} must be a whole number of 1 or more, got {describe(value)}")
    if not torch.compiler.is_compiling() and value < 1:
        raise ValueError(f"{name} must be 1 or more, got {value}")
    _check_has_64_bits(name, value)


def check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number of 0 or more, got {describe(value)}")
    _check_has_64_bits(name, value)


def check_depth(name: str, value: Any, least: int = 1) -> None:
    """Check a network's number of blocks. It is limited because files may ask for any number, and a billion takes minutes."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number of {least} or more, got {describe(value)}")
    if not least <= value <= MOST_BLOCKS:
        raise ValueError(f"{name} must be {least} or more, and {MOST_BLOCKS} at most, got {describe(value):.60}")


def _check_has_64_bits(name: str, value: Any) -> None:
    if isinstance(value, int) and not torch.compiler.is_compiling() and value >= 2**63:
        raise ValueError(f"{name} must be below 2⁶³, got {describe(value):.100}")


def check_sides(name: str, value: Any) -> tuple[int, int]:
    """Height and width, given as a pair or as one number for both.

    >>> check_sides("patch_size", 4), check_sides("image_size", (32, 48))
    ((4, 4), (32, 48))
    """
    sides = (value, value) if isinstance(value, int) else value
    if not isinstance(sides, Sequence) or isinstance(sides, TEXT) or len(sides) != 2:
        raise TypeError(f"{name} must be a number or (height, width), got {describe(value)}")
    for side in sides:
        check_positive(name, side)
    return sides[0], sides[1]


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {describe(value)}")


def check_values(name: str, value: Any, channels: int, axis: int, axes: tuple[int, ...]) -> None:
    """Check that this is a floating-point tensor with values (not on ``meta``), with a number of axes among ``axes``, and of
    size ``channels`` at ``axis``."""
    check_floating(name, value)
    if value.ndim not in axes or value.shape[axis] != channels:
        wanted = " or ".join(map(str, axes))
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, but needs {wanted} axes, with {channels} at axis {axis}"
        )
    if is_functional(value):
        raise ValueError(f"{name} has no values: it is on {value.device}")


def check_path(name: str, value: Any) -> None:
    if not isinstance(value, str | os.PathLike) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name} must be a path, got {describe(value)}")
    try:
        is_path = bool(os.fsencode(value)) and "\0" not in os.fspath(value)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        raise ValueError(f"{name} must be a path, got {describe(value)}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if not isinstance(value, str) or value not in choices:
        given = repr(value) if isinstance(value, str) else describe(value)
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {given}")


def check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {describe(value)}")


def check_module(name: str, value: Any) -> None:
    if not isinstance(value, nn.Module):
        raise TypeError(f"{name} must be an nn.Module, got {describe(value)}")


def check_index(name: str, value: Any, count: int, what: str) -> None:
    """Check an index that counts from the beginning, or from the end if it is negative."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number below {what} {count}, got {describe(value)}")
    if not -count <= value < count:
        raise ValueError(f"{name} must be below {what} {count}, got {value}")


def check_device(name: str, value: Any) -> torch.device:
    """The device, if this machine has it."""
    try:
        return torch.empty(0, device=value).device
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        raise ValueError(f"{name} must be a device of this machine, such as 'cpu', got {describe(value)}") from error


def check_broadcastable(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    of: str,
    *,
    dtype: torch.dtype | None = None,
    same_ndim: bool = True,
) -> None:
    """Check that ``value`` has the axes of ``shape``, each of the same size or 1. With ``same_ndim`` leading axes may not
    be left out, so that a mask with wrong axes raises an error instead of being broadcast."""
    check_tensor(name, value)
    if dtype is torch.bool and value.dtype is not torch.bool:
        raise TypeError(f"{name} must be a boolean tensor (True = attend), got {describe(value)}")
    if dtype is None and not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {describe(value)}")
    wrong_axes = value.ndim != len(shape) if same_ndim else value.ndim > len(shape)
    if wrong_axes or any(
        have not in (1, want) for have, want in zip(reversed(value.shape), reversed(shape), strict=False)
    ):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, which does not fit {of} of shape {tuple(shape)}: "
            f"it needs {'' if same_ndim else 'at most '}{len(shape)} axes, each of the same size or 1"
        )


def values_are_readable(value: Tensor) -> bool:
    """Whether values can be read without breaking a traced graph, without a synchronization, and without an error inside
    transforms of ``torch.func``."""
    return (
        value.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_functional(value)
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)  # type: ignore[attr-defined]
    )


def is_functional(value: Tensor) -> bool:
    """Whether the tensor is fake or on ``meta``: such tensors have shapes but no values."""
    return value.is_meta or type(value).__name__ == "FakeTensor"


def check_shapes(**named: tuple[Any, str]) -> dict[str, int]:
    """Check that floating-point tensors fit together. Each comes with the names of its axes; an absent one is None.

    Axes of the same name have the same size, ``...`` stands for leading axes that are the same everywhere, and all
    tensors share a dtype and a device. Returns the sizes by name.

    >>> check_shapes(x=(torch.ones(4, 7, 3), "... tokens dim"), w_query=(torch.ones(5, 3), "width dim"))
    {'tokens': 7, 'dim': 3, 'width': 5}
    """
    sizes: dict[str, int] = {}
    owners: dict[str, str] = {}
    first: tuple[str, Tensor] | None = None
    lead: tuple[str, tuple[int, ...]] | None = None
    for name, (value, pattern) in named.items():
        if value is None:
            continue
        check_floating(name, value)
        first = first or (name, value)
        if (value.dtype, value.device) != (first[1].dtype, first[1].device):
            raise TypeError(
                f"{name} is {value.dtype} on {value.device} but {first[0]} is {first[1].dtype} on {first[1].device}"
            )
        axes = pattern.split()
        shape = tuple(value.shape)
        says = f"{name} has shape {shape} but must be ({', '.join(axes)})"
        if axes[0] == "...":
            axes = axes[1:]
            extra = shape[: max(0, len(shape) - len(axes))]
            lead = lead or (name, extra)
            if len(shape) >= len(axes) and extra != lead[1]:
                raise ValueError(f"{says} with ... = {lead[1]}, as in {lead[0]}")
            shape = shape[len(extra) :]
        if len(shape) != len(axes):
            raise ValueError(says)
        for axis, size in zip(axes, shape, strict=True):
            owner = owners.setdefault(axis, name)
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"{says} with {axis} = {sizes[axis]}, as in {owner}")
    return sizes


@contextmanager
def taking(name: str, value: Any, model: nn.Module) -> Iterator[None]:
    """Inside the block a model is called with a user's argument: an error of the model becomes one about that argument.

    >>> model = nn.Linear(2, 2)
    >>> with taking("x", torch.ones(3), model):
    ...     model(torch.ones(3))
    Traceback (most recent call last):
    ValueError: x is a float32 tensor of shape (3,), but must be what the model (Linear) takes: mat1 and mat2 shapes cannot ...
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        said = str(error).strip().partition("\n")[0]
        if said.startswith(f"{name} must be"):  # the message is already about the argument
            raise
        given = f"{describe(value):.200}"
        raise ValueError(
            f"{name} is {given}, but must be what the model ({type(model).__name__}) takes: {said:.300}"
        ) from error


def check_grid(grid: Any, name: str = "grid") -> tuple[int, ...]:
    """The sizes of a grid's axes, as a tuple.

    >>> check_grid([16, 8])
    (16, 8)
    """
    if isinstance(grid, (int, *TEXT)) or not isinstance(grid, Sequence):
        raise TypeError(f"{name} must be a sequence of sizes such as (rows, columns), got {describe(grid)}")
    sizes = tuple(grid)
    if not sizes or any(isinstance(size, bool) or not isinstance(size, int | torch.SymInt) for size in sizes):
        raise TypeError(f"{name} must be whole numbers such as (rows, columns), got {describe(grid)}")
    if not torch.compiler.is_compiling() and any(size < 1 for size in sizes):
        raise ValueError(f"{name} must have sizes of 1 or more, got {describe(grid)}")
    return sizes


def check_gaussian_heads(center: Any, sharpness: Any, grid: Any) -> None:
    """Centers ``(heads, axes)`` and sharpnesses ``(heads,)``, ``(heads, axes)`` or ``(heads, axes, axes)`` for a grid."""
    check_ndim("center", center, "heads axes")
    check_floating("sharpness", sharpness)
    heads, axes = center.shape
    if axes != len(check_grid(grid)):
        raise ValueError(f"center has shape {tuple(center.shape)} but grid {tuple(grid)} has {len(grid)} axes")
    fitting = ((heads,), (heads, axes), (heads, axes, axes))
    if tuple(sharpness.shape) not in fitting:
        raise ValueError(
            f"sharpness has shape {tuple(sharpness.shape)} but center of shape {tuple(center.shape)} needs "
            f"{fitting[0]}, {fitting[1]} or {fitting[2]}"
        )
    if sharpness.dtype != center.dtype:
        raise TypeError(f"sharpness is {sharpness.dtype} but center is {center.dtype}")
