"""How many multiply-adds an operator does, from its arguments and its result."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

Formula = Callable[[tuple[Any, ...], Any], int]


def _product(first: int) -> Formula:
    """(…, m, k) × (…, k, n), whose factors are arguments ``first`` and the one after."""
    return lambda args, out: args[first].numel() * args[first + 1].shape[-1]


def _with_vector(first: int) -> Formula:
    return lambda args, out: args[first].numel()


def _convolution(args: tuple[Any, ...], out: Any) -> int:
    """Each output is a sum over one filter; transposed, each input is spread by one."""
    images, filters, transposed = args[0], args[1], args[6]
    return (images if transposed else out).numel() * math.prod(filters.shape[1:])


def _attention(args: tuple[Any, ...], out: Any) -> int:
    """Scores and averages of every pair."""
    query, key, value = args[:3]
    return query.shape[:-1].numel() * key.shape[-2] * (query.shape[-1] + value.shape[-1])


def _onednn_recurrent(args: tuple[Any, ...], out: Any) -> int:
    return args[0].shape[:-1].numel() * (args[1].numel() + args[2].numel())


def _cudnn_recurrent(args: tuple[Any, ...], out: Any) -> int:
    return args[0].shape[:-1].numel() * sum(weight.numel() for weight in args[1] if weight.ndim == 2)


_NAMED: dict[str, Formula] = {
    "mm": _product(0),
    "bmm": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "addbmm": _product(1),
    "mv": _with_vector(0),
    "addmm_": _product(1),
    "baddbmm_": _product(1),
    "addbmm_": _product(1),
    "addmv": _with_vector(1),
    "addmv_": _with_vector(1),
    "dot": _with_vector(0),
    "vdot": _with_vector(0),
    "convolution": _convolution,
    "_convolution": _convolution,
    "mkldnn_rnn_layer": _onednn_recurrent,
    "_cudnn_rnn": _cudnn_recurrent,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_fused_attention_overrideable": _attention,
}
_FORMULAS = {
    getattr(torch.ops.aten, name): formula for name, formula in _NAMED.items() if hasattr(torch.ops.aten, name)
}


def has_formula(operator: Any) -> bool:
    """Whether it is known here, or was registered with torch's ``register_flop_formula``."""
    return operator in _FORMULAS or operator in flop_registry


def multiply_adds(operator: Any, args: tuple[Any, ...], options: dict[str, Any], out: Any) -> int:
    """Of one call of an operator (an overload packet or a higher-order operator) that has a formula."""
    formula = _FORMULAS.get(operator)
    if formula is not None:
        return formula(args, out)
    return flop_registry[operator](*args, **options, out_val=out) // 2


_PRODUCTS = re.compile(r"attention|cdist|convolution|euclidean_dist|_fft|linalg_(?!vector_norm)|linear|matmul|rnn|_mm")


def may_multiply(func: Any, name: str) -> bool:
    """Whether something unknown should be mentioned: a kernel of someone's own, or one whose name speaks of products."""
    if isinstance(func, torch._ops.HigherOrderOperator) or func.namespace not in ("aten", "prim", "prims"):
        return True
    return _PRODUCTS.search(name) is not None and "upsample" not in name
