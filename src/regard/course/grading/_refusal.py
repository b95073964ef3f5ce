"""Switch off ready-made functions in the process that runs an answer: in torch's dispatcher, below all Python names.

An alias, ``torch.ops``, a disabled ``__torch_function__`` or TorchScript all end at the same operator, and that one is
replaced. This file needs only torch.
"""

import contextlib
import ctypes
import functools
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch

# Parts of the names of torch functions that are attention in one call.
ATTENTION = (
    *("scaled_dot_product", "multi_head_attention", "transformer_encoder_layer", "flex_attention", "math_attention"),
    "sdpa_dense",
)
# For each kind of exercise: names of torch functions that solve it in one call.
READY_MADE = {
    "softmax": ("softmax", "softmin", "log_softmax", "gumbel_softmax", "logsumexp", "logcumsumexp"),
    "layer_norm": ("layer_norm", "native_layer_norm", "group_norm", "batch_norm", "instance_norm", "rms_norm"),
    "gelu": ("gelu", "gelu_"),
    "convolution": ("conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d", "convolve", "correlate"),
    "recurrence": ("rnn_tanh", "rnn_relu", "gru", "lstm", "rnn_tanh_cell", "rnn_relu_cell", "gru_cell", "lstm_cell"),
    "kron": ("kron",),
    "variance": ("var", "std", "var_mean", "std_mean"),
}
# The same as operators of the dispatcher, in every namespace of it (torch.ops.aten, .mkldnn, .quantized, …) and every form.
_OPERATORS = {
    "softmax": r"softmax|logsumexp|logcumsumexp",
    "layer_norm": r"(layer|group|batch|instance|rms)_?norm",
    "gelu": r"gelu|_addmm_activation|linear_pointwise",
    "convolution": r"conv(?!ert)",
    "recurrence": r"rnn|gru|lstm",
    "kron": r"kron",
    "variance": None,
}
_ATTENTION_OPERATORS = r"attention|transformer_encoder_layer|flex_"
# Functions that open files in C++, where Python's audit hook does not see it.
_FILE_OPERATORS = ("from_file",)
_ALWAYS = ("CPU", "AutogradCPU")
_KEYS = ("CPU", "AutogradCPU", "SparseCPU", "MkldnnCPU", "QuantizedCPU", "NestedTensorCPU")


class ReadyMadeError(AssertionError):
    """The answer calls the function it is asked to write."""


def called_torch(name: str, kind: str | None) -> str:
    """The message for a student who calls a torch function that solves the exercise."""
    if kind is None:
        return f"your answer calls torch's {name}, which is attention in one call; write it out yourself"
    return f"your answer calls torch's {name}; this exercise asks you to write {kind} out yourself"


def switch_off(kinds: Iterable[str]) -> None:
    """Make these kinds of functions raise an error, permanently for this process; attention in one call always does."""
    kinds = tuple(kinds)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in kinds:
            _replace(library, "aten", _operators("aten", _OPERATORS[each]), each)
    _keep_for_good(library)
    for held, spelled, name, kind in _python_versions():
        if kind is None or kind in kinds:
            held[spelled] = _refuse(name, kind)
    for table, operator, kind in _decompositions():
        if kind in kinds:
            table.pop(operator, None)
    torch.nn.MultiheadAttention.forward = _refuse("MultiheadAttention", None)  # type: ignore[method-assign]
    if "variance" in kinds:
        for name in READY_MADE["variance"]:
            if hasattr(torch.Tensor, name):
                setattr(torch.Tensor, name, _refuse(name, "variance"))


@functools.cache
def _operators(namespace: str, pattern: str | None) -> list[str]:
    """The operators of a namespace whose names match the pattern, with all overloads, including those with ``out``."""
    if pattern is None:
        return []
    names = (each.split("::") for each in torch._C._dispatch_get_all_op_names())  # type: ignore[attr-defined]
    return sorted(name for space, name in names if space == namespace and re.search(pattern, name.partition(".")[0]))


