"""Detects whether a model changed since an earlier capture: in its modules, their settings, hooks or methods.

What was learned about a model (see :mod:`regard.maps.repeats._learning`) holds only while the model stays the same. The
comparison runs before each capture, so it must be fast. It holds weak references only: it does not keep the model
alive.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress, repeat
from operator import attrgetter, call, is_, itemgetter
from typing import Any, NamedTuple

from torch import nn

from regard.maps._module_names import ModuleNames, runs_unseen

_NUMBERS = frozenset({bool, int, str, float})


class ModelForm(NamedTuple):
    """The modules of a model and their settings at some time.

    Attributes:
        modules: weak references to all modules, each once, in the order of their paths.
        paths: the paths of the modules, in the same order.
        holding: whether to compare a module's children. torch's own modules without children never get any.
        children: the names of the children of these modules, in one list.
        child: picks these children, in the same order, from a list of ``modules`` and None.
        path_of: the path of a module, by its id.
        root: the name of the model itself.
        is_wrapped: whether wrappers such as ``torch.compile`` add parts to the paths.
        fingerprint: the settings of the modules.
    """

    modules: list[weakref.ref[nn.Module]]
    paths: list[str]
    holding: list[bool]
    children: list[str]
    child: Callable[[list[Any]], tuple[Any, ...]]
    path_of: dict[int, str]
    root: str
    is_wrapped: bool
    fingerprint: "Fingerprint"

    def names_if_same(self, model: nn.Module) -> ModuleNames | None:
        """The names of the model's modules if the model is unchanged; else None."""
        modules: list[Any] = list(map(call, self.modules))
        if modules[0] is not model:
            return None
        try:
            variables = list(map(_VARIABLES, modules))
        except AttributeError:  # None in place of a module that was freed
            return None
        inner = list(map(_MODULES, compress(variables, self.holding)))
        if list(chain.from_iterable(inner)) != self.children:
            return None
        # Each child has a name, so there are as many as before.
        if not all(map(is_, chain.from_iterable(map(_VALUES, inner)), self.child([*modules, None]))):
            return None
        if not self.fingerprint.matches(modules, variables):
            return None
        if self.is_wrapped:
            return ModuleNames(model)
        return ModuleNames.known(modules, self.paths, self.path_of, self.root)


def form_of(model: nn.Module, names: ModuleNames) -> ModelForm | None:
    """The form of a model now; None if later changes of it could not be detected."""
    modules = list(names.modules.values())
    fingerprint = fingerprint_of(modules)
    if fingerprint is None or modules[0] is not model:
        return None
    kinds: list[Any] = list(map(type, modules))
    holding = [bool(module._modules) or not _is_of_torch(kind) for module, kind in zip(modules, kinds, strict=True)]
    inner = [module._modules for module in compress(modules, holding)]
    places = {id(module): place for place, module in enumerate([*modules, None])}
    child = _getter([places[id(found)] for children in inner for found in children.values()] or [0])
    return ModelForm(
        list(map(weakref.ref, modules)), list(names.modules), holding, list(chain.from_iterable(inner)), child,
        names.paths, names.root, names.is_wrapped, fingerprint,
    )  # fmt: skip


def _is_of_torch(kind: type[nn.Module]) -> bool:
    """Whether a class is torch's own."""
    return kind.__module__.startswith("torch.nn.")


