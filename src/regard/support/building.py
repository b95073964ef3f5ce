"""Build modules from untrusted descriptions: with a limit on their size, and with shapes compared before use."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

from regard.support.text import listed


@contextmanager
def shapes_only() -> Iterator[None]:
    """Inside the block, new tensors have a shape but no memory, and the random state does not change.

    >>> with shapes_only():
    ...     tuple(torch.nn.Embedding(3, 2).weight.shape)
    (3, 2)
    """
    with torch.device("meta"), torch.random.fork_rng(devices=[]), _Undrawn():
        yield


class _Undrawn(TorchFunctionMode):
    """Skips normal initialization of tensors without memory: for it torch would import its compiler, which takes seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in (torch.Tensor.normal_, torch.nn.init.normal_):
            tensor = args[0] if args else named["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **named)


@contextmanager
def at_most(tensors: int) -> Iterator[None]:
    """Inside the block, this thread cannot create a module with many more parameters than ``tensors``."""
    thread, parameters, modules = threading.get_ident(), 0, 0

    def count(parameter: int, module: int) -> None:
        nonlocal parameters, modules
        if threading.get_ident() != thread:
            return
        parameters, modules = parameters + parameter, modules + module
        # Each block has some modules without parameters; none of our models has as many as ten per tensor.
        if parameters > 2 * tensors + 100 or modules > 10 * tensors + 1000:
            raise ValueError(
                f"the network that is described has more parts than the {tensors} tensors in its file allow"
            )

    handles = (
        hooks.register_module_parameter_registration_hook(lambda *_: count(1, 0)),
        hooks.register_module_module_registration_hook(lambda *_: count(0, 1)),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def differing_shapes(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """The differences between two mappings of names to shapes, in words; empty if there are none.

    >>> differing_shapes({"a": (2,), "b": (1,)}, {"a": (3,), "c": (1,)})
    'without c; with the unknown b; a is (2,) instead of (3,)'
    """
    missing = [name for name in wanted if name not in found]
    strange = [f"{name:.100}" for name in found if name not in wanted]
    shapes = [
        f"{name} is {found[name]} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    kinds = ((missing, "without "), (strange, "with the unknown "), (shapes, ""))
    return "; ".join(say + listed(names) for names, say in kinds if names)


def shapes_of(state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors by name."""
    return {name: tuple(tensor.shape) for name, tensor in state.items()}
