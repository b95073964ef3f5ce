"""Reports modules that look like attention and ran, but gave no map, so that nothing is missing silently.

A module looks like attention by its name, its class, or its projections of queries and keys. It ran if a torch function
was given one of its parameters.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._module_names import CALL, ModuleNames, clean

_NAME = re.compile(r"attention|attn|(^|_)mha(_|$)|(^|_|lite)mla(_|$)|retention|delta_?net|delta_?rule", re.IGNORECASE)
_OPERATOR = re.compile(r"attention|attn|fmha|mha_", re.IGNORECASE)
# The last word of a name decides what a module is: an attention norm is a norm, an attention gate is a gate.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_OTHERS = (
    r"(layer|rms|group)?norms?|ln|drop(out|path)?|masks?|bias(es)?|rotary|rope|emb(ed|eddings?)?|positions?|"
    r"proj(ections?)?|mlp|ffn?|feedforward|router|out(put)?|loss"
)
_OTHER_NAMES = _OTHERS + r"|gates?|adapters?|lora|hc|connections?|act|scale|residual"
# Names of projections of queries, of keys, and of queries, keys and values at once.
_QUERIES = re.compile(
    r"^(w_?|to_|fc_?|c_|in_)?(q|query|queries|qs)(_?(proj|projection|lin|linear|layer|dense|weight|conv))?s?$", re.I
)
_KEYS = re.compile(
    r"^(w_?|to_|fc_?|c_|in_)?(k|key|keys|ks|kv)(_?(proj|projection|lin|linear|layer|dense|weight|conv))?s?$", re.I
)
_ALL = re.compile(r"qkv|query_key_value|^in_proj_weight$|^W_pack$", re.I)
_REASON = "it looks like attention and ran, but no map was recognized in it: "
_ELSEWHERE = "it looks like attention and did not run in this thread; if it ran in another, it was not seen"
_IN_THREADS = "it started a thread or passed work to one: attention that ran there was not seen"
_USUAL = "it may be linear attention, a recurrence, a scripted or traced function, or weights that no softmax made"


class SilentModules:
    """The modules of a model that look like attention, and whether they ran.

    Only modules with at least two matrices count. A module with the attribute ``attends = False`` is no attention.

    Attributes:
        waiting: parameters of modules that did not run yet: the module's name by the parameter's id.
        ran: notes that the module of this name, which attends, ran.
    """

    def __init__(self, model: nn.Module, names: ModuleNames) -> None:
        self._owner: dict[int, str] = {}  # the module's name by the parameter's id
        self.waiting: dict[int, str] = {}
        self._root = type(model).__name__
        self._ran: dict[str, None] = {}
        self.ran: Callable[[str], None] = self._ran.setdefault  # a method in C: it is called at each attention
        self._threads: list[str | None] = []
        self._named: dict[str, int] = {}  # modules whose class is named attention, and their ids
        self._projecting: set[str] = set()  # modules that have projections of queries and keys themselves
        self._called: set[str] = set()  # those of _named that were called: so no module around computes their attention
        self._operators: dict[str, str] = {}
        self._names, self._searched = names, False

    def find(self) -> None:
        """Find the modules that look like attention, before the model runs."""
        if self._searched:
            return
        self._searched = True
        with torch._C.DisableTorchFunction():  # an outer interceptor would think that the parameters are used
            self._find(self._names.modules)
        self.waiting.update(self._owner)

    def _find(self, modules: Mapping[str, nn.Module]) -> None:
        """Fill the dictionaries with the modules that look like attention, and with their parameters."""
        for path, module in modules.items():
            by_class = _is_attention(type(module).__name__, _OTHERS)
            named, projects = by_class or says_attention(path, module), _projects(module)
            if named or projects:
                matrices = list(_matrices(module))
                if len(matrices) >= 2:
                    # Modules come outermost first: the innermost one keeps its parameters.
                    name = clean(path) or self._root
                    self._owner.update(dict.fromkeys(map(id, matrices), name))
                    if by_class:
                        self._named[name] = id(module)
                    if projects:
                        self._projecting.add(name)

    def __bool__(self) -> bool:
        return bool(self._owner)

    @property
    def owners(self) -> set[str]:
        """The names of these modules."""
        return set(self._owner.values())

    def are_explained(self, accounted: set[str]) -> bool:
        """Whether each of these modules is accounted for, or contains a module that is, as the wrappers of BERT's attention."""
        return all(self._holds(name, accounted) for name in self.owners - accounted)

    def _holds(self, name: str, accounted: set[str]) -> bool:
        """Whether this module contains one that is accounted for."""
        return bool(accounted) and (name == self._root or any(known.startswith(name + ".") for known in accounted))

    def replaced(self, module: nn.Module, parameters: Mapping[str, Any]) -> None:
        """``torch.func.functional_call`` replaces a module's parameters: wait for the new tensors, too."""
        own = dict(module.named_parameters(remove_duplicate=False))
        for path, x in parameters.items():
            owner = self._owner.get(id(own.get(path)))
            if owner is not None and owner not in self._ran:
                self.waiting[id(x)] = owner

    def used(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A torch function was called. If an argument is a parameter in :attr:`waiting`, its module ran."""
        waiting = self.waiting
        for x in (*args, *kwargs.values()):
            if id(x) in waiting:
                name = waiting[id(x)]
                self._ran[name] = None
                if name in self._named and _is_called(self._named[name]):
                    self._called.add(name)
                for key in [key for key, owner in waiting.items() if owner == name]:
                    del waiting[key]  # it is enough to know that the module ran once

    def operator(self, name: str | None, operator: str) -> None:
        """An operator that is not torch's own ran in the module of this name."""
        if name is not None:
            self._operators[name] = operator

    def thread_started(self, name: str | None) -> None:
        """A thread was started, by the module of this name if it is one of the model."""
        self._threads.append(name)

    def unaccounted(self, accounted: set[str]) -> list[tuple[str, str]]:
        """The modules that ran and are not accounted for, each with a reason.

        Args:
            accounted: names of modules that gave a map, or for which it is known why not.
        """
        others = self._ran.keys() - accounted
        if not self._threads and others <= {known.rpartition(".")[0] for known in accounted if others}:
            return []  # nearly always, if only operators were watched
        found: list[tuple[str, str]] = []
        for name in dict.fromkeys((*self._ran, *self._owner.values())) if self._threads else self._ran:
            if name in accounted or self._holds(name, accounted):
                continue
            around = any(known == self._root or name.startswith(known + ".") for known in accounted)
            if around and name not in self._called:
                continue
            if name not in self._ran:
                found.append((name, _ELSEWHERE))
                continue
            inside = (text for where, text in self._operators.items() if where == name or where.startswith(name + "."))
            operator = next(inside, None)
            found.append((name, _REASON + (_USUAL if operator is None else f"the operator {operator} ran in it")))
        # Leave out a module that only wraps another reported one.
        inner = {name for name, _ in found}
        found = [
            (name, reason)
            for name, reason in found
            if name in self._projecting or not any(other.startswith(name + ".") for other in inner)
        ]
        starter = next((name for name in self._threads if name is not None), None)
        if starter is not None and not found:  # attention may run in a thread, in any module
            found.append((starter, _IN_THREADS))
        return found


def _is_called(module: int) -> bool:
    """Whether a call of the module of this id is running."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code is CALL and id(frame.f_locals.get("self")) == module:
            return True
        frame = frame.f_back
    return False


def says_attention(path: str, module: nn.Module) -> bool:
    """Whether the last part of a module's path, or its class, is named attention."""
    return _is_attention(path.rpartition(".")[2], _OTHER_NAMES) or _is_attention(type(module).__name__, _OTHERS)


@lru_cache(4096)
def _is_attention(name: str, others: str) -> bool:
    """Whether a name contains attention, and its last word does not name something else.

    >>> _is_attention("self_attn", _OTHER_NAMES), _is_attention("post_attention_layernorm", _OTHER_NAMES)
    (True, False)
    >>> _is_attention("AttentionGate", _OTHERS), _is_attention("attn_gate", _OTHER_NAMES)
    (True, False)
    """
    words = _WORDS.findall(name)
    return _NAME.search(name) is not None and not (words and re.fullmatch(others, words[-1], re.I))


def _matrices(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters with two axes or more of a module and its submodules, except those with ``attends = False``."""
    if getattr(module, "attends", None) is False:
        return
    for x in module._parameters.values():
        if x is not None and x.ndim >= 2:
            yield x
    for child in module._modules.values():
        if child is not None:
            yield from _matrices(child)


def _projects(module: nn.Module) -> bool:
    """Whether a module itself holds projections of queries and keys."""
    own = [name for name, x in module._parameters.items() if x is not None and x.ndim >= 2]
    return _are_projections(*(name for name, child in module._modules.items() if child is not None), *own)


@lru_cache(4096)
def _are_projections(*names: str) -> bool:
    return any(map(_ALL.search, names)) or (any(map(_QUERIES.match, names)) and any(map(_KEYS.match, names)))


def may_attend(operator: str, args: tuple[Any, ...], out: Any) -> bool:
    """Whether an unknown operator may compute attention: by its name, or by its shapes if it is not torch's own."""
    return _OPERATOR.search(operator) is not None or (is_foreign(operator) and _takes_queries_keys_values(args, out))


def is_foreign(operator: str) -> bool:
    """Whether an operator is not torch's own."""
    return not operator.startswith(("aten", "prim"))


def _takes_queries_keys_values(args: tuple[Any, ...], out: Any) -> bool:
    """Whether the shapes are those of queries, keys and values, with an output for each query."""
    given = [x for x in args if isinstance(x, Tensor) and x.is_floating_point() and x.ndim >= 3]
    result = out[0] if isinstance(out, tuple | list) and out else out
    if len(given) < 3 or not isinstance(result, Tensor):
        return False
    query, key, value = given[:3]
    alike = query.ndim == key.ndim == value.ndim and query.shape[-1] == key.shape[-1]
    return alike and key.shape[:-1] == value.shape[:-1] and result.shape == (*query.shape[:-1], value.shape[-1])