class Fingerprint:
    """The settings that may decide which code a model runs, or what its maps are said to be over: classes and ``forward`` methods
    of its modules, whether they train, their hooks, all attributes that are numbers, strings, booleans or tuples of these, and
    what configurations state about attention and images.

    It is compared before each capture. So loops over modules are written with ``map``, ``compress`` and ``itemgetter``, which
    run in C.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        variables = list(map(vars, modules))
        self._kinds: list[Any] = list(map(type, modules))
        self._classes = list(dict.fromkeys(self._kinds))
        self._forward = list(map(_FORWARD, self._classes))
        self._training, self._hooked = _common(variables)
        # torch's own modules are described by their classes and parameters; attributes of all others are compared.
        self._stating = [not _is_of_torch(kind) for kind in self._kinds]
        stating = list(compress(variables, self._stating))
        self._sizes = list(map(len, stating))
        self._get = [_getter([name for name in of if name not in _OF_ALL] or ["training"]) for of in stating]
        values = self._values(stating)
        self._types = list(map(type, values))
        self._is_number = list(map(_is_number, values))
        self._numbers = list(compress(values, self._is_number))
        self._configured = ["config" in of for of in stating]
        self._configurations = _configurations(compress(stating, self._configured))

    def _values(self, stating: Iterable[dict[str, Any]]) -> list[Any]:
        return list(chain.from_iterable(map(call, self._get, stating)))

    def matches(self, modules: Sequence[nn.Module], variables: list[dict[str, Any]] | None = None) -> bool:
        """Whether nothing changed. ``variables``: the ``__dict__`` of each module, if the caller has them already."""
        variables = list(map(_VARIABLES, modules)) if variables is None else variables
        if list(map(type, modules)) != self._kinds or list(map(_FORWARD, self._classes)) != self._forward:
            return False
        stating = list(compress(variables, self._stating))
        try:
            if _common(variables) != (self._training, self._hooked) or list(map(len, stating)) != self._sizes:
                return False
            values = self._values(stating)
            if list(map(type, values)) != self._types or list(compress(values, self._is_number)) != self._numbers:
                return False
            return _configurations(compress(stating, self._configured)) == self._configurations
        except (KeyError, RuntimeError, ValueError):  # the latter from tensors or arrays in a tuple that held numbers
            return False


def fingerprint_of(modules: Iterable[nn.Module]) -> Fingerprint | None:
    """The fingerprint of modules; None if some run outside of Python or in other threads, or are only partly initialized."""
    modules = list(modules)
    unseen = any(map(runs_unseen, set(map(type, modules))))
    return None if unseen or not all("training" in vars(module) for module in modules) else Fingerprint(modules)


def _is_number(x: Any) -> bool:
    """Whether this is a number, a string, a boolean, or a tuple of these."""
    return type(x) in _NUMBERS or (type(x) is tuple and all(type(y) in _NUMBERS for y in x))


def _getter(keys: list[Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A function, which runs in C, that returns these elements of a dictionary or a list as a tuple: a single one twice.

    >>> _getter(["a"])({"a": 1, "b": 2}), _getter([2, 0])(["x", "y", "z"])
    ((1, 1), ('z', 'x'))
    """
    return itemgetter(*keys) if len(keys) > 1 else itemgetter(*keys, *keys)


def _common(variables: list[dict[str, Any]]) -> tuple[list[Any], list[tuple[int, ...]]]:
    """For all modules whether they train; and the ids of hooks and of replaced ``forward`` methods, where there are some."""
    training = list(map(_TRAINING, variables))
    some = any(map(_BEFORE, variables)) or any(map(_AFTER, variables))
    if not some and not any(map(dict.__contains__, variables, repeat("forward"))):
        return training, []
    before, after = map(_BEFORE, variables), map(_AFTER, variables)
    hooks = zip(variables, before, after, strict=True)
    return training, [
        (id(of), id(of.get("forward")), *map(id, (*first.values(), *second.values())))
        for of, first, second in hooks
        if first or second or "forward" in of
    ]


def _configurations(stating: Iterable[dict[str, Any]]) -> list[Any]:
    """What each Hugging Face configuration states that decides how attention is computed, and how tokens lie on an image."""
    configs = list(map(_CONFIG, stating))
    found = dict(zip(map(id, configs), configs, strict=True))
    return [(number, *(getattr(config, name, None) for name in _STATED)) for number, config in found.items()]


# Variables that every module has, and functions that read those which matter.
_OF_ALL = frozenset(vars(nn.Module()))
_CONFIG = itemgetter("config")
_STATED = ("_attn_implementation", "model_type", "image_size", "patch_size", "num_register_tokens")
_TRAINING, _BEFORE, _AFTER = itemgetter("training"), itemgetter("_forward_pre_hooks"), itemgetter("_forward_hooks")
_FORWARD = attrgetter("forward")
_VARIABLES, _MODULES, _VALUES = attrgetter("__dict__"), itemgetter("_modules"), dict.values
