"""What a model is like, as far as its modules state it: whether a model that was seen before is still the same.

Nothing here refers to the model or its modules, so that it can be kept for as long as the model lives.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain, compress, repeat
from operator import attrgetter, call, itemgetter, methodcaller
from typing import Any, NamedTuple

import torch
from torch import nn

from regard.maps._module_names import ModuleNames

_NUMBERS = frozenset({bool, int, str, float})


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
    likeness: "Likeness"

    def names_if_same(self, model: nn.Module) -> ModuleNames | None:
        """The names of the model's modules, if all of them and what they state is as it was."""
        found = _levels(model, len(self.ids))
        if found is None or found[1] != self.children or list(map(id, found[0])) != self.ids:
            return None
        modules = list(map(found[0].__getitem__, self.places.values()))
        if not self.likeness.is_that_of(modules):
            return None
        named = dict(zip(self.places, modules, strict=True))
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
    modules, names, level = [model], list[str](), [model]
    while level and len(modules) <= most:
        inner = list(map(_MODULES, level))
        names += chain.from_iterable(map(_KEYS, inner))
        level = list(chain.from_iterable(map(_VALUES, inner)))
        if None in level:  # some places of modules are empty
            level = [module for module in level if module is not None]
        modules += level
    return None if len(modules) > most else (modules, names)


@lru_cache(4096)
def _about(kind: type[nn.Module]) -> tuple[bool, bool]:
    """Whether a class is torch's own, and whether it runs outside of Python."""
    return kind.__module__.startswith("torch.nn."), issubclass(kind, torch.jit.ScriptModule)


class Likeness:
    """What decides which way a model takes, as far as its modules state it: their classes and methods, whether they train,
    their hooks, and all attributes that are numbers, words or flags.

    It is compared before each capture, so most of it is done by functions of C that take all modules at once.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        variables = list(map(vars, modules))
        self._ids: list[int] = list(map(id, modules))
        self._kinds: list[Any] = list(map(type, modules))
        self._forward: dict[Any, Any] = {kind: kind.forward for kind in self._kinds}
        self._training, self._hooked = _common(variables)
        # Torch's own modules state what they are by their classes and parameters.
        self._stating = [not _about(kind)[0] for kind in self._kinds]
        stating = list(compress(variables, self._stating))
        self._sizes = list(map(len, stating))
        self._attributes = [[name for name in of if name not in _OF_ALL] for of in stating]
        self._get = [_getter(names) for names in self._attributes]
        values = self._values(stating)
        self._types = list(map(type, values))
        self._is_number = list(map(_NUMBERS.__contains__, self._types))
        self._numbers = list(compress(values, self._is_number))
        self._configured = ["config" in of for of in stating]
        self._implementations = _implementations(compress(stating, self._configured))

    def _values(self, stating: Iterable[dict[str, Any]]) -> list[Any]:
        return list(chain.from_iterable(map(call, self._get, stating)))

    def is_that_of(self, modules: Sequence[nn.Module]) -> bool:
        """Whether nothing changed."""
        if list(map(id, modules)) != self._ids or list(map(type, modules)) != self._kinds:
            return False
        if any(kind.forward != forward for kind, forward in self._forward.items()):
            return False
        variables = list(map(vars, modules))
        stating = list(compress(variables, self._stating))
        try:
            if _common(variables) != (self._training, self._hooked) or list(map(len, stating)) != self._sizes:
                return False
            values = self._values(stating)
        except KeyError:
            return False
        if list(map(type, values)) != self._types or list(compress(values, self._is_number)) != self._numbers:
            return False
        return _implementations(compress(stating, self._configured)) == self._implementations


def likeness_of(modules: Iterable[nn.Module]) -> Likeness | None:
    """What decides which way a model takes; None if that cannot be told."""
    modules = list(modules)
    scripted = any(_about(kind)[1] for kind in set(map(type, modules)))
    return None if scripted or not all("training" in vars(module) for module in modules) else Likeness(modules)


def _getter(names: list[str]) -> Callable[[dict[str, Any]], tuple[Any, ...]]:
    """All of these variables, as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    return lambda variables: tuple(variables[name] for name in names)


def _common(variables: list[dict[str, Any]]) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Whether modules train; and the hooks, and methods of their own, of those that have some."""
    values = list(chain.from_iterable(map(_COMMON, variables)))
    training, before, after = values[::3], values[1::3], values[2::3]
    if not any(before) and not any(after) and not any(map(dict.__contains__, variables, repeat("forward"))):
        return training, []
    hooks = zip(variables, before, after, strict=True)
    return training, [
        (id(of), id(of.get("forward")), *map(id, (*first.values(), *second.values())))
        for of, first, second in hooks
        if first or second or "forward" in of
    ]


def _implementations(stating: Iterable[dict[str, Any]]) -> list[Any]:
    """Which attention the configurations of modules name."""
    found = {id(of["config"]): of["config"] for of in stating}
    return [(number, getattr(config, "_attn_implementation", None)) for number, config in found.items()]


# Variables that all modules have, and those of them that matter.
_OF_ALL = frozenset(vars(nn.Module()))
_COMMON = itemgetter("training", "_forward_pre_hooks", "_forward_hooks")
_MODULES, _KEYS, _VALUES = attrgetter("_modules"), methodcaller("keys"), methodcaller("values")
