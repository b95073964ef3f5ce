"""What a model is like, as far as its modules state it: whether a model that was seen before is still the same.

Nothing here refers to the model or its modules, so that it can be kept for as long as the model lives.
"""

from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, compress
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.maps._module_names import ModuleNames

_NUMBERS = frozenset({bool, int, str, float})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


class ModelForm(NamedTuple):
    """The modules of a model by their numbers.

    Attributes:
        ids: of all modules, level by level; shared ones several times.
        children: the names of all modules in their parents, in the same order, without the model itself.
        places: of each path the module's place among the ids.
        paths: by the id of the module.
        root: the name of the model itself.
        is_wrapped: whether wrappers add something to the paths.
        likeness: what decides which way the model takes.
    """

    ids: list[int]
    children: list[str]
    places: dict[str, int]
    paths: dict[int, str]
    root: str
    is_wrapped: bool
    likeness: tuple[Any, ...]

    def names_if_same(self, model: nn.Module) -> ModuleNames | None:
        """The names of the model's modules, if all of them and what they state is as it was."""
        found = _levels(model, len(self.ids))
        if found is None or found[1] != self.children or list(map(id, found[0])) != self.ids:
            return None
        modules = found[0]
        named = {path: modules[place] for path, place in self.places.items()}
        if likeness_of(named.values()) != self.likeness:
            return None
        return ModuleNames(model) if self.is_wrapped else ModuleNames(named, self.paths, self.root)


def form_of(model: nn.Module, names: ModuleNames) -> ModelForm | None:
    """The form of a model; None if it cannot be told whether another one is like it."""
    likeness = likeness_of(names.modules.values())
    found = _levels(model, 2 * len(names.modules) + 64)
    if likeness is None or found is None:
        return None
    ids = list(map(id, found[0]))
    place = {number: index for index, number in reversed(list(enumerate(ids)))}
    if any(id(module) not in place for module in names.modules.values()):
        return None
    places = {path: place[id(module)] for path, module in names.modules.items()}
    return ModelForm(ids, found[1], places, names.paths, names.root, names.is_wrapped, likeness)


def _levels(model: nn.Module, most: int) -> tuple[list[nn.Module], list[str]] | None:
    """All modules, level by level, and their names in their parents; None if there are more."""
    modules: list[Any] = [model]
    names: list[str] = []
    try:
        for module in modules:
            children = module._modules
            if children:
                names += children
                modules += children.values()
                if len(modules) > most:
                    return None
    except AttributeError:  # some places of modules are empty
        modules, names = [model], []
        for module in modules:
            names += module._modules
            modules += [child for child in module._modules.values() if child is not None]
            if len(modules) > most:
                return None
    return modules, names


@lru_cache(4096)
def _about(kind: type[nn.Module]) -> tuple[bool, bool]:
    """Whether a class is torch's own, and whether it runs outside of Python."""
    return kind.__module__.startswith("torch.nn."), issubclass(kind, torch.jit.ScriptModule)


def likeness_of(modules: Iterable[nn.Module]) -> tuple[Any, ...] | None:
    """What decides which way a model takes, as far as its modules state it; None if that cannot be told."""
    modules = list(modules)
    kinds: list[Any] = list(map(type, modules))
    about = {kind: _about(kind) for kind in set(kinds)}
    if any(scripted for _, scripted in about.values()):
        return None
    others = {kind for kind, (own, _) in about.items() if not own}
    variables = list(map(vars, modules))
    stated = [of for of, kind in zip(variables, kinds, strict=True) if kind in others]
    found: list[Any] = [*map(id, modules), *kinds, *((kind, kind.forward) for kind in about)]
    found += [of.get("training") for of in variables]
    found += [
        (id(of), id(of.get("forward")), *(id(x) for name in _HOOKS for x in of.get(name, {}).values()))
        for of in variables
        if of.get("_forward_hooks") or of.get("_forward_pre_hooks") or "forward" in of
    ]
    values = list(chain.from_iterable(map(dict.values, stated)))
    found += compress(values, map(_NUMBERS.__contains__, map(type, values)))
    configurations = {id(of["config"]): of["config"] for of in stated if "config" in of}
    found += [getattr(x, "_attn_implementation", None) for x in configurations.values()]
    return tuple(found)
