"""Whether calling a module computes what its class does: a conversion reads only weights, and would lose anything else."""

from torch import nn

from regard.support.module_checks import replaced_method

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def why_changed(module: nn.Module, base: type[nn.Module], *methods: str) -> str | None:
    """Why calling the module may differ from ``base``'s computation with the same weights; None if it does not.

    Args:
        module: a ``base``.
        base: the class whose computation is known.
        methods: the methods besides ``forward`` that compute it; neither a subclass nor the instance may override them.
    """
    name = type(module).__name__
    if method := replaced_method(module, base, "forward", *methods):
        whose = f"{name} overrides {base.__name__}'s" if type(module) is not base else f"this {name} has its own"
        return f"{whose} {method}, so what it computes is not known here"
    for inside, part in module.named_modules():
        if any(getattr(part, hooks) for hooks in _HOOKS):
            where = f"its {inside}" if inside else "it"
            return f"{where} has hooks, which would be lost; remove them first (or convert before adding them)"
    return None