def _replace(library: torch.library.Library, namespace: str, names: list[str], kind: str | None) -> None:
    for name in names:
        refuse = _refuse(name.partition(".")[0].lstrip("_"), kind)
        for key in _KEYS:
            if torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::{name}", key) or key in _ALWAYS:  # type: ignore[attr-defined]
                with contextlib.suppress(RuntimeError, AttributeError, ValueError):  # no kernel for that key
                    library.impl(name, refuse, key)


def _keep_for_good(library: torch.library.Library) -> None:
    """Make the replacement permanent: remove every way to end it, which would restore the operators."""
    for part in (library, library.m):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    for ending in [each for each in weakref.finalize._registry if each.peek() and each.peek()[0] is library]:  # type: ignore[attr-defined]
        ending.detach()


@functools.cache
def _modules() -> list[dict[str, Any]]:
    """The modules of torch and numpy that hold their functions."""
    found = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return [vars(module) for module in found if module.__name__.split(".")[0] in ("torch", "numpy")]


@functools.cache
def _python_versions() -> list[tuple[dict[str, Any], str, str, str | None]]:
    """The places where these modules hold the functions under their own names, including torch's decompositions."""
    places: list[tuple[dict[str, Any], str, str, str | None]] = []
    for held in _modules():
        for kind, names in READY_MADE.items():
            for name in names:
                places += [(held, each, name, kind) for each in (name, f"_{name}") if callable(held.get(each))]
        for name, value in held.items():
            if callable(value) and not isinstance(value, type) and any(part in name for part in ATTENTION):
                places.append((held, name, name, None))
    return places


@functools.cache
def _decompositions() -> list[tuple[dict[Any, Any], Any, str]]:
    places: list[tuple[dict[Any, Any], Any, str]] = []
    for held in _modules():
        table = held.get("decomposition_table")
        if not isinstance(table, dict):
            continue
        for operator in table:
            said = str(operator)
            places += [
                (table, operator, kind) for kind, names in READY_MADE.items() if any(name in said for name in names)
            ]
    return places


def prepare() -> None:
    """Before the process forks: switch off functions that no answer may use, and prepare for every later :func:`switch_off`."""
    _python_versions()
    _decompositions()
    for pattern in _OPERATORS.values():
        _operators("aten", pattern)
    for name, operator in getattr(torch._ops, "_higher_order_ops", {}).items():  # they lie above the dispatcher
        if "attention" in name:
            type(operator).__call__ = _refuse(name, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library = torch.library.Library("aten", "IMPL")
        _replace(library, "aten", _operators("aten", _ATTENTION_OPERATORS), None)
        for name in _FILE_OPERATORS:
            library.impl(name, _no_files, "CPU")
        _keep_for_good(library)
        for namespace in {each.split("::")[0] for each in torch._C._dispatch_get_all_op_names()} - {"aten", "prims"}:  # type: ignore[attr-defined]
            other = torch.library.Library(namespace, "IMPL")
            for kind, pattern in _OPERATORS.items():
                _replace(other, namespace, _operators(namespace, pattern), kind)
            _replace(other, namespace, _operators(namespace, _ATTENTION_OPERATORS), None)
            _keep_for_good(other)


def _no_files(*_: Any, **__: Any) -> Any:
    raise PermissionError("an answer may not open files")


def _refuse(name: str, kind: str | None) -> Callable[..., Any]:
    message = called_torch(name, kind)

    def refuse(*_: Any, **__: Any) -> Any:
        raise ReadyMadeError(message)

    return refuse


class Ours(ModuleType):
    """A placeholder for this library in an answer's process: it has every name, and calling one raises an error."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(name)


class _Stub:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> "_Stub":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(name)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise ReadyMadeError(f"your answer calls regard's {self._name}; write it out yourself")
