"""Whether a module computes what its class does with its weights, which is all that a reader of weights can know."""

from torch import nn


def replaced_method(module: nn.Module, base: type[nn.Module], *methods: str) -> str | None:
    """The first of these methods of ``base`` that a subclass or the instance overrides, or None.

    >>> replaced_method(torch.nn.Linear(2, 2), torch.nn.Linear, "forward") is None
    True
    """
    own = (name for name in methods if name in vars(module) or getattr(type(module), name) is not getattr(base, name))
    return next(own, None)


def is_unmodified(layer: nn.Module) -> bool:
    """Whether a layer computes with its own weight. Normalized and masked weights are computed from other parameters."""
    return "weight" in layer._parameters and "forward" not in vars(layer)


def check_linear_layers(name: str, module: nn.Module) -> None:
    """Raise an error if a linear layer in the module computes more than its weight and bias say, as an adapter does."""
    for inside, layer in module.named_modules():
        if isinstance(layer, nn.Linear) and (replaced_method(layer, nn.Linear, "forward") or not is_unmodified(layer)):
            raise TypeError(
                f"the {inside} of {name} is no plain nn.Linear ({type(layer).__name__}): its weight is not all that it computes "
                "with; merge an adapter into it first"
            )


def check_own_forward(name: str, module: nn.Module, base: type[nn.Module]) -> None:
    """Raise an error if a subclass or the instance has another ``forward`` than ``base``."""
    if replaced_method(module, base, "forward"):
        raise TypeError(f"{name} is a {type(module).__name__}, which replaces forward, so its computation is unknown")


def check_library_forward(name: str, module: nn.Module, library: str) -> None:
    """Raise an error if a class of the user overrides how a class of the library computes, or if the instance does."""
    kinds = type(module).__mro__
    own = kinds[: next((place for place, kind in enumerate(kinds) if kind.__module__.startswith(library)), 0)]
    if "forward" in vars(module) or any(method.startswith("forward") for kind in own for method in vars(kind)):
        raise TypeError(f"{name} is a {type(module).__name__}, which replaces forward, so its computation is unknown")
