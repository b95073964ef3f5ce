"""Checks of what a caller passed. Each error names the argument, what came and what would fit."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


def describe(value: Any) -> str:
    """What was passed, in a few words."""
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}"
    return f"{value!r} ({type(value).__name__})"


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {describe(value)}")


def check_floating(name: str, value: Any) -> None:
    check_tensor(name, value)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {describe(value)}")


def check_ndim(name: str, value: Any, axes: str) -> None:
    """``axes`` names them, as in ``"batch heads tokens width"``."""
    check_floating(name, value)
    expected = axes.split()
    if value.ndim != len(expected):
        raise ValueError(
            f"{name} has shape {tuple(value.shape)}, {value.ndim} axes, but must have {len(expected)}: "
            f"({', '.join(expected)})"
        )


def check_width(name: str, value: Any, width: int) -> None:
    """The last axis has this size."""
    check_floating(name, value)
    if value.ndim == 0 or value.shape[-1] != width:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, but its last axis must be {width} wide")


def check_dtype(name: str, value: Tensor, parameter: Tensor) -> None:
    """The layer's own dtype, unless autocast settles it."""
    if value.dtype != parameter.dtype and not under_autocast(value):
        raise TypeError(f"{name} is {describe(value)}, but the layer's parameters are {parameter.dtype}")


def under_autocast(value: Tensor) -> bool:
    """Whether operations on it settle dtypes themselves. Some devices (``meta``) have no autocast to ask for."""
    device = value.device.type
    # Compilers of torch before 2.12 cannot trace amp.is_autocast_available, so the one kind that lacks it is named.
    return device != "meta" and torch.is_autocast_enabled(device)


def is_exporting() -> bool:
    """Whether ``torch.export`` is at work. Compilers of torch before 2.13 say so of every ``torch.compile`` as well, when
    asked through torch.compiler.is_exporting; the flag behind it is right."""
    return bool(torch.compiler._is_exporting_flag)


def check_beta(beta: Any, name: str = "beta") -> None:
    """An inverse temperature in [0, ∞]. A tensor's values are checked where that costs no wait for a device."""
    if isinstance(beta, Tensor):
        check_floating(name, beta)
        if values_are_readable(beta) and not bool((beta >= 0).all()):
            raise ValueError(f"{name} must lie in [0, ∞], but its smallest value is {beta.min().item()}")
        return
    if isinstance(beta, bool) or not isinstance(beta, int | float):
        raise TypeError(f"{name} must be a number in [0, ∞] or a tensor of such, got {describe(beta)}")
    if not beta >= 0:  # nor is NaN
        # An integer of thousands of digits has no text.
        raise ValueError(f"{name} must lie in [0, ∞], got {beta if beta > -1e300 or beta != beta else 'less than -1e300'}")


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


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_broadcastable(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    of: str,
    *,
    dtype: torch.dtype | None = None,
    same_ndim: bool = True,
) -> None:
    """``value`` has the axes of ``shape`` (each of the same size or 1). With ``same_ndim`` leading axes may not be
    left out, so that a mask of the wrong kind is refused instead of stretched."""
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
    """True where looking at values neither breaks a graph being traced, nor waits for a device, nor is refused by
    ``torch.func``'s transforms."""
    return (
        value.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and not is_functional(value)
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)  # type: ignore[attr-defined]
    )


def is_functional(value: Tensor) -> bool:
    """Fake or meta tensors have shapes but no values."""
    return value.is_meta or type(value).__name__ == "FakeTensor"


def replaced_method(module: nn.Module, base: type[nn.Module], *methods: str) -> str | None:
    """The first of ``base``'s methods that a subclass, or the module itself, has its own of.

    >>> replaced_method(torch.nn.Linear(2, 2), torch.nn.Linear, "forward") is None
    True
    """
    own = (name for name in methods if name in vars(module) or getattr(type(module), name) is not getattr(base, name))
    return next(own, None)


def check_shapes(**named: tuple[Any, str]) -> dict[str, int]:
    """Floating-point tensors that fit together, each with the names of its axes; an absent one is None.

    Axes of one name have one size, ``...`` stands for leading axes that are the same everywhere, and all tensors share
    a dtype and a device. Returns the sizes by name.

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
